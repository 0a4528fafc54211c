"""What runs say and show, as answers: numbers with few digits, pictures as PNG in base64. Called in the model's thread."""

import base64
import json
import tempfile
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.errors import Mistake
from regard.explain.report import rounded
from regard.server import requests, responses
from regard.show.attention import Choice, chosen_group, numbers_of, show, show_picture
from regard.show.beam import beam_tree, show_beam
from regard.show.generation import look_back
from regard.show.recording import attended, groups, spelled
from regard.tasks.contrastive import ContrastRun, Spoken
from regard.tasks.images import PictureRun

DIGITS = 6
MOST_NUMBERS = 1_000_000
"""In an answer."""
SEED = threading.Lock()
"""Random weights, which explanations are compared with, are drawn by the one seed that all threads share."""


def as_text(run: Any, text: str) -> str:
    """A text that is no path, whatever it looks like."""
    return Spoken(text) if isinstance(run, ContrastRun) else text


def prefixed(run: Any, texts: list[str], task: str | None) -> list[str]:
    if task is None:
        return texts
    if not hasattr(run, "prefixed"):
        raise Mistake("task: this model has no other tasks; leave it out")
    return run.prefixed(texts, task)


def places_of_spoken(texts: Sequence[str]) -> list[int]:
    """What is drawn for a text goes by its place among those that are not empty."""
    spoken = np.cumsum([0, *(bool(text.strip()) for text in texts)])
    return spoken[:-1].tolist()


def judgements(found: Sequence[Any]) -> list[responses.Judgement]:
    return [responses.Judgement(label=one.label, probability=round(one.probability, DIGITS)) for one in found]


def hypotheses(found: Sequence[Any]) -> list[responses.Hypothesis]:
    return [responses.Hypothesis(text=one.text, score=one.score, log_probability=one.log_probability) for one in found]


def png(pixels: np.ndarray) -> str:
    kept = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(kept, "PNG")
    return base64.b64encode(kept.getvalue()).decode()


# what is written


def translation(run: Any, found: Sequence[Any], more: dict[str, Any]) -> responses.Translation:
    best = found[0]
    return responses.Translation(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=spelled(run.tokenizers[1], best.tokens),
        others=hypotheses(found[1:]),
        **more,
    )


def seen_of_translations(run: Any, texts: Sequence[str], found: Sequence[Any], asked: requests.Translate) -> list[dict[str, Any]]:
    """The alignment and the tree of each translation, where there is anything to show."""
    seen: list[dict[str, Any]] = [{} for _ in texts]
    shown = [i for i, best in enumerate(found) if best[0].tokens]
    if asked.align and shown:
        for i, one in zip(shown, run.aligned([texts[i] for i in shown], [found[i][0] for i in shown])):
            weights, name = one.view()
            seen[i]["alignment"] = responses.Alignment(
                source=one.source, target=one.target, weights=np.round(weights, 4).tolist(), name=name
            )
    if asked.tree:
        beam, alpha = asked.beam or run.recipe.decode.beam, asked.length_penalty
        for i in shown:
            nodes, _ = beam_tree(
                run, texts[i], max(2, beam), run.recipe.decode.length_penalty if alpha is None else alpha, asked.max_tokens
            )
            seen[i]["tree"] = [
                responses.Node(
                    parent=node.parent,
                    step=node.step,
                    word=node.word,
                    best=node.best,
                    log_probability=round(node.log_p, 4),
                    fate=node.fate,
                    score=None if node.score is None else round(node.score, 4),
                )
                for node in nodes
            ]
    return seen


def written(found: Any, looks: responses.Looks | None) -> responses.Written:
    return responses.Written(
        text=found.text.text,
        written=found.text.written,
        score=found.text.score,
        tokens=found.words,
        probabilities=[round(p, DIGITS) for p in found.probabilities],
        finish_reason="length" if found.cut else "stop",
        looks=looks,
    )


def looks_of_texts(
    run: Any, prompts: Sequence[str], found: Sequence[Any], asked: requests.Generate
) -> list[responses.Looks | None]:
    choice = Choice("steps", asked.kind, asked.layer, asked.head)
    return [
        looks_of(look_back(run, prompt, one.text.tokens, choice)) if one.text.tokens else None
        for prompt, one in zip(prompts, found)
    ]


def looks_of(found: Any) -> responses.Looks:
    return responses.Looks(
        name=found.name,
        keys=list(found.keys),
        own=found.own,
        weights=np.round(found.weights, 4).tolist(),
        note=found.note or "",
        steps=[
            responses.Step(
                word=step.word,
                probability=round(step.probability, DIGITS),
                others=[[word, round(p, DIGITS)] for word, p in step.others],
            )
            for step in found.steps
        ],
    )


def captioned(run: Any, found: Sequence[Any], looks: responses.Shown | None) -> responses.Captioned:
    best = found[0]
    return responses.Captioned(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=spelled(run.tokenizers[0], best.tokens),
        others=hypotheses(found[1:]),
        looks=looks,
    )


def looks_of_caption(run: Any, picture: Image.Image, found: Any) -> responses.Shown | None:
    if not found.tokens:
        return None
    pixels = run.seen([picture])
    (look,) = run.looks(pixels, [found.tokens])
    return responses.Shown(
        words=look.words,
        grid=list(run.model.grid),
        maps=np.round(look.weights, 4).tolist(),
        name="cross-attention, mean of the heads of the layer that looks most sharply",
        picture=png(pixels[0]),
    )


# what is judged


def classified(run: Any, given: Sequence[Any], task: str | None) -> list[Any]:
    if task is not None and not hasattr(run, "prefixed"):
        raise Mistake("task: this model has no other tasks; leave it out")
    return run.classify(given, task) if task is not None else run.classify(given)


def embedded(run: Any, given: Sequence[Any], layer: int, pool: str) -> list[responses.Embedded]:
    options = {"read_as": "text" if isinstance(given[0], str) else "image"} if isinstance(run, ContrastRun) else {}
    found = run.embed(given, layer=layer, pool=pool, **options)
    named = pool == "words" or isinstance(given[0], str)
    return [
        responses.Embedded(tokens=one.tokens if named else [], vectors=np.round(one.vectors.astype(float), DIGITS).tolist())
        for one in found
    ]


# what is looked at


def attention(name: str, run: Any, given: Any, asked: requests.Attention) -> bytes:
    found = groups(attended(run, given))
    picked = found[chosen_group(found, asked.kind)]
    layers = [at(picked, "layer", number) for number in asked.layers] if asked.layers else list(range(len(picked.layers)))
    heads = [at(picked, "head", number) for number in asked.heads] if asked.heads else list(range(len(picked.heads)))
    weights = picked.weights[np.ix_(layers, heads)]  # (L, H, T, S)
    if weights.size > MOST_NUMBERS:
        raise Mistake(f"{weights.size:,} numbers are more than {MOST_NUMBERS:,}; name fewer layers or heads")
    picture = isinstance(run, PictureRun) and not isinstance(given, str)
    entropy = -(weights.mean(1) * np.log(np.maximum(weights.mean(1), 1e-12))).sum(-1).mean(-1)
    said = responses.Attention.model_construct(
        model=name,
        name=picked.name,
        names=[one.name for one in found],
        queries=list(picked.queries),
        keys=list(picked.keys),
        layers=[int(picked.layers[i]) for i in layers],
        heads=[int(picked.heads[i]) for i in heads],
        weights=np.round(weights.astype(float), asked.digits).tolist(),
        sharpest=int(entropy.argmin()),
        tile=picked.tile,
        note=picked.note or "",
        grid=list(run.grid) if picture else None,
        picture=png(seen_as(run, given)) if picture else None,
    )
    return json.dumps(said.model_dump(), ensure_ascii=False, allow_nan=False).encode()


def at(picked: Any, what: str, number: int) -> int:
    """The place of a layer or a head, by what it is called."""
    layer, head, _ = numbers_of(
        picked, Choice("model", layer=number if what == "layer" else None, head=number if what == "head" else None)
    )
    found = layer if what == "layer" else head
    assert found is not None
    return found


def seen_as(run: Any, picture: Image.Image) -> np.ndarray:
    """A picture, brought to the size that the model reads."""
    return run.frame.bring(picture.convert("RGB"))


def attention_file(run: Any, given: Any, asked: requests.Attention) -> bytes:
    """A record of everything, or one view as a picture."""
    first = [None if not chosen else chosen[0] for chosen in (asked.layers, asked.heads)]
    layer = first[0] if first[0] is not None or first[1] is None else 1
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        out = Path(folder, f"attention.{asked.form}")
        if asked.form == "attn":
            attended(run, given).write(out)
        elif asked.view == "beam":
            if not hasattr(run, "align"):
                raise Mistake("view beam: of a model that translates")
            show_beam(run, given, out=out)
        else:
            choice = Choice(asked.view, asked.kind, layer, first[1], asked.token)
            if isinstance(given, str):
                show(run, given, choice, out=out)
            else:
                show_picture(run, given, choice, out)
        return out.read_bytes()


def explained(name: str, run: Any, given: Any, asked: requests.Explain) -> responses.Explained:
    question = {key: value for key in ("label", "word", "fits", "against") if (value := getattr(asked, key)) is not None}
    with SEED:
        found = run.explain(given, asked.method, **question)
    other = found.against
    return responses.Explained(
        model=name,
        answer=found.answer,
        amount=round(found.amount, DIGITS),
        pieces=found.pieces,
        values=rounded(found.values),
        against=None if other is None else other.answer,
        against_amount=None if other is None else round(other.amount, DIGITS),
        against_values=None if other is None else rounded(other.values),
        refused=found.refused,
        faithfulness=rounded(found.measured),
        permuted=None if found.permuted is None else rounded(found.permuted),
        words=found.words(),
        grid=None if found.picture is None else list(found.picture.grid),
        picture=None if found.picture is None else png(found.picture.pixels),
    )


def count_tokens(run: Any, texts: Sequence[str]) -> int:
    return sum(map(len, run.tokenizers[0].encode([str(text) for text in texts])))

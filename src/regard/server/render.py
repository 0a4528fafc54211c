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

from regard.errors import UserError
from regard.explain.report import round_values
from regard.server import request_types, response_types
from regard.show.attention import ViewSelection, resolve_indices, select_group, show_attention, show_image_attention
from regard.show.beam import build_beam_tree, show_beam_tree
from regard.show.generation import trace_tokens
from regard.show.recording import attention_maps, record_attention, token_labels
from regard.tasks.contrastive import PlainText
from regard.tasks.shared.images import patch_grid

DIGITS = 6
MAX_WEIGHTS = 1_000_000
"""In an answer."""
SEED_LOCK = threading.Lock()
"""Random weights, which explanations are compared with, are drawn by the one seed that all threads share."""


def mark_as_text(run: Any, text: str) -> str:
    """A text that is no path, whatever it looks like."""
    return PlainText(text) if run.task.explains == "similarity" else text


def add_task_prefix(run: Any, texts: list[str], task: str | None) -> list[str]:
    if task is None:
        return texts
    if run.task.name != "text-to-text":
        raise UserError("task: this model has no other tasks; leave it out")
    return run._prefixed(texts, task)


def indices_of_nonempty(texts: Sequence[str]) -> list[int]:
    """What is drawn for a text goes by its place among those that are not empty."""
    spoken = np.cumsum([0, *(bool(text.strip()) for text in texts)])
    return spoken[:-1].tolist()


def label_probabilities(found: Sequence[Any]) -> list[response_types.LabelProbability]:
    return [response_types.LabelProbability(label=one.label, probability=round(one.probability, DIGITS)) for one in found]


def hypothesis_results(found: Sequence[Any]) -> list[response_types.HypothesisResult]:
    return [response_types.HypothesisResult(text=one.text, score=one.score, log_probability=one.log_probability) for one in found]


def png_base64(pixels: np.ndarray) -> str:
    kept = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(kept, "PNG")
    return base64.b64encode(kept.getvalue()).decode()


# what is written


def translation_result(run: Any, found: Sequence[Any], more: dict[str, Any]) -> response_types.TranslationResult:
    best = found[0]
    return response_types.TranslationResult(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=token_labels(run.tokenizers[1], best.tokens),
        others=hypothesis_results(found[1:]),
        **more,
    )


def translation_views(
    run: Any, texts: Sequence[str], found: Sequence[Any], asked: request_types.TranslateRequest
) -> list[dict[str, Any]]:
    """The alignment and the tree of each translation, where there is anything to show."""
    seen: list[dict[str, Any]] = [{} for _ in texts]
    shown = [i for i, best in enumerate(found) if best[0].tokens]
    if asked.align and shown:
        for i, one in zip(shown, run._align_translations([texts[i] for i in shown], [found[i][0] for i in shown])):
            weights, name = one.view()
            seen[i]["alignment"] = response_types.AlignmentResult(
                source=one.source, target=one.target, weights=np.round(weights, 4).tolist(), name=name
            )
    if asked.tree:
        beam, alpha = asked.beam or run.recipe.decode.beam, asked.length_penalty
        for i in shown:
            nodes, _ = build_beam_tree(
                run, texts[i], max(2, beam), run.recipe.decode.length_penalty if alpha is None else alpha, asked.max_tokens
            )
            seen[i]["tree"] = [
                response_types.BeamTreeNode(
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


def generation_result(found: Any, looks: response_types.GenerationAttention | None) -> response_types.GenerationResult:
    return response_types.GenerationResult(
        text=found.text.text,
        written=found.text.written,
        score=found.text.score,
        tokens=found.words,
        probabilities=[round(p, DIGITS) for p in found.probabilities],
        finish_reason="length" if found.cut else "stop",
        looks=looks,
    )


def generation_attentions(
    run: Any, prompts: Sequence[str], found: Sequence[Any], asked: request_types.GenerateRequest
) -> list[response_types.GenerationAttention | None]:
    choice = ViewSelection("steps", asked.kind, asked.layer, asked.head)
    return [
        generation_attention(trace_tokens(run, prompt, one.text.tokens, choice)) if one.text.tokens else None
        for prompt, one in zip(prompts, found)
    ]


def generation_attention(found: Any) -> response_types.GenerationAttention:
    return response_types.GenerationAttention(
        name=found.name,
        keys=list(found.keys),
        own=found.own,
        weights=np.round(found.weights, 4).tolist(),
        note=found.note or "",
        steps=[
            response_types.GeneratedStep(
                word=step.word,
                probability=round(step.probability, DIGITS),
                others=[[word, round(p, DIGITS)] for word, p in step.others],
            )
            for step in found.steps
        ],
    )


def caption_result(run: Any, found: Sequence[Any], looks: response_types.CaptionAttention | None) -> response_types.CaptionResult:
    best = found[0]
    return response_types.CaptionResult(
        text=best.text,
        score=best.score,
        log_probability=best.log_probability,
        tokens=token_labels(run.tokenizers[0], best.tokens),
        others=hypothesis_results(found[1:]),
        looks=looks,
    )


def caption_attention(run: Any, picture: Image.Image, found: Any) -> response_types.CaptionAttention | None:
    if not found.tokens:
        return None
    pixels = run._images.decode([picture])
    (look,) = run._align_tokens(pixels, [found.tokens])
    return response_types.CaptionAttention(
        words=look.words,
        grid=list(run.model.grid),
        maps=np.round(look.weights, 4).tolist(),
        name="cross-attention, mean of the heads of the layer that looks most sharply",
        picture=png_base64(pixels[0]),
    )


# what is judged


def classify_inputs(run: Any, given: Sequence[Any], task: str | None) -> list[Any]:
    if task is not None and run.task.name != "text-to-text":
        raise UserError("task: this model has no other tasks; leave it out")
    return run.classify(given, task) if task is not None else run.classify(given)


def embed_inputs(run: Any, given: Sequence[Any], layer: int, pool: str) -> list[response_types.EmbeddingResult]:
    options = {"read_as": "text" if isinstance(given[0], str) else "image"} if run.task.explains == "similarity" else {}
    found = run.embed(given, layer=layer, pool=pool, **options)
    named = pool == "words" or isinstance(given[0], str)
    return [
        response_types.EmbeddingResult(
            tokens=one.tokens if named else [], vectors=np.round(one.vectors.astype(float), DIGITS).tolist()
        )
        for one in found
    ]


# what is looked at


def attention_json(name: str, run: Any, given: Any, asked: request_types.AttentionRequest) -> bytes:
    found = attention_maps(record_attention(run, given))
    picked = found[select_group(found, asked.kind)]
    layers = [index_of(picked, "layer", number) for number in asked.layers] if asked.layers else list(range(len(picked.layers)))
    heads = [index_of(picked, "head", number) for number in asked.heads] if asked.heads else list(range(len(picked.heads)))
    weights = picked.weights[np.ix_(layers, heads)]  # (L, H, T, S)
    if weights.size > MAX_WEIGHTS:
        raise UserError(f"{weights.size:,} numbers are more than {MAX_WEIGHTS:,}; name fewer layers or heads")
    picture = "image" in run.task.reads and not isinstance(given, str)
    entropy = -(weights.mean(1) * np.log(np.maximum(weights.mean(1), 1e-12))).sum(-1).mean(-1)
    said = response_types.AttentionResponse.model_construct(
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
        grid=list(patch_grid(run)) if picture else None,
        picture=png_base64(resize_image(run, given)) if picture else None,
    )
    return json.dumps(said.model_dump(), ensure_ascii=False, allow_nan=False).encode()


def index_of(picked: Any, what: str, number: int) -> int:
    """The place of a layer or a head, by what it is called."""
    layer, head, _ = resolve_indices(
        picked, ViewSelection("model", layer=number if what == "layer" else None, head=number if what == "head" else None)
    )
    found = layer if what == "layer" else head
    assert found is not None
    return found


def resize_image(run: Any, picture: Image.Image) -> np.ndarray:
    """A picture, brought to the size that the model reads."""
    return run._images.transform.apply(picture.convert("RGB"))


def attention_file(run: Any, given: Any, asked: request_types.AttentionRequest) -> bytes:
    """A record of everything, or one view as a picture."""
    first = [None if not chosen else chosen[0] for chosen in (asked.layers, asked.heads)]
    layer = first[0] if first[0] is not None or first[1] is None else 1
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        out = Path(folder, f"attention.{asked.form}")
        if asked.form == "attn":
            record_attention(run, given).write(out)
        elif asked.view == "beam":
            if run.task.explains != "translation":
                raise UserError("view beam: of a model that translates")
            show_beam_tree(run, given, out=out)
        else:
            choice = ViewSelection(asked.view, asked.kind, layer, first[1], asked.token)
            if isinstance(given, str):
                show_attention(run, given, choice, out=out)
            else:
                show_image_attention(run, given, choice, out)
        return out.read_bytes()


def explain_response(name: str, run: Any, given: Any, asked: request_types.ExplainRequest) -> response_types.ExplainResponse:
    question = {key: value for key in ("label", "word", "fits", "against") if (value := getattr(asked, key)) is not None}
    with SEED_LOCK:
        found = run.explain(given, asked.method, **question)
    other = found.against
    return response_types.ExplainResponse(
        model=name,
        answer=found.answer,
        amount=round(found.amount, DIGITS),
        pieces=found.pieces,
        values=round_values(found.values),
        against=None if other is None else other.answer,
        against_amount=None if other is None else round(other.amount, DIGITS),
        against_values=None if other is None else round_values(other.values),
        refused=found.refused,
        faithfulness=round_values(found.measured),
        permuted=None if found.permuted is None else round_values(found.permuted),
        words=found.words(),
        grid=None if found.picture is None else list(found.picture.grid),
        picture=None if found.picture is None else png_base64(found.picture.pixels),
    )


def count_tokens(run: Any, texts: Sequence[str]) -> int:
    return sum(map(len, run.tokenizers[0].encode([str(text) for text in texts])))

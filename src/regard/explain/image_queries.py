"""What of a run that reads pictures is explained: the label of a picture, a word of its caption, how well it fits a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import read
from regard.corpus.examples import Pictures
from regard.errors import Mistake
from regard.explain.faithfulness import Gold
from regard.explain.image_target import MatchTarget, PictureTarget, cells
from regard.explain.query import Asked, Question, Seen, drawn, first_token, likeliest, named_label, word_number
from regard.scoring import covered
from regard.tasks.caption import CaptionRun
from regard.tasks.contrastive import ContrastRun
from regard.tasks.images import Picture, PictureClassifier, PictureRun
from regard.worlds import shapes


def ask_picture(run: PictureRun, picture: Picture, question: Question) -> Asked:
    if isinstance(run, PictureClassifier):
        return ask_picture_label(run, picture, question)
    if isinstance(run, ContrastRun):
        return ask_match(run, picture, question)
    assert isinstance(run, CaptionRun)
    return ask_caption(run, picture, question)


def ask_picture_label(run: PictureClassifier, picture: Picture, question: Question) -> Asked:
    question.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    label = -1 if question.label is None else named_label("class", question.label, run.numbers)
    inputs, about, seen = looked_at(run, picture)
    target = likeliest(PictureTarget(run.model, inputs, "pixels", answer=label, pooled=run.pooled, **about))
    other = question.against
    return Asked(
        target,
        names(seen),
        f"the label {run.labels[target.answer]!r}, " + ("the likeliest" if question.label is None else "asked for"),
        picture=seen,
        against=None if other is None else (named_label("against", other, run.numbers), f"the label {other!r}"),
    )


def ask_match(run: ContrastRun, picture: Picture, question: Question) -> Asked:
    question.refuse(run, but="text", cure="use --text with one that the picture might fit")
    texts = [text for text in (question.fits, question.against) if text is not None]
    if question.fits is None:
        raise Mistake(f"which text? {run.folder} {run.does}; add --text 'a red circle'")
    if not all(text.strip() for text in texts):
        raise Mistake("no picture fits an empty text; say what it might show")
    pixels, about, seen = looked_at(run, picture)
    told = {name: part.to(run.device) for name, part in read(Ragged.of(run.ids(texts)), run.marks).items()}
    target = MatchTarget(run.model, {**pixels, **told}, "pixels", answer=0, pooled=run.pooled, **about)
    return Asked(
        target,
        names(seen),
        f"that it fits {question.fits!r}",
        picture=seen,
        against=None if question.against is None else (1, f"that it fits {question.against!r}"),
    )


def ask_caption(run: CaptionRun, picture: Picture, question: Question, reference: list[int] | None = None) -> Asked:
    """A word of the run's own caption, or of a reference, by its number from 1 or as it stands there; its first token."""
    question.refuse(run, but="word", cure="use --word with one of its caption, or its number")
    inputs, about, seen = looked_at(run, picture)
    said = run.tell(seen.pixels[None])[0][0].tokens if reference is None else reference
    tokenizer = run.tokenizers[0]
    words, numbers = tokenizer.decode([said])[0].split(), tokenizer.words(said)
    chosen = word_number(question.word, words, "caption")
    step = numbers.index(chosen)
    inputs["target"] = torch.tensor([[run.marks.begin, *said[:step]]], device=run.device)
    target = PictureTarget(run.model, inputs, "pixels", answer=said[step], step=step, **about)
    other = question.against
    return Asked(
        target,
        names(seen),
        f"the word {words[chosen]!r}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        picture=seen,
        against=None if other is None else (first_token("against", other, tokenizer), f"the word {other!r} in its place"),
    )


def looked_at(run: PictureRun, picture: Picture) -> tuple[dict[str, torch.Tensor], dict[str, Any], Seen]:
    """A picture as the model reads it, normalised; its patches, what takes the place of one; and as one sees it."""
    encoder, settings = run.eye
    raw = run.unlabelled([picture]).batch(np.array([0]), 0, 0).inputs["pixels"].to(run.device)  # (1, 3, H, W)
    pixels, grid = encoder.normalise(raw), run.grid
    patch = getattr(settings, "patch", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    before = 0 if isinstance(run, CaptionRun) else settings.marks  # a decoder does not look at marks
    about = dict(
        places=torch.arange(grid[0] * grid[1], device=run.device) + before,
        stand_in=pixels[0].mean((1, 2)),
        cells=cells(run.frame.size, grid, sides),
    )
    return {"pixels": pixels}, about, Seen(raw[0].permute(1, 2, 0).cpu().numpy(), grid)


def names(seen: Seen) -> list[str]:
    """Patches by row and column, counted from 1."""
    return [f"{y + 1},{x + 1}" for y in range(seen.grid[0]) for x in range(seen.grid[1])]


# sets


def ask_pictures(run: PictureRun, examples: Pictures, chosen: Sequence[int], question: Question) -> Iterator[Asked]:
    """One answer of each of these pictures: a label, a caption that it fits, or a word of one, drawn by lot; with what a world
    knows to be named. What would be held against itself is left out."""
    for index in chosen:
        picture, gold = examples.pictures[index], examples.gold[index] if examples.gold else None
        if isinstance(run, PictureClassifier):
            asked = ask_picture_label(run, picture, question)
            boxes = () if gold is None else named_boxes(gold.scene, run.labels[asked.target.answer])
        elif isinstance(run, ContrastRun):
            if not examples.captions:
                raise Mistake(f"{examples.name} has no captions, which its pictures should fit")
            asked = ask_match(run, picture, replace(question, fits=examples.captions[index][0]))
            boxes = () if gold is None else tuple(box for phrase in gold.captions[0].phrases for box in phrase.boxes)
        else:
            assert isinstance(run, CaptionRun)
            found = ask_word(run, picture, gold, index, question)
            if found is None:
                continue
            asked, boxes = found
        if asked.against is None or asked.against[0] != asked.target.answer:
            yield replace(asked, gold=in_boxes(boxes, gold, run.grid) if boxes else {})


def ask_word(
    run: CaptionRun, picture: Picture, gold: shapes.Picture | None, index: int, question: Question
) -> tuple[Asked, tuple[shapes.Box, ...]] | None:
    """A word of the run's own caption; where a world knows what a caption names, the noun that names it."""
    if gold is None:
        said = run.tell(run.seen([picture]))[0][0].tokens
        numbers = [word for word in dict.fromkeys(run.tokenizers[0].words(said)) if word >= 0]
        return (ask_caption(run, picture, replace(question, word=str(drawn(numbers, index) + 1)), said), ()) if numbers else None
    caption = gold.captions[0]
    said = run.tokenizers[0].encode([caption.text])[0][: run.longest - 1]
    spoken = set(run.tokenizers[0].words(said))
    phrases = [phrase for phrase in caption.phrases if phrase.end - 1 in spoken]
    if not phrases:
        return None
    phrase = phrases[drawn(range(len(phrases)), index)]
    return ask_caption(run, picture, replace(question, word=str(phrase.end)), said), phrase.boxes


def named_boxes(scene: shapes.Scene, label: str) -> tuple[shapes.Box, ...]:
    """Of the shapes that have this label."""
    return tuple(shape.box for shape in scene.shapes if label in (shape.kind, shape.colour, " ".join(shape.combination)))


def in_boxes(boxes: Sequence[shapes.Box], gold: shapes.Picture | None, grid: tuple[int, int]) -> dict[str, Gold]:
    """The patches of which at least half is in the boxes; where there are none such, the one of which most is."""
    assert gold is not None
    part = covered(boxes, (gold.scene.size, gold.scene.size), grid).flatten()
    right = np.flatnonzero(part >= min(0.5, part.max()))
    return {"box": Gold(frozenset(right.tolist()), tuple(range(len(part))))}

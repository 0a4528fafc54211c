"""What of a run that reads pictures is explained: the label of a picture, a word of its caption, how well it fits a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.explain.faithfulness import GroundTruth
from regard.explain.image_target import ImageTarget, ImageTextTarget, cells
from regard.explain.selection import (
    ExplainedImage,
    ExplainedOutput,
    OutputSelection,
    first_token_id,
    label_index,
    pick,
    with_predicted_output,
    word_index,
)
from regard.scoring import box_coverage
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify_images import ClassifyImagesRun
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.shared.images import ImageInput, patch_grid, pooled_positions
from regard.worlds import shapes


def image_output(run: Run, picture: ImageInput, question: OutputSelection) -> ExplainedOutput:
    if run.task.explains == "image_label":
        return image_label_output(run, picture, question)
    if run.task.explains == "similarity":
        return similarity_output(run, picture, question)
    return caption_word_output(run, picture, question)


def image_label_output(run: ClassifyImagesRun, picture: ImageInput, question: OutputSelection) -> ExplainedOutput:
    question.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    label = -1 if question.label is None else label_index("class", question.label, run.labels)
    inputs, about, seen = image_inputs(run, picture)
    target = with_predicted_output(ImageTarget(run.model, inputs, "pixels", answer=label, pooled=pooled_positions(run), **about))
    other = question.against
    return ExplainedOutput(
        target,
        patch_names(seen),
        f"the label {run.labels[target.answer]!r}, " + ("the likeliest" if question.label is None else "asked for"),
        picture=seen,
        against=None if other is None else (label_index("against", other, run.labels), f"the label {other!r}"),
    )


def similarity_output(run: ContrastiveRun, picture: ImageInput, question: OutputSelection) -> ExplainedOutput:
    question.refuse(run, but="text", cure="use --text with one that the picture might fit")
    texts = [text for text in (question.fits, question.against) if text is not None]
    if question.fits is None:
        raise UserError(f"which text? {run.folder} {run.task.does}; add --text 'a red circle'")
    if not all(text.strip() for text in texts):
        raise UserError("no picture fits an empty text; say what it might show")
    pixels, about, seen = image_inputs(run, picture)
    told = {
        name: part.to(run.device) for name, part in encoder_inputs(Ragged.from_rows(run._ids(texts)), run._special_tokens).items()
    }
    target = ImageTextTarget(run.model, {**pixels, **told}, "pixels", answer=0, pooled=pooled_positions(run), **about)
    return ExplainedOutput(
        target,
        patch_names(seen),
        f"that it fits {question.fits!r}",
        picture=seen,
        against=None if question.against is None else (1, f"that it fits {question.against!r}"),
    )


def caption_word_output(
    run: CaptionRun, picture: ImageInput, question: OutputSelection, reference: list[int] | None = None
) -> ExplainedOutput:
    """A word of the run's own caption, or of a reference, by its number from 1 or as it stands there; its first token."""
    question.refuse(run, but="word", cure="use --word with one of its caption, or its number")
    inputs, about, seen = image_inputs(run, picture)
    said = run._caption_pixels(seen.pixels[None])[0][0].tokens if reference is None else reference
    tokenizer = run.tokenizers[0]
    words, numbers = tokenizer.decode([said])[0].split(), tokenizer.word_ids(said)
    chosen = word_index(question.word, words, "caption")
    step = numbers.index(chosen)
    inputs["target"] = torch.tensor([[run._special_tokens.bos, *said[:step]]], device=run.device)
    target = ImageTarget(run.model, inputs, "pixels", answer=said[step], step=step, **about)
    other = question.against
    return ExplainedOutput(
        target,
        patch_names(seen),
        f"the word {words[chosen]!r}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        picture=seen,
        against=None if other is None else (first_token_id("against", other, tokenizer), f"the word {other!r} in its place"),
    )


def image_inputs(run: Run, picture: ImageInput) -> tuple[dict[str, torch.Tensor], dict[str, Any], ExplainedImage]:
    """A picture as the model reads it, normalised; its patches, what takes the place of one; and as one sees it."""
    encoder, settings = run._image_encoder
    raw = run._images.rows([picture]).batch(np.array([0]), 0, 0).inputs["pixels"].to(run.device)  # (1, 3, H, W)
    pixels, grid = encoder.normalise(raw), patch_grid(run)
    patch = getattr(settings, "patch", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    before = 0 if run.task.explains == "caption" else settings.num_prefix_tokens  # a decoder does not look at marks
    about = dict(
        places=torch.arange(grid[0] * grid[1], device=run.device) + before,
        stand_in=pixels[0].mean((1, 2)),
        cells=cells(run._images.size, grid, sides),
    )
    return {"pixels": pixels}, about, ExplainedImage(raw[0].permute(1, 2, 0).cpu().numpy(), grid)


def patch_names(seen: ExplainedImage) -> list[str]:
    """Patches by row and column, counted from 1."""
    return [f"{y + 1},{x + 1}" for y in range(seen.grid[0]) for x in range(seen.grid[1])]


# sets


def image_outputs(
    run: Run, examples: ImageExamples, chosen: Sequence[int], question: OutputSelection
) -> Iterator[ExplainedOutput]:
    """One answer of each of these pictures: a label, a caption that it fits, or a word of one, drawn by lot; with what a world
    knows to be named. What would be held against itself is left out."""
    for index in chosen:
        picture, gold = examples.images[index], examples.gold[index] if examples.gold else None
        if run.task.explains == "image_label":
            asked = image_label_output(run, picture, question)
            boxes = () if gold is None else boxes_with_label(gold.scene, run.labels[asked.target.answer])
        elif run.task.explains == "similarity":
            if not examples.captions:
                raise UserError(f"{examples.name} has no captions, which its pictures should fit")
            asked = similarity_output(run, picture, replace(question, fits=examples.captions[index][0]))
            boxes = () if gold is None else tuple(box for phrase in gold.captions[0].phrases for box in phrase.boxes)
        else:
            found = caption_example_output(run, picture, gold, index, question)
            if found is None:
                continue
            asked, boxes = found
        if asked.against is None or asked.against[0] != asked.target.answer:
            yield replace(asked, gold=patches_in_boxes(boxes, gold, patch_grid(run)) if boxes else {})


def caption_example_output(
    run: CaptionRun, picture: ImageInput, gold: shapes.ShapesImage | None, index: int, question: OutputSelection
) -> tuple[ExplainedOutput, tuple[shapes.Box, ...]] | None:
    """A word of the run's own caption; where a world knows what a caption names, the noun that names it."""
    if gold is None:
        said = run._caption_pixels(run._images.decode([picture]))[0][0].tokens
        numbers = [word for word in dict.fromkeys(run.tokenizers[0].word_ids(said)) if word >= 0]
        return (
            (caption_word_output(run, picture, replace(question, word=str(pick(numbers, index) + 1)), said), ())
            if numbers
            else None
        )
    caption = gold.captions[0]
    said = run.tokenizers[0].encode([caption.text])[0][: run._max_positions - 1]
    spoken = set(run.tokenizers[0].word_ids(said))
    phrases = [phrase for phrase in caption.phrases if phrase.end - 1 in spoken]
    if not phrases:
        return None
    phrase = phrases[pick(range(len(phrases)), index)]
    return caption_word_output(run, picture, replace(question, word=str(phrase.end)), said), phrase.boxes


def boxes_with_label(scene: shapes.Scene, label: str) -> tuple[shapes.Box, ...]:
    """Of the shapes that have this label."""
    return tuple(shape.box for shape in scene.shapes if label in (shape.kind, shape.colour, " ".join(shape.combination)))


def patches_in_boxes(
    boxes: Sequence[shapes.Box], gold: shapes.ShapesImage | None, grid: tuple[int, int]
) -> dict[str, GroundTruth]:
    """The patches of which at least half is in the boxes; where there are none such, the one of which most is."""
    assert gold is not None
    part = box_coverage(boxes, (gold.scene.size, gold.scene.size), grid).flatten()
    right = np.flatnonzero(part >= min(0.5, part.max()))
    return {"box": GroundTruth(frozenset(right.tolist()), tuple(range(len(part))))}

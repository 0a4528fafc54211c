"""Outputs of runs that read images: the label of an image, a word of its caption, its similarity to a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.explain.faithfulness import GroundTruth
from regard.explain.selection import (
    ExplainedImage,
    ExplainedOutput,
    OutputSelection,
    explain_label,
    label_index,
    pick,
    predict_word,
    with_predicted_output,
    word_alternative,
    word_index,
)
from regard.explain.target import ImageTarget, ImageTextTarget, patch_indices
from regard.scoring import box_coverage
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify_images import ClassifyImagesRun
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.shared.images import ImageInput, patch_grid, pooled_positions
from regard.worlds import shapes


def image_label_output(run: ClassifyImagesRun, image: ImageInput, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    label = -1 if selection.label is None else label_index("class", selection.label, run.labels)
    target, shown = image_target(run, image)
    target = with_predicted_output(replace(target, output=label, pooled=pooled_positions(run)))
    return explain_label(target, patch_names(shown), run.labels, selection, shown)


def similarity_output(run: ContrastiveRun, image: ImageInput, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="text", cure="use --text with a text to compare the image with")
    texts = [text for text in (selection.fits, selection.against) if text is not None]
    if selection.fits is None:
        raise UserError(f"which text? {run.folder} {run.task.does}; add --text 'a red circle'")
    if not all(text.strip() for text in texts):
        raise UserError("an image has no similarity to an empty text; describe what it might show")
    target, shown = image_target(run, image, ImageTextTarget)
    encoded = encoder_inputs(Ragged.from_rows(run._ids(texts)), run._special_tokens)
    inputs = target.inputs | {name: part.to(run.device) for name, part in encoded.items()}
    return explain_similarity(replace(target, inputs=inputs, output=0, pooled=pooled_positions(run)), shown, selection)


def explain_similarity(target: ImageTarget, shown: ExplainedImage, selection: OutputSelection) -> ExplainedOutput:
    """Return the similarity of an image to the first text of a target, and to the second where two are compared."""
    return ExplainedOutput(
        target,
        patch_names(shown),
        f"the similarity to {selection.fits!r}",
        image=shown,
        against=None if selection.against is None else (replace(target, output=1), f"the similarity to {selection.against!r}"),
    )


def caption_word_output(
    run: CaptionRun, image: ImageInput, selection: OutputSelection, reference: list[int] | None = None
) -> ExplainedOutput:
    """Return a word of the run's own caption, or of a reference."""
    selection.refuse(run, but="word", cure="use --word with a word of its caption, or its number")
    target, shown = image_target(run, image)
    caption = run._caption_pixels(shown.pixels[None])[0][0].tokens if reference is None else reference
    tokenizer = run.tokenizers[0]
    words, word_ids = tokenizer.decode([caption])[0].split(), tokenizer.word_ids(caption)
    chosen = word_index(selection.word, words, "caption")
    step = word_ids.index(chosen)
    before = [run._special_tokens.bos, *caption[:step]]
    target = predict_word(target, "target", before, caption[step : step + word_ids.count(chosen)])
    return ExplainedOutput(
        target,
        patch_names(shown),
        f"the word {words[chosen]!r}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        image=shown,
        against=word_alternative(selection.against, target, before, tokenizer),
    )


def image_target(run: Run, image: ImageInput, kind: type[ImageTarget] = ImageTarget) -> tuple[ImageTarget, ExplainedImage]:
    """Return a target with the normalized pixels and the patches of an image, its output not set, and the image to show."""
    encoder, settings = run._image_encoder
    raw = run._images.rows([image]).batch(np.array([0]), 0, 0).inputs["pixels"].to(run.device)  # (1, 3, H, W)
    pixels, grid = encoder.normalize(raw), patch_grid(run)
    patch = getattr(settings, "patch_size", None)
    sides = (patch, patch) if isinstance(patch, int) else patch
    offset = 0 if run.task.explains == "caption" else settings.prefix_tokens  # a decoder does not attend to prefix tokens
    target = kind(
        run.model,
        {"pixels": pixels},
        "pixels",
        torch.arange(grid[0] * grid[1], device=run.device) + offset,
        output=-1,
        replacement=pixels[0].mean((1, 2)),
        patch_of_pixel=patch_indices(run._images.size, grid, sides),
    )
    return target, ExplainedImage(raw[0].permute(1, 2, 0).cpu().numpy(), grid)


def patch_names(image: ExplainedImage) -> list[str]:
    """Return the names of patches: row and column, counted from 1."""
    return [f"{y + 1},{x + 1}" for y in range(image.grid[0]) for x in range(image.grid[1])]


# sets


def image_outputs(
    run: Run, examples: ImageExamples, chosen: Sequence[int], selection: OutputSelection
) -> Iterator[ExplainedOutput]:
    """Yield one output for each chosen image: a label, the similarity to its caption, or a random word of it, with the patches
    that show it where a world knows them. Outputs that would be compared with themselves are skipped."""
    for index in chosen:
        image, gold = examples.images[index], examples.gold[index] if examples.gold else None
        if run.task.explains == "image_label":
            classifier = cast(ClassifyImagesRun, run)
            selected = image_label_output(classifier, image, selection)
            boxes = () if gold is None else boxes_with_label(gold.scene, classifier.labels[selected.target.output])
        elif run.task.explains == "similarity":
            if not examples.captions:
                raise UserError(f"{examples.name} has no captions to compare its images with")
            selected = similarity_output(cast(ContrastiveRun, run), image, replace(selection, fits=examples.captions[index][0]))
            boxes = () if gold is None else tuple(box for phrase in gold.captions[0].phrases for box in phrase.boxes)
        else:
            found = caption_example_output(cast(CaptionRun, run), image, gold, index, selection)
            if found is None:
                continue
            selected, boxes = found
        if not selected.is_compared_with_itself:
            yield replace(selected, truth=patches_in_boxes(boxes, gold, patch_grid(run)) if boxes else {})


def caption_example_output(
    run: CaptionRun, image: ImageInput, gold: shapes.ShapesImage | None, index: int, selection: OutputSelection
) -> tuple[ExplainedOutput, tuple[shapes.Box, ...]] | None:
    """Return a word of the run's own caption; where a world knows what its caption names, one of its nouns, and the boxes."""
    tokenizer = run.tokenizers[0]
    if gold is None:
        tokens = run._caption_pixels(run._images.decode([image]))[0][0].tokens
        words = [word for word in dict.fromkeys(tokenizer.word_ids(tokens)) if word >= 0]
        if not words:
            return None
        return caption_word_output(run, image, replace(selection, word=str(pick(words, index) + 1)), tokens), ()
    caption = gold.captions[0]
    tokens = tokenizer.encode([caption.text])[0][: run._max_positions - 1]
    present = set(tokenizer.word_ids(tokens))
    phrases = [phrase for phrase in caption.phrases if phrase.end - 1 in present]
    if not phrases:
        return None
    phrase = phrases[pick(range(len(phrases)), index)]
    return caption_word_output(run, image, replace(selection, word=str(phrase.end)), tokens), phrase.boxes


def boxes_with_label(scene: shapes.Scene, label: str) -> tuple[shapes.Box, ...]:
    """Return the boxes of the shapes that have this label."""
    return tuple(shape.box for shape in scene.shapes if label in (shape.kind, shape.colour, " ".join(shape.combination)))


def patches_in_boxes(
    boxes: Sequence[shapes.Box], gold: shapes.ShapesImage | None, grid: tuple[int, int]
) -> dict[str, GroundTruth]:
    """Return the patches of which at least half lies in the boxes; if there are none, the one with the largest part."""
    assert gold is not None
    part = box_coverage(boxes, (gold.scene.size, gold.scene.size), grid).flatten()
    correct = np.flatnonzero(part >= min(0.5, part.max()))
    return {"box": GroundTruth(frozenset(correct.tolist()), tuple(range(len(part))))}

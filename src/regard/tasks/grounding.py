"""What only the world of shapes knows: whether a caption is true of its picture, and where what it names is."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.batches.image_store import take_pixels
from regard.corpus.examples import ImageExamples
from regard.scoring import accuracy, attention_in_boxes, grounding_scores
from regard.tasks.base import EvaluationResult
from regard.worlds import shapes

if TYPE_CHECKING:
    from regard.tasks.caption import CaptionAlignment, CaptionRun

HEAD_PICTURES = 100


def caption_is_true(caption: str, picture: shapes.ShapesImage) -> bool:
    """Whether a caption says something, and all of it is true."""
    statement = shapes.parse_caption(caption)
    return statement is not None and shapes.is_true(statement, picture.scene)


def add_scene_scores(run: "CaptionRun", result: EvaluationResult, examples: ImageExamples) -> None:
    """The share of captions that are wholly true, and of attention that is on what a noun phrase names."""
    result.scores["understood"] = accuracy([shapes.parse_caption(said) is not None for said in result.outputs], "understood")
    result.scores["true"] = accuracy([caption_is_true(said, gold) for said, gold in zip(result.outputs, examples.gold)], "true")
    layer, head = best_grounding_head(run)
    result.scores |= grounding_scores(
        [
            grounding_fractions(look, caption, gold, layer, head)
            for look, caption, gold in caption_attention(run, examples)
            if caption.phrases
        ]
    )
    if run.recipe.model.kind == "transformer":
        result.notes.append(f"attention: layer {layer + 1}, head {head + 1} (chosen on validation pictures)")


def caption_attention(
    run: "CaptionRun", examples: ImageExamples
) -> "Iterator[tuple[CaptionAlignment, shapes.GroundedCaption, shapes.ShapesImage]]":
    """Every caption of the world, how the run looks while it reads it, and of which picture."""
    pairs = [(caption, row) for row, gold in enumerate(examples.gold) for caption in gold.captions]
    pixels = run.pixels(examples)
    ids = run.tokenizers[0].encode([caption.text for caption, _ in pairs])
    rows = np.array([row for _, row in pairs])
    looks = run.looks(take_pixels(pixels, rows).permute(0, 2, 3, 1), [found[: run.longest - 1] for found in ids])
    return ((look, caption, examples.gold[row]) for look, (caption, row) in zip(looks, pairs))


def grounding_fractions(
    look: "CaptionAlignment", caption: shapes.GroundedCaption, gold: shapes.ShapesImage, layer: int, head: int
) -> list[tuple[float, float]]:
    """Of each noun phrase, the attention of its words inside its boxes, and what chance would put there."""
    weights, size = look.heads[layer, head], (gold.scene.size, gold.scene.size)
    return [
        attention_in_boxes(weights[phrase.start : phrase.end], phrase.boxes, size)
        for phrase in caption.phrases
        if phrase.end <= len(weights)
    ]


def best_grounding_head(run: "CaptionRun") -> tuple[int, int]:
    """The (layer, head) that looks most at what is named in validation pictures; an LSTM has one."""
    some = run.data.valid.select(range(min(HEAD_PICTURES, len(run.data.valid))))
    found = list(caption_attention(run, some))
    layers, heads = found[0][0].heads.shape[:2]
    if layers * heads == 1:
        return 0, 0
    return max(
        ((layer, head) for layer in range(layers) for head in range(heads)),
        key=lambda at: sum(share for look, caption, gold in found for share, _ in grounding_fractions(look, caption, gold, *at)),
    )

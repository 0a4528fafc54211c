"""Image captioning (Show, Attend and Tell, Xu et al. 2015): describe an image, and where the model attends for each word."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, Unpack, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard.batches.image_rows import CaptionRows, ImageClassificationRows, take_feature_maps
from regard.batches.image_store import Pixels, take_pixels
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import ImageExamples
from regard.decoding.batching import Sources, decode_all
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.models.captioner import LstmCaptioner, TransformerCaptioner
from regard.recipe import CaptionedImageData, CaptionModel, CaptionTraining, Recipe, require_encoder
from regard.scoring import (
    accuracy,
    attention_in_boxes,
    caption_scores,
    compare_systems,
    grounding_scores,
    merge_words,
    transpose_references,
)
from regard.tasks.base import Run
from regard.tasks.self_critical import SelfCriticalLoss
from regard.tasks.shared.embedding import EmbeddedText
from regard.tasks.shared.images import MAX_VECTOR_BYTES, ImageInput, are_frozen, have_equal_weights, in_mode
from regard.tasks.shared.one_or_many import as_several, best_or_ranked, one_or_many
from regard.tasks.shared.search import SearchOptions, search_params
from regard.tasks.starters.image_starters import caption_recipe
from regard.tasks.task import ComparisonRow, EvaluationResult, Task, TaskCard
from regard.tasks.translate import Alignment, Translation, attention_of_rows
from regard.training.losses import Objective
from regard.worlds import shapes

HEAD_IMAGES = 100
"""Validation images that the head to score is chosen on."""


class CaptionRecipe(Recipe):
    """Describe an image in words."""

    task: Literal["caption"] = "caption"
    data: CaptionedImageData
    model: CaptionModel = CaptionModel()
    train: CaptionTraining = CaptionTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def check_images(self) -> Self:
        require_encoder(self, self.model.encoder, "model.encoder")
        augment = self.train.augment
        if augment.mixup or augment.cutmix:
            raise ValueError("train.augment: mixup and cutmix mix labels, and captions cannot be mixed; set both to 0")
        if self.train.self_critical is not None and getattr(self.model.decoder, "attention", "soft") == "hard":
            raise ValueError("train.self_critical: hard attention is trained by a reward of its own; use attention = 'soft'")
        if augment.flip and self.data.world is not None:
            raise ValueError("train.augment.flip: captions of shapes say what is left and right; set it to false")
        return self


@dataclass(frozen=True)
class CaptionAlignment:
    """The words of a caption, and where the model attends for each: weights (T, rows, columns)."""

    words: list[str]
    weights: np.ndarray
    """The mean of the heads of the sharpest layer."""
    heads: np.ndarray
    """Every layer and head (L, H, T, rows, columns)."""


class CaptionRun(Run):
    """A captioner."""

    recipe: CaptionRecipe

    @overload
    def caption(self, images: ImageInput, *, number: None = None, **options: Unpack[SearchOptions]) -> Translation: ...  # type: ignore[overload-overlap]
    @overload
    def caption(self, images: ImageInput, *, number: int, **options: Unpack[SearchOptions]) -> list[Translation]: ...  # type: ignore[overload-overlap]
    @overload
    def caption(
        self, images: Iterable[ImageInput], *, number: None = None, **options: Unpack[SearchOptions]
    ) -> list[Translation]: ...
    @overload
    def caption(
        self, images: Iterable[ImageInput], *, number: int, **options: Unpack[SearchOptions]
    ) -> list[list[Translation]]: ...
    def caption(
        self, images: ImageInput | Iterable[ImageInput], *, number: int | None = None, **options: Unpack[SearchOptions]
    ) -> Translation | list[Translation] | list[list[Translation]]:
        """Return the caption of an image, or of each image of a list; with a `number`, a list of its best captions.

        With a `temperature`, captions are sampled. Options: beam, length_penalty, max_tokens, temperature, top_k, top_p, seed.
        """
        return best_or_ranked(
            images, number, lambda several: self._caption_pixels(self._images.decode(several), number, **options)
        )

    @overload
    def align(self, images: ImageInput, captions: str | None = None) -> CaptionAlignment: ...  # type: ignore[overload-overlap]
    @overload
    def align(self, images: Iterable[ImageInput], captions: Sequence[str] | None = None) -> list[CaptionAlignment]: ...
    def align(
        self, images: ImageInput | Iterable[ImageInput], captions: str | Sequence[str] | None = None
    ) -> CaptionAlignment | list[CaptionAlignment]:
        """Return where the model attends in an image for every word of a caption: its own, or the given one."""
        return one_or_many(images, lambda several: self._align_images(several, captions))

    @overload
    def embed(self, images: ImageInput, *, layer: int = -1, pool: str = "mean") -> EmbeddedText: ...  # type: ignore[overload-overlap]
    @overload
    def embed(self, images: Iterable[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]: ...
    def embed(
        self, images: ImageInput | Iterable[ImageInput], *, layer: int = -1, pool: str = "mean"
    ) -> EmbeddedText | list[EmbeddedText]:
        """Return the mean of each image's feature map."""
        if pool != "mean" or layer not in (-1, 0):
            raise UserError(
                f"--layer {layer}, --pool {pool}: a captioner has one vector per image, the mean of its map; leave them out"
            )
        return one_or_many(images, lambda several: self._images.embed(several, self._mean_features))

    def _mean_features(self, pixels: Tensor) -> Tensor:
        mean: Tensor = self.model.image_features(pixels).float().mean(1, keepdim=True)
        return mean

    def _align_images(self, images: Sequence[ImageInput], captions: str | Sequence[str] | None) -> list[CaptionAlignment]:
        pixels = self._images.decode(images)
        ids = [found[0].tokens for found in self._caption_pixels(pixels)] if captions is None else self._ids(as_several(captions))
        if len(ids) != len(pixels):
            raise UserError(f"{len(pixels)} images but {len(ids)} captions: give one for each")
        return list(self._align_tokens(pixels, ids))

    @torch.no_grad()
    def _caption_pixels(
        self, images: Pixels, number: int | None = None, **options: Unpack[SearchOptions]
    ) -> list[list[Translation]]:
        """Return the `number` best captions of decoded images (N, H, W, 3), or of their feature maps (N, S, D)."""
        params = search_params(self.recipe.decode, number, **options)
        sources = self._sources(images, params.max_tokens)
        found = decode_all(self._predictor, sources, params, device=self.device, special_tokens=self._special_tokens)
        return [self._captions(hypotheses) for hypotheses in found]

    def _sources(self, images: Pixels, max_tokens: int | None) -> Sources:
        """Return images (N, H, W, 3), or their feature maps (N, S, D), as inputs to decode from."""
        rows, columns = self.model.grid
        limit = min(self._max_positions, max_tokens + 1 if max_tokens else self._max_positions)

        def collate(indices: Sequence[int]) -> Tensor:
            if isinstance(images, Tensor) and images.ndim == 3:
                return take_feature_maps(images, np.array(indices))
            return take_pixels(images, np.array(indices)).to(self.device)

        return Sources([rows * columns] * len(images), [limit] * len(images), collate)

    def _captions(self, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
        texts = self.tokenizers[0].decode([h.tokens for h in hypotheses])
        return [Translation(text, h.score, h.log_probability, h.tokens, rows=h.rows) for text, h in zip(texts, hypotheses)]

    def _align_tokens(self, pixels: Pixels, captions: Sequence[Sequence[int]]) -> Iterator[CaptionAlignment]:
        """Yield the alignment of decoded images (N, H, W, 3) with the tokens of their captions, without the end token."""
        for caption, weights in zip(captions, attention_of_rows(self, self._rows(pixels, captions), "cross")):
            yield self._align_words(caption, weights[:, :, : len(caption)])

    def _align_words(self, caption: Sequence[int], weights: np.ndarray) -> CaptionAlignment:
        """Merge sub-words into words."""
        word_ids, cells = self.tokenizers[0].word_ids(caption), range(weights.shape[-1])
        merged = np.array([[merge_words(head, word_ids, cells) for head in layer] for layer in weights])  # (L, H, T, S)
        words = self.tokenizers[0].decode([list(caption)])[0].split()
        mean = Alignment([], words, merged).view()[0] if words else merged[0, 0]
        grid = self.model.grid
        return CaptionAlignment(words, mean.reshape(-1, *grid), merged.reshape(*merged.shape[:3], *grid))

    # files and examples

    @property
    def _image_encoder(self) -> tuple[Any, Any]:
        return self.model.encoder, self.recipe.model.encoder

    def _rows(self, pixels: Pixels, captions: Sequence[Sequence[int]]) -> CaptionRows:
        return CaptionRows.from_counts(
            pixels,
            TokenStore(Ragged.from_rows(captions)),
            [1] * len(captions),
            positions=self._max_positions,
            special_tokens=self._special_tokens,
        )

    def _encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        """Return for training one row per image, with one of its captions; else one row per caption."""
        rows = CaptionRows.from_counts(
            self._images.pixels(examples),
            self._token_store(examples.texts()[0], self.tokenizers[0], training),
            [len(captions) for captions in examples.captions],
            positions=self._max_positions,
            special_tokens=self._special_tokens,
            augment=self._images.augmentation(training),
            row_per_caption=not training,
        )
        return replace(rows, with_references=training and self.recipe.train.self_critical is not None)

    def _run_frozen(self, rows: Rows) -> Rows:
        """Compute the feature map of every image once, where the encoder is frozen and training adds no noise before it."""
        settings, length = self.recipe.model.encoder, math.prod(self.model.grid)
        if (
            not isinstance(rows, CaptionRows)
            or not self._shares_feature_maps()
            or rows.augment is not None
            or (settings.kind == "patches" and self.recipe.train.regularize.has_noise)
            or not are_frozen(self.model, self.model.feature_map_modules())
            or 2 * len(rows.pixels) * length * settings.width > MAX_VECTOR_BYTES
        ):
            return rows
        images = ImageClassificationRows(rows.pixels, np.zeros(len(rows.pixels), np.int64), length)
        with in_mode(self.model, training=False):
            maps = self._images.encode(images, self.model.feature_map, length, settings.width, dtype=np.float16)
        return replace(rows, feature_maps=torch.from_numpy(maps).to(self.device))

    def _shares_feature_maps(self) -> bool:
        """Whether all models of an ensemble compute the same feature maps, as they do over the same frozen encoder."""
        if any(run.recipe.model.encoder != self.recipe.model.encoder for run in self._ensemble):
            return False
        own, *others = (run.model.feature_map_modules() for run in (self, *self._ensemble))
        return all(have_equal_weights(one, other) for modules in others for one, other in zip(own, modules))

    def _inputs(self, text: ImageInput) -> dict[str, Tensor]:
        """Return an image, and its best caption as decoder input."""
        pixels = self._images.decode([text])
        tokens = self._caption_pixels(pixels)[0][0].tokens
        return self._rows(pixels, [tokens]).batch(np.array([0]), 0, 0).inputs

    def _objective(self) -> Objective:
        """Return the cross-entropy of the captions, or the loss on the BLEU of the model's own."""
        settings = self.recipe.train
        if settings.self_critical is None:
            return super()._objective()
        return SelfCriticalLoss(
            settings.self_critical, settings.regularize, self.tokenizers[0], self._special_tokens, self._max_positions
        )

    # scores

    def _validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """Return the loss, and with `train.evaluate_sentences` the greedy BLEU-4."""
        scores = super()._validate(examples, rows)
        if number := self.recipe.train.evaluate_sentences:
            chosen = range(0, len(examples), -(-len(examples) // number))
            some, maps = examples.select(chosen), rows.feature_maps if isinstance(rows, CaptionRows) else None
            images = self._images.pixels(some) if maps is None else maps[chosen.start : chosen.stop : chosen.step]
            outputs = [found[0].text for found in self._caption_pixels(images, beam=1)]
            scores["valid_bleu"] = caption_scores(outputs, some.captions, orders=(4,), samples=2)["bleu_4"].score
        return scores

    def _outputs(self, examples: ImageExamples) -> list[str]:
        return [found[0].text for found in self._caption_pixels(self._images.pixels(examples))]

    def _score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        rows = self._run_frozen(self._evaluation_rows(examples))
        maps = rows.feature_maps if isinstance(rows, CaptionRows) else None
        outputs = self._outputs(examples) if maps is None else [found[0].text for found in self._caption_pixels(maps)]
        scores = {**caption_scores(outputs, examples.captions), "perplexity": self._rows_perplexity(rows)}
        result = EvaluationResult(name, examples, outputs, scores)
        if examples.gold:
            add_scene_scores(self, result, examples)
        return result

    def _compare(self, runs: "dict[str, CaptionRun]", examples: ImageExamples) -> list[ComparisonRow]:
        outputs = {name: run._outputs(examples) for name, run in runs.items()}
        return compare_systems(outputs, transpose_references(examples.captions))


# the world of shapes knows whether a caption is true of its image, and where the shapes are that it names


def caption_is_true(caption: str, image: shapes.ShapesImage) -> bool:
    """Whether a caption can be parsed and every statement of it is true."""
    statement = shapes.parse_caption(caption)
    return statement is not None and shapes.is_true(statement, image.scene)


def add_scene_scores(run: CaptionRun, result: EvaluationResult, examples: ImageExamples) -> None:
    """Add the fraction of true captions, and of the attention that is on what a noun phrase names."""
    result.scores["understood"] = accuracy([shapes.parse_caption(text) is not None for text in result.outputs], "understood")
    result.scores["true"] = accuracy([caption_is_true(text, gold) for text, gold in zip(result.outputs, examples.gold)], "true")
    layer, head = best_grounding_head(run)
    result.scores |= grounding_scores(
        [
            grounding_fractions(alignment, caption, gold, layer, head)
            for alignment, caption, gold in gold_alignments(run, examples)
            if caption.phrases
        ]
    )
    if run.recipe.model.kind == "transformer":
        result.notes.append(f"attention: layer {layer + 1}, head {head + 1} (chosen on validation images)")


def gold_alignments(
    run: CaptionRun, examples: ImageExamples
) -> Iterator[tuple[CaptionAlignment, shapes.GroundedCaption, shapes.ShapesImage]]:
    """Return the alignment of every gold caption of the world, the caption, and its image."""
    pairs = [(caption, row) for row, gold in enumerate(examples.gold) for caption in gold.captions]
    pixels = run._images.pixels(examples)
    ids = run.tokenizers[0].encode([caption.text for caption, _ in pairs])
    rows = np.array([row for _, row in pairs])
    alignments = run._align_tokens(
        take_pixels(pixels, rows).permute(0, 2, 3, 1), [found[: run._max_positions - 1] for found in ids]
    )
    return ((alignment, caption, examples.gold[row]) for alignment, (caption, row) in zip(alignments, pairs))


def grounding_fractions(
    alignment: CaptionAlignment, caption: shapes.GroundedCaption, gold: shapes.ShapesImage, layer: int, head: int
) -> list[tuple[float, float]]:
    """Return for each noun phrase the fraction of its attention inside its boxes, and that of uniform attention."""
    weights, size = alignment.heads[layer, head], (gold.scene.size, gold.scene.size)
    return [
        attention_in_boxes(weights[phrase.start : phrase.end], phrase.boxes, size)
        for phrase in caption.phrases
        if phrase.end <= len(weights)
    ]


def best_grounding_head(run: CaptionRun) -> tuple[int, int]:
    """Return the (layer, head) that attends most to what is named, on validation images; an LSTM has one."""
    some = run.data.valid.select(range(min(HEAD_IMAGES, len(run.data.valid))))
    found = list(gold_alignments(run, some))
    layers, heads = found[0][0].heads.shape[:2]
    if layers * heads == 1:
        return 0, 0
    return max(
        ((layer, head) for layer in range(layers) for head in range(heads)),
        key=lambda at: sum(fraction for one in found for fraction, _ in grounding_fractions(*one, *at)),
    )


CAPTION = Task(
    name="caption",
    does="captions images",
    recipe=CaptionRecipe,
    run=CaptionRun,
    models={"lstm": LstmCaptioner, "transformer": TransformerCaptioner},
    verbs=("caption", "align", "embed"),
    reads=("image",),
    searches=True,
    metrics=("valid_bleu",),
    explains="caption",
    model_sizes=lambda recipe, vocabulary: (recipe.data.height_width, vocabulary[0]),
    lengths=lambda recipe, given: (recipe.model.encoder.length(recipe.data.height_width), (given or (30, 30))[1]),
    starter=caption_recipe,
    card=TaskCard(
        uses="Captions of images like those it was trained on, and where it attends for each word. Research and teaching.",
        misuses="Recognising or judging people; telling somebody who cannot see an image what is in it, without a person who "
        "checks; passing its captions off as a person's words.",
        limits="It describes fluently what is not there, and captions any image. It repeats the biases of its training "
        "captions; images unlike its own, and details smaller than its `data.size` shows, come out badly. Where it "
        "attends is not why it wrote a word.",
        commands=("caption {} a.jpg", "caption {} a.jpg --out attention.png", "caption {} --gallery wrong.html"),
    ),
)

"""Rows of images: with a class (ViT), to caption, paired with a caption (CLIP), or as codes after a caption (DALL·E)."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard import rng
from regard.batches.augment import sample_augmentation
from regard.batches.batch import Batch, Transform, to_device
from regard.batches.image_store import Pixels, pixel_digest, take_pixels
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, decoder_inputs, decoder_labels, encoder_inputs
from regard.batches.token_store import TokenStore
from regard.corpus.decode_image import ImageTransform
from regard.corpus.examples import ImageExamples
from regard.files import cached_folder
from regard.recipe import AugmentSettings
from regard.tokens.special_tokens import BOS, DEFAULT_SPECIAL_TOKENS, SpecialTokens

CODES_LAYOUT = 1


@dataclass(frozen=True)
class GatherPixels:
    """Replace image numbers by the images on the device, and transform them."""

    pixels: Tensor
    transform: Transform | None

    def __call__(self, batch: Batch) -> Batch:
        images = self.pixels[batch.inputs["pixels"]].permute(0, 3, 1, 2)  # (B, 3, H, W)
        gathered = replace(batch, inputs={**batch.inputs, "pixels": images})
        return gathered if self.transform is None else self.transform(gathered)


@dataclass(frozen=True)
class GatherFeatureMaps:
    """Replace image numbers by their feature maps on the device."""

    feature_maps: Tensor

    def __call__(self, batch: Batch) -> Batch:
        return replace(batch, inputs={**batch.inputs, "pixels": self.feature_maps[batch.inputs["pixels"]]})


def with_pixels(
    batch: Batch, pixels: Pixels, images: np.ndarray, augment: AugmentSettings | None, seed: int, epoch: int
) -> Batch:
    """Add images to a batch's inputs, to be augmented on their device.

    Images that are on a device already are gathered later, by the thread that computes with them: what another thread launches
    there runs in an order of its own.
    """
    size = (pixels.shape[1], pixels.shape[2])
    transform = None if augment is None else sample_augmentation(augment, batch.rows, size, seed, epoch)
    if isinstance(pixels, Tensor):
        return replace(
            batch, inputs={"pixels": torch.from_numpy(images), **batch.inputs}, transform=GatherPixels(pixels, transform)
        )
    return replace(batch, inputs={"pixels": take_pixels(pixels, images), **batch.inputs}, transform=transform)


def with_feature_maps(batch: Batch, feature_maps: Tensor, images: np.ndarray) -> Batch:
    """Add feature maps to a batch's inputs in place of pixels; they are gathered on their device later, as pixels are."""
    numbers = torch.from_numpy(images)
    return replace(batch, inputs={"pixels": numbers, **batch.inputs}, transform=GatherFeatureMaps(feature_maps))


def take_feature_maps(feature_maps: Tensor, images: np.ndarray) -> Tensor:
    """Return the feature maps of some images: (B, S, D)."""
    return feature_maps[to_device(torch.from_numpy(images), feature_maps.device)]


@dataclass
class ImageClassificationRows(Rows):
    """Images and their classes."""

    pixels: Pixels
    classes: np.ndarray  # (N,)
    positions: int
    """Positions that an image takes in the model."""
    augment: AugmentSettings | None = None

    def __len__(self) -> int:
        return len(self.classes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        batch = Batch({}, torch.from_numpy(self.classes[rows]), rows)
        return with_pixels(batch, self.pixels, rows, self.augment, seed, epoch)


@dataclass
class CaptionRows(Rows):
    """Images and their captions, of which a decoder predicts the next token. A row has one image and several captions; each epoch
    uses one of them."""

    pixels: Pixels
    captions: TokenStore
    images: np.ndarray  # (N,) the image of each row
    first: np.ndarray  # (N,) its first caption
    number: np.ndarray  # (N,) its number of captions
    positions: int
    """Positions that a row takes, which batches are filled by."""
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
    augment: AugmentSettings | None = None
    feature_maps: Tensor | None = None  # (N, S, D)
    """What a frozen encoder gives for the pixels, and replaces them."""
    with_references: bool = False
    """Give every batch all captions of its images."""

    @staticmethod
    def from_counts(
        pixels: Pixels,
        captions: TokenStore,
        counts: Sequence[int],
        *,
        positions: int,
        special_tokens: SpecialTokens,
        augment: AugmentSettings | None = None,
        row_per_caption: bool = False,
    ) -> "CaptionRows":
        """Build a row for every image, or for each of its captions, from the number of captions of each image."""
        number = np.array(counts, np.int64)
        images, first = np.arange(len(number)), np.concatenate([[0], np.cumsum(number)[:-1]]).astype(np.int64)
        if row_per_caption:
            images, first = np.repeat(images, number), np.arange(number.sum())
            number = np.ones(len(first), np.int64)
        return CaptionRows(pixels, captions, images, first, number, positions, special_tokens, augment)

    def __len__(self) -> int:
        return len(self.images)

    def chosen_captions(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the caption of each row that this epoch uses."""
        number = self.number[rows].astype(np.uint64)
        chosen: np.ndarray = self.first[rows] + (rng.hash64(seed, epoch, rows) % number).astype(np.int64)
        return chosen

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        captions = self.captions.lengths(seed, epoch)[self.chosen_captions(np.arange(len(self)), seed, epoch)] + 1
        return [np.full(len(self), self.positions), captions]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        caption = self.captions.take(self.chosen_captions(rows, seed, epoch), seed, epoch)
        inputs = {"target": decoder_inputs(caption, self.special_tokens)}
        references = [self.references(row) for row in rows] if self.with_references else None
        batch = Batch(inputs, decoder_labels(caption, self.special_tokens), rows, references=references)
        if self.feature_maps is not None:
            return with_feature_maps(batch, self.feature_maps, self.images[rows])
        return with_pixels(batch, self.pixels, self.images[rows], self.augment, seed, epoch)

    def references(self, row: int) -> list[list[int]]:
        """Return the ids of all captions of a row's image."""
        captions = self.captions.deterministic().take(self.first[row] + np.arange(self.number[row]), 0, 0)
        return [captions[i].tolist() for i in range(len(captions))]

    def deterministic(self) -> "CaptionRows":
        """Return the longest caption of each image, without BPE-dropout and augmentation."""
        captions = self.captions.deterministic()
        lengths = captions.lengths(0, 0)
        longest = np.array([start + lengths[start : start + number].argmax() for start, number in zip(self.first, self.number)])
        return replace(self, captions=captions, augment=None, first=longest.astype(np.int64), number=np.ones_like(self.number))

    def truncate(self, max_length: int) -> "CaptionRows":
        return replace(self, captions=replace(self.captions, max_length=max_length - 1))


@dataclass
class ImageTextRows(Rows):
    """Images with one of their captions; the labels say which image and text of the batch belong together. Every epoch uses the
    next caption of an image, starting at one drawn by the seed.

    With hard negatives, the texts of a batch are the B captions, then B · num_negatives texts that are false of these images.
    """

    pixels: Pixels
    captions: TokenStore
    """Those of all images, one after another; then the hard negatives of all images."""
    offsets: np.ndarray  # (N + 1,)
    """The captions of image i are offsets[i] … offsets[i + 1]."""
    positions: int
    """Positions that a pair takes; the same for all, so that a batch is drawn from all pairs: if captions of similar lengths were
    grouped, what their length tells would never be learned."""
    special_tokens: SpecialTokens
    augment: AugmentSettings | None = None
    negative_offsets: np.ndarray | None = None  # (N + 1,)
    """The hard negatives of image i are negative_offsets[i] … negative_offsets[i + 1] of `captions`."""
    num_negatives: int = 0
    """Hard negatives of each image in a batch; every epoch uses the next ones."""
    image_vectors: Tensor | None = None  # (N, D)
    """What a frozen tower gives for the pixels, and replaces them."""
    text_vectors: Tensor | None = None  # (M, D)
    """What a frozen tower gives for the captions, and replaces them."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.positions)]

    def chosen_captions(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """Return the texts of a batch in this epoch: the caption of each image, then the hard negatives of each."""
        chosen = take_turns(self.offsets, rows, seed, epoch)
        if self.negative_offsets is None:
            return chosen
        return np.concatenate([chosen, take_turns(self.negative_offsets, rows, seed, epoch, self.num_negatives)])

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        texts = self.chosen_captions(rows, seed, epoch)
        if self.text_vectors is None:
            inputs = encoder_inputs(self.captions.take(texts, seed, epoch), self.special_tokens)
        else:
            inputs = {"text_vectors": self.text_vectors[texts]}
        batch = Batch(inputs, torch.arange(len(rows)), rows)
        if self.image_vectors is not None:
            return replace(batch, inputs={"image_vectors": self.image_vectors[rows], **inputs})
        return with_pixels(batch, self.pixels, rows, self.augment, seed, epoch)


def take_turns(offsets: np.ndarray, rows: np.ndarray, seed: int, epoch: int, number: int = 1) -> np.ndarray:
    """Return the next `number` of each row's own texts, offsets[row] … offsets[row + 1], in turn from epoch to epoch:
    (B · number,)."""
    count = (offsets[rows + 1] - offsets[rows]).astype(np.uint64)[:, None]
    turn = (rng.hash64(seed, rows)[:, None] % count + np.arange(number, dtype=np.uint64) + np.uint64(epoch * number)) % count
    chosen: np.ndarray = (offsets[rows][:, None] + turn.astype(np.int64)).flatten()
    return chosen


@dataclass
class TextToImageRows(Rows):
    """Captions followed by the codes of their images, of which a decoder predicts the next token. Each epoch uses one caption of
    an image, chosen by (seed, epoch, image)."""

    captions: Ragged
    """The ids of all captions, each at most `text_length` tokens."""
    offsets: np.ndarray  # (N + 1,) the captions of image i are offsets[i] … offsets[i + 1]
    codes: np.ndarray  # (N, h·w)
    vocabulary_size: int
    """Text ids; those of padding and of codes follow them."""
    text_length: int
    """Tokens that every caption is padded to."""
    vary_captions: bool = True

    def __len__(self) -> int:
        return len(self.codes)

    def lengths(self, seed: int, epoch: int) -> list[np.ndarray]:
        return [np.full(len(self), self.text_length + self.codes.shape[1])]

    def batch(self, rows: np.ndarray, seed: int, epoch: int) -> Batch:
        chosen = self.offsets[rows]
        if self.vary_captions:
            number = (self.offsets[rows + 1] - chosen).astype(np.uint64)
            chosen = chosen + (rng.hash64(seed, epoch, rows) % number).astype(np.int64)
        text = caption_prefix(self.captions.take(chosen), self.text_length, self.vocabulary_size)
        codes = torch.from_numpy(self.codes[rows].astype(np.int64)) + self.vocabulary_size + self.text_length
        tokens = torch.cat([text, codes], dim=1)  # (B, 1 + text + h·w)
        return Batch({"target": tokens[:, :-1]}, tokens[:, 1:], rows)

    def deterministic(self) -> "TextToImageRows":
        """Return every image with its first caption."""
        return replace(self, vary_captions=False)


def caption_prefix(captions: Ragged, text_length: int, vocabulary_size: int) -> Tensor:
    """Return BOS, the ids of each caption, and a padding id of its own for each position behind its end: (B, 1 + text)."""
    prefix = (vocabulary_size + torch.arange(text_length)).repeat(len(captions), 1)
    for number in range(len(captions)):
        ids = captions[number]
        prefix[number, : len(ids)] = torch.from_numpy(np.asarray(ids, np.int64))
    return torch.cat([torch.full((len(captions), 1), BOS), prefix], dim=1)


def open_image_codes(
    examples: ImageExamples, transform: ImageTransform, model_digest: str, encode: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return the codes (N, h·w) of images, memory-mapped from the cache; let the model encode them if they are not there yet."""

    def build(folder: Path) -> dict[str, int]:
        codes = encode()
        np.save(folder / "codes.npy", codes.reshape(len(codes), -1).astype(np.uint16 if codes.max() < 2**16 else np.int64))
        return {"layout": CODES_LAYOUT, "rows": len(codes)}

    key = f"codes {CODES_LAYOUT} {model_digest} {pixel_digest(examples, transform)}"
    folder = cached_folder(hashlib.sha256(key.encode()).hexdigest()[:32], build)
    codes: np.ndarray = np.load(folder / "codes.npy", mmap_mode="r")
    return codes

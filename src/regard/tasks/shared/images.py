"""Images as a user or a dataset gives them, brought to the size that a model reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from regard import distributed
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.image_store import Pixels, decode_images, move_to_device_if_fits, open_pixel_store
from regard.batches.rows import Rows
from regard.corpus.decode_image import ImageTransform, decode_image, to_rgb
from regard.corpus.examples import ImageExamples, ImageFile
from regard.errors import UserError
from regard.recipe import AugmentSettings, ImageTraining
from regard.tasks.base import Run
from regard.tasks.shared.embedding import EmbeddedText
from regard.tasks.shared.one_or_many import one_or_many

MAX_VECTOR_BYTES = 2**32
"""Largest memory for the outputs of frozen encoders; beyond it, they run in every step."""

ImageInput = str | Path | ImageFile | Image.Image | np.ndarray
"""A file, the place of its bytes in a file, or the pixels (H, W, 3)."""


class ImageReader:
    """Decodes images for one run: files and arrays to pixels (N, H, W, 3) of the size that its model reads."""

    def __init__(self, run: Run):
        self.run, self.transform = run, ImageTransform.from_data(run.recipe.data)

    @property
    def size(self) -> tuple[int, int]:
        return self.transform.size

    def resize(self, size: tuple[int, int]) -> None:
        self.transform = ImageTransform(size, size, self.transform.fit, self.transform.resample)

    def pixels(self, examples: ImageExamples) -> Pixels:
        """Return the pixels of a dataset, decoded once and cached, on the device if they fit there."""
        return move_to_device_if_fits(open_pixel_store(examples, self.transform), self.run.device)

    def decode(self, images: Sequence[ImageInput]) -> np.ndarray:
        """Return the pixels (N, H, W, 3) of a user's images."""
        if not len(images):
            return np.zeros((0, *self.size, 3), np.uint8)
        return decode_images([as_image_source(image) for image in images], self.transform)

    def rows(self, images: Sequence[ImageInput] | ImageExamples) -> ImageClassificationRows:
        """Return rows of images without labels."""
        pixels = self.pixels(images) if isinstance(images, ImageExamples) else self.decode(images)
        return ImageClassificationRows(pixels, np.zeros(len(images), np.int64), self.run._max_positions)

    def inputs(self, image: ImageInput) -> dict[str, Tensor]:
        """Return the model's inputs for one image."""
        return self.rows([image]).batch(np.array([0]), 0, 0).inputs

    @torch.no_grad()
    def embed(self, images: Sequence[ImageInput], vectors: Callable[[Tensor], Tensor]) -> list[EmbeddedText]:
        """Return the vector (1, D) of each image that `vectors` computes from the pixels of a batch."""
        found: dict[int, EmbeddedText] = {}
        for batch in self.run._batches(self.rows(images), shard=False):
            for row, vector in zip(batch.rows.tolist(), vectors(batch.inputs["pixels"]).cpu().numpy()):
                found[row] = EmbeddedText([str(images[row])], vector)
        return [found[row] for row in range(len(images))]

    @torch.no_grad()
    def encode(
        self, rows: Rows, encode: Callable[[Tensor], Tensor], *shape: int, dtype: type[np.floating[Any]] = np.float32
    ) -> np.ndarray:
        """Return what `encode` gives for the pixels of rows: (N, *shape)."""
        found = np.zeros((len(rows), *shape), dtype)
        for batch in self.run._batches(rows):
            found[batch.rows] = encode(batch.inputs["pixels"]).float().cpu().numpy()
        return distributed.all_reduce_sum(found)

    def augmentation(self, training: bool) -> AugmentSettings | None:
        """Return the recipe's augmentation for training examples, None for others."""
        train = self.run.recipe.train
        return train.augment if training and isinstance(train, ImageTraining) and train.augment.enabled else None


def are_frozen(model: nn.Module, modules: Iterable[nn.Module]) -> bool:
    """Whether training a model changes neither the weights of these modules of it nor the statistics of their batch norms."""
    parts = [part for module in modules for part in module.modules()]
    with in_mode(model, training=True):
        follow_batches = any(part.training for part in parts if isinstance(part, nn.BatchNorm2d))
    return not follow_batches and not any(p.requires_grad for part in parts for p in part.parameters(recurse=False))


def have_equal_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules of the same settings compute the same."""
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one.state_dict().values(), other.state_dict().values()))


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model into training or evaluation mode, and back."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def as_image_source(image: ImageInput) -> ImageFile | np.ndarray:
    """Return a file to decode, or the pixels of a decoded image."""
    if isinstance(image, Image.Image):
        return np.asarray(to_rgb(image))
    return image if isinstance(image, np.ndarray | ImageFile) else ImageFile(Path(image))


def open_image(image: ImageInput) -> Image.Image:
    """Return a user's image in RGB, in its own size."""
    source = as_image_source(image)
    return Image.fromarray(source) if isinstance(source, np.ndarray) else decode_image(source.read(), str(source))


def patch_grid(run: Run) -> tuple[int, int]:
    """Return the rows and columns of patches, or of the cells of a feature map, that an image is read as."""
    rows, columns = run._image_encoder[1].grid(run._images.size)
    return rows, columns


def pooled_positions(run: Run) -> tuple[int, ...] | None:
    """Return the positions that the image's vector is pooled from; None is all of them."""
    settings = run._image_encoder[1]
    return None if settings.pool == "mean" else (0, 1) if settings.distilled == "head" else (0,)


@overload
def embed_images(run: Run, images: ImageInput, *, layer: int = -1, pool: str = "mean") -> EmbeddedText: ...  # type: ignore[overload-overlap]
@overload
def embed_images(run: Run, images: Iterable[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]: ...
def embed_images(
    run: Run, images: ImageInput | Iterable[ImageInput], *, layer: int = -1, pool: str = "mean"
) -> EmbeddedText | list[EmbeddedText]:
    """Return a vector of an image, or of each image of a list, in a layer.

    It is the mean of its patches ("mean") or the class token ("cls").

    Layer 0 is the patches with their positions.
    """
    if pool not in ("mean", "cls"):
        raise UserError(f"--pool {pool}: of images, should be mean or cls")
    if pool == "cls" and run.recipe.model.pool != "class":
        raise UserError(f"--pool cls: {run.folder} reads images without a class token; use --pool mean")

    def vectors(pixels: Tensor) -> Tensor:
        layers = run.model.hidden_states(pixels)
        if not -len(layers) <= layer < len(layers):
            raise UserError(f"--layer {layer}: there are layers 0 (the patches) to {len(layers) - 1}")
        states: Tensor = layers[layer].float()
        return states[:, :1] if pool == "cls" else states[:, run.recipe.model.prefix_tokens :].mean(1, keepdim=True)

    return one_or_many(images, lambda several: run._images.embed(several, vectors))


def resize_images(run: Run, size: tuple[int, int]) -> None:
    """Read images at another size from now on; learned positions are interpolated."""
    run.model.resize(size)
    run._images.resize(size)

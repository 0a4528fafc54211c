"""Runs that read pictures: what they have in common, one that only reads, and one that says which label a picture has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from regard import distributed
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.image_store import Pixels, decode_images, move_to_device_if_fits, open_pixel_store
from regard.batches.rows import Rows
from regard.corpus.decode_image import ImageTransform, decode_image, to_rgb
from regard.corpus.examples import ImageExamples, ImageFile
from regard.errors import UserError
from regard.interop.convert import HuggingFaceFolder
from regard.models.registry import MODELS
from regard.tasks.base import EVALUATE_TOKENS, EmbeddedText, Run
from regard.tasks.classify import ClassifyRun, Prediction
from regard.training.losses import nll

ImageInput = str | Path | ImageFile | Image.Image | np.ndarray
"""A file, where its bytes lie, or the pixels themselves (H, W, 3)."""


class ImageRun(Run):
    does = "reads pictures"

    def __init__(self, folder: Path, recipe: Any, device: torch.device, huggingface: HuggingFaceFolder | None = None):
        self.frame = ImageTransform.from_data(recipe.data)
        super().__init__(folder, recipe, device, huggingface)

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return []

    def build_model(self) -> nn.Module:
        labels = [len(self.labels)] if hasattr(self, "labels") else []
        return MODELS[self.recipe.task][self.recipe.model.kind](
            self.recipe.model, self.frame.size, *labels, self.recipe.train.regularize
        )

    @property
    def longest(self) -> int:
        return self.recipe.model.length(self.frame.size)

    def sizes(self) -> dict[str, Any]:
        return {"size": list(self.frame.size)} | ({"labels": len(self.labels)} if hasattr(self, "labels") else {})

    def pixels(self, examples: ImageExamples) -> Pixels:
        """All pictures of a set, decoded, on the device if there is room."""
        return move_to_device_if_fits(open_pixel_store(examples, self.frame), self.device)

    def unlabelled(self, pictures: Sequence[ImageInput]) -> Rows:
        """Pictures as a user gives them."""
        if not len(pictures):
            return ImageClassificationRows(np.zeros((0, *self.frame.size, 3), np.uint8), np.zeros(0, np.int64), self.longest)
        return ImageClassificationRows(
            decode_images([as_image_source(one) for one in pictures], self.frame), np.zeros(len(pictures), np.int64), self.longest
        )

    @property
    def eye(self) -> tuple[Any, Any]:
        """What reads its pictures, and the settings of that."""
        return self.model.encoder, self.recipe.model

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches, or places of a map, that it sees a picture as."""
        return self.eye[1].grid(self.frame.size)

    @property
    def pooled(self) -> tuple[int, ...] | None:
        """The positions that a picture is judged by; None is all of them."""
        settings = self.eye[1]
        return None if settings.pool == "mean" else (0, 1) if settings.distilled == "head" else (0,)

    def reading(self, text: ImageInput) -> dict[str, Tensor]:
        return self.unlabelled([text]).batch(np.array([0]), 0, 0).inputs

    def embed(self, texts: Sequence[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]:
        """A vector of each picture in a layer: the mean of its patches (`mean`), or what its class token has gathered (`cls`).
        Layer 0 is the patches with their positions."""
        if pool not in ("mean", "cls"):
            raise UserError(f"--pool {pool}: of pictures, should be mean or cls")
        if pool == "cls" and self.recipe.model.pool != "class":
            raise UserError(f"--pool cls: {self.folder} reads pictures without a class token; use --pool mean")
        found: list[Any] = [None] * len(texts)
        for batch in sequential_batches(self.unlabelled(texts), EVALUATE_TOKENS):
            with torch.no_grad():
                layers = self.model.hidden_states(**batch.to(self.device).inputs)
            if not -len(layers) <= layer < len(layers):
                raise UserError(f"--layer {layer}: there are layers 0 (the patches) to {len(layers) - 1}")
            states = layers[layer].float()
            vectors = states[:, :1] if pool == "cls" else states[:, self.recipe.model.prefix_tokens :].mean(1, keepdim=True)
            for row, vector in zip(batch.rows, vectors.cpu().numpy()):
                found[row] = EmbeddedText([str(texts[row])], vector)
        return found

    def resize(self, size: tuple[int, int]) -> None:
        """Read pictures at another size from now on; learned positions are interpolated."""
        self.model.resize(size)
        self.frame = ImageTransform(size, size, self.frame.fit, self.frame.resample)


class ClassifyImagesRun(ImageRun, ClassifyRun):
    does = "classifies pictures"

    def encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:  # type: ignore[override]
        classes = np.array([self.number(label, examples, i) for i, label in enumerate(examples.label)])
        augment = self.recipe.train.augment if training and self.recipe.train.augment.enabled else None
        return ImageClassificationRows(self.pixels(examples), classes, self.longest, augment)

    def classify(self, texts: Sequence[ImageInput]) -> list[list[Prediction]]:
        """Every label of each picture, the most probable first."""
        return self.ranked(self.logits(self.unlabelled(texts)))

    def right(self, examples: ImageExamples) -> tuple[list[str], list[bool]]:  # type: ignore[override]
        said = [judgements[0].label for judgements in self.ranked(self.logits(self.encode(examples)))]
        return said, [a == b for a, b in zip(said, examples.label)]

    def validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:  # type: ignore[override]
        """The loss and the accuracy, in one go."""
        loss, right = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            there = batch.to(self.device)
            with torch.no_grad():
                logits = self.model(**there.inputs).float()
            loss += nll(logits.log_softmax(-1), there.labels).sum()
            right += (logits.argmax(-1) == there.labels).sum()
        return {
            "valid_loss": float(distributed.all_reduce_sum(loss)) / len(rows),
            "valid_accuracy": 100 * float(distributed.all_reduce_sum(right)) / len(rows),
        }


def image_from_bytes(data: bytes, name: str, most: int) -> Image.Image:
    """A picture from its bytes, of at most so many pixels."""
    return decode_image(data, name, most)


def as_image_source(picture: ImageInput) -> ImageFile | np.ndarray:
    if isinstance(picture, Image.Image):
        return np.asarray(to_rgb(picture))
    return picture if isinstance(picture, np.ndarray | ImageFile) else ImageFile(Path(picture))

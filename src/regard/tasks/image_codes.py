"""Image codes (the dVAE of DALL·E, Ramesh et al. 2021; VQ-VAE, van den Oord et al. 2017): images as grids of codes and back."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard.batches.batch import Batch
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.rows import Rows
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.models.dvae import Dvae, Reconstruction
from regard.recipe import BaseImageData, DvaeModel, ImageTraining, Recipe
from regard.scoring import psnr, reconstruction_scores
from regard.tasks.base import Run
from regard.tasks.shared.images import ImageInput
from regard.tasks.shared.one_or_many import as_several, is_one
from regard.tasks.starters.image_starters import image_codes_recipe
from regard.tasks.task import EvaluationResult, Task, TaskCard
from regard.training.losses import ReconstructionLoss

DECODE_BATCH = 256


class ImageCodesRecipe(Recipe):
    """Encode an image as a grid of codes, and reconstruct it from them."""

    task: Literal["image-codes"] = "image-codes"
    data: BaseImageData
    tokens: None = None  # type: ignore[assignment]
    """Images have none."""
    model: DvaeModel = DvaeModel()
    train: ImageTraining = ImageTraining()  # type: ignore[assignment]

    @model_validator(mode="after")
    def check_images(self) -> Self:
        step = self.model.downsampling
        for side in self.data.height_width:
            if side % step:
                raise ValueError(
                    f"data.size = {self.data.size} is not a multiple of model.downsampling = {step}: "
                    f"{max(1, round(side / step)) * step} is"
                )
        if self.model.quantizer == "vq" and self.model.codebook_update == "ema" and self.train.ema_decay:
            raise ValueError(
                "train.ema_decay: the codebook is a moving average already, and would not fit one of the other weights; "
                "set it to 0, or model.codebook_update = 'loss'"
            )
        return self


class ImageCodesRun(Run):
    """A discrete autoencoder of images."""

    def encode(self, images: ImageInput | Iterable[ImageInput]) -> np.ndarray:
        """Return the codes (h, w) of an image, or (N, h, w) of a list of images."""
        codes = self._codes(self._images.rows(as_several(images)))
        return codes[0] if is_one(images) else codes

    @torch.no_grad()
    def decode(self, codes: np.ndarray | Tensor) -> np.ndarray:
        """Return the image (H, W, 3) of codes (h, w), or the images (N, H, W, 3) of codes (N, h, w)."""
        codes, size, grid = torch.as_tensor(codes), self.recipe.model.codebook_size, self.model.grid
        if tuple(codes.shape) == grid:
            image: np.ndarray = self.decode(codes[None])[0]
            return image
        if codes.dim() != 3 or tuple(codes.shape[1:]) != grid:
            raise UserError(f"codes of the shape {tuple(codes.shape)}; images of {self.folder} have (N, {grid[0]}, {grid[1]})")
        if codes.is_floating_point() or (len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= size)):
            raise UserError(f"codes should be integers from 0 to {size - 1}")
        found = [
            self.model.decode(part.to(self.device)).permute(0, 2, 3, 1).cpu().numpy()
            for part in torch.split(codes.long(), DECODE_BATCH)
        ]
        return np.concatenate(found) if found and len(codes) else np.zeros((0, *self._images.size, 3), np.uint8)

    @torch.no_grad()
    def _codes(self, rows: Rows) -> np.ndarray:
        found = np.zeros((len(rows), *self.model.grid), np.int64)
        for batch in self._batches(rows, shard=False):
            found[batch.rows] = self.model.encode(**batch.inputs).cpu()
        return found

    def _config_sizes(self) -> dict[str, Any]:
        return {**super()._config_sizes(), "vocabularies": [self.recipe.model.codebook_size], "grid": list(self.model.grid)}

    def _encode(self, examples: ImageExamples, *, training: bool = False) -> Rows:
        labels = np.zeros(len(examples), np.int64)
        return ImageClassificationRows(
            self._images.pixels(examples), labels, self._max_positions, self._images.augmentation(training)
        )

    @torch.no_grad()
    def _reconstruct(self, rows: Rows) -> Iterator[tuple[Batch, Reconstruction, np.ndarray]]:
        """Yield batches, their reconstruction, and the mean squared error of each image, of pixels from 0 to 1 (B,)."""
        for batch in self._batches(rows, shard=False):
            made = self.model(**batch.inputs)
            difference = self.model.to_pixels(made.prediction).float() - batch.inputs["pixels"].float()
            yield batch, made, (difference / 255).square().mean((1, 2, 3)).cpu().numpy()

    def _validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """Return the reconstruction loss from hard codes, without the cost of the codes."""
        loss, errors, used = torch.zeros((), device=self.device), np.zeros(2), set()
        for batch, made, error in self._reconstruct(rows):
            loss += self.model.pixel_loss(made.prediction, batch.inputs["pixels"]).sum()
            errors += [error.sum(), len(error)]
            used.update(set(made.codes.flatten().tolist()))
        return {
            "valid_loss": float(loss) / len(rows),
            "valid_psnr": psnr(errors),
            "valid_codes_used": 100 * len(used) / self.recipe.model.codebook_size,
        }

    def _score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        errors, codes = np.zeros(len(examples)), np.zeros((len(examples), *self.model.grid), np.int64)
        for batch, made, error in self._reconstruct(self._encode(examples)):
            errors[batch.rows], codes[batch.rows] = error, made.codes.cpu()
        return EvaluationResult(name, examples, [], reconstruction_scores(errors, codes, self.recipe.model.codebook_size))


IMAGE_CODES = Task(
    name="image-codes",
    does="encodes images as codes",
    recipe=ImageCodesRecipe,
    run=ImageCodesRun,
    models={"dvae": Dvae},
    verbs=("encode", "decode"),
    reads=("image",),
    image_positions=True,
    loss=lambda run: ReconstructionLoss(),
    model_sizes=lambda recipe, vocabulary: (recipe.data.height_width,),
    lengths=lambda recipe, given: (recipe.model.length(recipe.data.height_width),) * 2,
    starter=image_codes_recipe,
    card=TaskCard(
        uses="Images like those it was trained on in few numbers, for models that generate images. Research and teaching.",
        misuses="Keeping images whose details matter; showing its reconstruction of a person's image as that person.",
        limits="A reconstruction is like the image and not the same; images unlike those it was trained on come out badly.",
        commands=("evaluate {}",),
    ),
)

"""A run that says pictures in codes, and makes them of codes again."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from regard.batches.batch import Batch
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.rows import Rows
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.models.dvae import Reconstruction
from regard.scoring.reconstruction import psnr, reconstruction_scores
from regard.tasks.base import EVALUATE_TOKENS, EmbeddedText, EvaluationResult
from regard.tasks.images import ImageInput, ImageRun
from regard.training.losses import Objective, ReconstructionLoss

AT_ONCE = 256


class ImageCodesRun(ImageRun):
    does = "says pictures in codes"

    def sizes(self) -> dict[str, Any]:
        return {**super().sizes(), "vocabularies": [self.recipe.model.codebook_size], "grid": list(self.model.grid)}

    def encode(self, examples: Any, *, training: bool = False) -> Any:
        """Of the recipe's pictures, rows to learn from. Of pictures as a user gives them, their codes (N, h, w)."""
        if isinstance(examples, ImageExamples):
            augment = self.recipe.train.augment if training and self.recipe.train.augment.enabled else None
            return ImageClassificationRows(self.pixels(examples), np.zeros(len(examples), np.int64), self.longest, augment)
        return self.codes_of(self.unlabelled(examples))

    @torch.no_grad()
    def codes_of(self, rows: Rows) -> np.ndarray:
        """The codes (N, h, w) of pictures that have their size already."""
        found = np.zeros((len(rows), *self.model.grid), np.int64)
        for batch in sequential_batches(rows, EVALUATE_TOKENS):
            found[batch.rows] = self.model.encode(**batch.to(self.device).inputs).cpu()
        return found

    @torch.no_grad()
    def decode(self, codes: Any) -> np.ndarray:
        """Pictures (N, H, W, 3) from codes (N, h, w)."""
        codes, book = torch.as_tensor(np.asarray(codes)), self.recipe.model.codebook_size
        if codes.dim() != 3 or tuple(codes.shape[1:]) != self.model.grid:
            raise UserError(
                f"codes of the shape {tuple(codes.shape)}; pictures of {self.folder} have (N, {self.model.grid[0]}, "
                f"{self.model.grid[1]})"
            )
        if codes.is_floating_point() or (len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= book)):
            raise UserError(f"codes should be whole numbers from 0 to {book - 1}")
        made = [self.model.decode(part.to(self.device)).permute(0, 2, 3, 1).cpu().numpy() for part in codes.long().split(AT_ONCE)]
        return np.concatenate(made) if made and len(codes) else np.zeros((0, *self.frame.size, 3), np.uint8)

    def objective(self) -> Objective:
        return ReconstructionLoss()

    @torch.no_grad()
    def rebuilt(self, rows: Rows) -> Iterator[tuple[Batch, Reconstruction, np.ndarray]]:
        """Batches, what is made of them, and the mean squared error of each picture, of pixels from 0 to 1 (B,)."""
        for batch in sequential_batches(rows, EVALUATE_TOKENS):
            there = batch.to(self.device)
            made = self.model(**there.inputs)
            apart = self.model.to_pixels(made.prediction).float() - there.inputs["pixels"].float()
            yield there, made, (apart / 255).square().mean((1, 2, 3)).cpu().numpy()

    def validate(self, examples: ImageExamples, rows: Rows) -> dict[str, float]:
        """From hard codes; what they cost is no part of the loss here."""
        loss, errors, used = torch.zeros((), device=self.device), np.zeros(2), set()
        for batch, made, error in self.rebuilt(rows):
            loss += self.model.pixel_loss(made.prediction, batch.inputs["pixels"]).sum()
            errors += [error.sum(), len(error)]
            used.update(made.codes.unique().tolist())
        return {
            "valid_loss": float(loss) / len(rows),
            "valid_psnr": psnr(errors),
            "valid_codes_used": 100 * len(used) / self.recipe.model.codebook_size,
        }

    def score(self, name: str, examples: ImageExamples) -> EvaluationResult:
        errors, codes = np.zeros(len(examples)), np.zeros((len(examples), *self.model.grid), np.int64)
        for batch, made, error in self.rebuilt(self.encode(examples)):
            errors[batch.rows], codes[batch.rows] = error, made.codes.cpu()
        return EvaluationResult(name, examples, [], reconstruction_scores(errors, codes, self.recipe.model.codebook_size))

    def embed(self, texts: Sequence[ImageInput], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]:
        raise UserError(f"{self.folder} says pictures in codes and has no vectors of them; in Python: run.encode(pictures)")

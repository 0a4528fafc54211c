"""Rows of images."""

import numpy as np
import torch

from regard.batches.image_rows import ImageClassificationRows
from regard.recipe import AugmentSettings


def test_images_on_a_device_are_gathered_when_the_batch_moves_there():
    """Not earlier, by a thread that prepares batches: what it launches is not ordered with the computation."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3)).astype(np.uint8)
    rows, cpu = np.array([3, 1, 17]), torch.device("cpu")
    for augment in (None, AugmentSettings(crop_padding=2, flip=True)):
        kept = ImageClassificationRows(torch.from_numpy(pixels), np.arange(20), 4, augment).batch(rows, 1, 0)
        assert kept.inputs["pixels"].tolist() == rows.tolist()
        usual = ImageClassificationRows(pixels, np.arange(20), 4, augment).batch(rows, 1, 0)
        assert torch.equal(kept.to(cpu).inputs["pixels"], usual.to(cpu).inputs["pixels"])

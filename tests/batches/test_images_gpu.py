"""Images on a GPU: stored there, augmented as on the CPU, without synchronisation. Skipped without a GPU."""

import numpy as np
import pytest
import torch

from regard.batches.image_rows import ImageClassificationRows
from regard.batches.image_store import move_to_device_if_fits
from regard.recipe import AugmentSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

GPU, CPU = torch.device("cuda"), torch.device("cpu")
EVERYTHING = AugmentSettings(
    crop_padding=2, flip=True, rand_augment={"operations": 2, "magnitude": 9}, random_erasing=0.5, mixup=0.8, cutmix=1.0
)


def image_rows(device):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 16, 24, 3)).astype(np.uint8)
    return ImageClassificationRows(move_to_device_if_fits(pixels, device), np.arange(64) % 5, 7, EVERYTHING)


def test_images_on_the_gpu_are_augmented_as_on_the_cpu():
    there, here = image_rows(GPU), image_rows(CPU)
    assert there.pixels.is_cuda and isinstance(here.pixels, np.ndarray)
    rows = np.random.default_rng(1).permutation(64)
    one, other = there.batch(rows, 1, 0).to(GPU), here.batch(rows, 1, 0).to(CPU)
    apart = (one.inputs["pixels"].cpu().int() - other.inputs["pixels"].int()).abs()
    assert apart.float().mean() < 0.5 and (apart <= 1).float().mean() > 0.95  # values near a threshold may fall on either side
    torch.testing.assert_close(one.mixture.weight.cpu(), other.mixture.weight)
    assert torch.equal(one.mixture.other.cpu(), other.mixture.other) and torch.equal(one.labels.cpu(), other.labels)


def test_batches_of_images_do_not_synchronise_the_device():
    rows = image_rows(GPU)
    rows.batch(np.arange(64), 1, 0).to(GPU)  # one-time synchronisations happen here
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows.batch(np.arange(64), 1, 1).to(GPU)
    finally:
        torch.cuda.set_sync_debug_mode("default")

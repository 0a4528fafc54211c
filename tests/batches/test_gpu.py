"""Pictures on a GPU: kept there, changed there as on a CPU, nothing waits for it; skipped, and said so, where there is none."""

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


def pictures(device):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 16, 24, 3)).astype(np.uint8)
    return ImageClassificationRows(move_to_device_if_fits(pixels, device), np.arange(64) % 5, 7, EVERYTHING)


def test_they_are_kept_there_and_changed_as_here():
    there, here = pictures(GPU), pictures(CPU)
    assert there.pixels.is_cuda and isinstance(here.pixels, np.ndarray)
    rows = np.random.default_rng(1).permutation(64)
    one, other = there.batch(rows, 1, 0).to(GPU), here.batch(rows, 1, 0).to(CPU)
    apart = (one.inputs["pixels"].cpu().int() - other.inputs["pixels"].int()).abs()
    assert apart.float().mean() < 0.5 and (apart <= 1).float().mean() > 0.95  # a threshold may fall on either side
    torch.testing.assert_close(one.mixture.weight.cpu(), other.mixture.weight)
    assert torch.equal(one.mixture.other.cpu(), other.mixture.other) and torch.equal(one.labels.cpu(), other.labels)


def test_nothing_waits_for_the_device():
    rows = pictures(GPU)
    rows.batch(np.arange(64), 1, 0).to(GPU)  # whatever waits once may do so now
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows.batch(np.arange(64), 1, 1).to(GPU)
    finally:
        torch.cuda.set_sync_debug_mode("default")

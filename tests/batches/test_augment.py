"""Augmentation: a pure function of (seed, epoch, batch); each operation equals its reference; none in evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from regard.batches.augment import (
    OPERATIONS,
    Augmentation,
    rand_augment,
    random_rectangles,
    sample_augmentation,
    shift_and_flip,
)
from regard.batches.batch import Batch
from regard.batches.batches import Batches, sequential_batches
from regard.batches.image_rows import ImageClassificationRows
from regard.recipe import AugmentSettings

H, W = 16, 24
EVERYTHING = AugmentSettings(
    crop_padding=2, flip=True, rand_augment={"operations": 2, "magnitude": 9}, random_erasing=0.5, mixup=0.8, cutmix=1.0
)
CPU = torch.device("cpu")


def image_rows(number=40, augment=EVERYTHING):
    pixels = np.random.default_rng(0).integers(0, 256, (number, H, W, 3)).astype(np.uint8)
    return ImageClassificationRows(pixels, np.arange(number) % 5, 7, augment)


def same(one, other):
    return (
        torch.equal(one.inputs["pixels"], other.inputs["pixels"])
        and (one.mixture is None) == (other.mixture is None)
        and (
            one.mixture is None
            or (torch.equal(one.mixture.weight, other.mixture.weight) and torch.equal(one.mixture.other, other.mixture.other))
        )
    )


def test_augmentation_is_a_pure_function_of_seed_epoch_and_batch():
    def at(seed, epoch, index):
        torch.manual_seed(np.random.randint(1000))  # other random draws must not matter
        return Batches(image_rows(), 7 * 8, seed).batch(epoch, index).to(CPU)

    assert same(at(1, 2, 3), at(1, 2, 3))
    for other in ((1, 2, 4), (1, 3, 3), (2, 2, 3)):
        assert not torch.equal(at(1, 2, 3).inputs["pixels"], at(*other).inputs["pixels"])
    one, other = (sample_augmentation(EVERYTHING, np.arange(begin, begin + 8), (H, W), 1, 0) for begin in (0, 8))
    assert not np.array_equal(one.shifts, other.shifts) and not np.array_equal(one.weights, other.weights)
    rows = np.arange(8)
    first, second = (image_rows().batch(rows, 1, epoch).to(CPU) for epoch in (0, 1))
    assert not same(first, second), "the same images are augmented anew in every epoch"


@pytest.mark.parametrize("workers", [1, 3])
def test_augmentation_is_independent_of_the_number_of_workers(workers):
    alone = Batches(image_rows(), 7 * 8, 1).iterate(12, workers=0)
    helped = Batches(image_rows(), 7 * 8, 1).iterate(12, workers=workers)
    for (e, i, a), (f, j, b) in zip(alone, helped, strict=True):
        assert (e, i) == (f, j) and same(a.to(CPU), b.to(CPU))


def test_evaluation_does_not_augment_images():
    rows = image_rows()
    for batch in sequential_batches(rows, 7 * 8):
        there = batch.to(CPU)
        assert there.mixture is None
        assert np.array_equal(there.inputs["pixels"].permute(0, 2, 3, 1).numpy(), rows.pixels[batch.rows])


def test_augmentation_under_autocast_is_the_same():
    batch = image_rows().batch(np.arange(40), 1, 0)
    plain = batch.to(CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(plain, batch.to(CPU))


@given(st.integers(-3, 3), st.integers(-3, 3), st.booleans())
def test_shift_and_flip_equals_slicing(down, across, flip):
    x = torch.randint(1, 256, (2, 3, 5, 6), dtype=torch.uint8)
    found = shift_and_flip(x, torch.tensor([[down, across], [0, 0]]), torch.tensor([flip, False]))
    expected = torch.zeros(3, 5 + 6, 6 + 6, dtype=torch.uint8)
    expected[:, 3 + down : 8 + down, 3 + across : 9 + across] = x[0].flip(2) if flip else x[0]
    assert torch.equal(found[0], expected[:, 3:8, 3:9]) and torch.equal(found[1], x[1])


PIXELS = np.stack(
    [
        np.asarray(
            Image.fromarray(np.random.default_rng(1).integers(0, 220, (4, 6, 3)).astype(np.uint8)).resize(
                (W, H), Image.Resampling.BICUBIC
            )
        ),
        np.random.default_rng(2).integers(30, 200, (H, W, 3)).astype(np.uint8),
    ]
)
MAGNITUDES = [0.6, -0.8]


def affine(across, down):
    """Return Pillow's affine transform of a map from each pixel to its source, both counted from the centre."""

    def change(image, magnitude):
        (a, b, c), (d, e, f) = across(magnitude), down(magnitude)
        x, y = image.width / 2, image.height / 2
        data = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)

    return change


def enhanced(kind):
    return lambda image, magnitude: kind(image).enhance(1 + 0.9 * magnitude)


PILLOW = {
    "identity": lambda image, magnitude: image,
    "shear x": affine(lambda magnitude: (1, 0.3 * magnitude, 0), lambda magnitude: (0, 1, 0)),
    "shear y": affine(lambda magnitude: (1, 0, 0), lambda magnitude: (0.3 * magnitude, 1, 0)),
    "translate x": affine(lambda magnitude: (1, 0, 0.45 * magnitude * W), lambda magnitude: (0, 1, 0)),
    "translate y": affine(lambda magnitude: (1, 0, 0), lambda magnitude: (0, 1, 0.45 * magnitude * H)),
    "rotate": lambda image, magnitude: image.rotate(30 * magnitude, Image.Resampling.BILINEAR, fillcolor=(128,) * 3),
    "brightness": enhanced(ImageEnhance.Brightness),
    "contrast": enhanced(ImageEnhance.Contrast),
    "colour": enhanced(ImageEnhance.Color),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "solarize": lambda image, magnitude: ImageOps.solarize(image, 256 * (1 - abs(magnitude))),
    "posterize": lambda image, magnitude: ImageOps.posterize(image, 8 - round(4 * abs(magnitude))),
    "autocontrast": lambda image, magnitude: ImageOps.autocontrast(image),
    "equalize": lambda image, magnitude: ImageOps.equalize(image),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_randaugment_operation_equals_pillows(name):
    x = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float()
    found = rand_augment(x, np.full(2, OPERATIONS.index(name)), np.array(MAGNITUDES)).round().permute(0, 2, 3, 1).numpy()
    expected = np.stack(
        [np.asarray(PILLOW[name](Image.fromarray(one), magnitude)) for one, magnitude in zip(PIXELS, MAGNITUDES)]
    ).astype(float)
    apart = np.abs(found - expected)
    geometric = name in ("shear x", "shear y", "translate x", "translate y", "rotate")
    assert np.median(apart) <= 1 and (apart <= 1).mean() > (0.9 if geometric else 0.999999)  # borders are blended with grey
    assert (name == "identity") == np.array_equal(found, PIXELS)
    assert name not in ("equalize", "posterize", "solarize") or not apart.any()


def test_operations_applied_together_equal_one_image_at_a_time():
    """Images with the same operation are processed together; each result is the same as alone."""
    x = torch.from_numpy(image_rows().pixels).permute(0, 3, 1, 2).float()
    generator = np.random.default_rng(3)
    which, magnitude = generator.integers(len(OPERATIONS), size=40), generator.uniform(-1, 1, 40)
    together = rand_augment(x, which, magnitude)
    for i in range(40):
        alone = rand_augment(x[i : i + 1], which[i : i + 1], magnitude[i : i + 1])[0]
        torch.testing.assert_close(together[i], alone, atol=1e-3, rtol=0, msg=OPERATIONS[which[i]])
    again = Augmentation(operations=[(which, magnitude)])(Batch({"pixels": x.to(torch.uint8)}, torch.zeros(40), np.arange(40)))
    assert torch.equal(again.inputs["pixels"], together.round().clamp(0, 255).to(torch.uint8))


def augment_all(augment, number=40):
    rows = image_rows(number, augment)
    before = torch.from_numpy(rows.pixels).permute(0, 3, 1, 2)
    return before, rows.batch(np.arange(number), 1, 0).to(CPU)


def test_random_erasing_fills_a_rectangle_with_one_colour():
    before, batch = augment_all(AugmentSettings(random_erasing=0.7), 200)
    touched = (batch.inputs["pixels"] != before).any(1)  # (B, H, W)
    assert 0.6 < touched.any((1, 2)).float().mean() < 0.8 and batch.mixture is None
    for mask, after in zip(touched[touched.any((1, 2))], batch.inputs["pixels"][touched.any((1, 2))]):
        down, across = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
        inside = after[:, down[0] : down[-1] + 1, across[0] : across[-1] + 1]
        assert (inside == inside[:, :1, :1]).all() and inside.numel() <= 3 * (H * W / 3 + H + W)


def test_mixup_blends_images_and_labels_with_the_same_weight():
    before, batch = augment_all(AugmentSettings(mixup=1.0))
    share, after = batch.mixture.weight, batch.inputs["pixels"]
    partners = image_rows(augment=AugmentSettings(mixup=1.0)).batch(np.arange(40), 1, 0).transform.partners
    expected = share[:, None, None, None] * before + (1 - share)[:, None, None, None] * before[torch.from_numpy(partners)]
    assert (after - expected).abs().max() <= 0.501 and share.std() > 0.1
    assert torch.equal(batch.mixture.other, batch.labels[torch.from_numpy(partners)])
    assert torch.equal(batch.labels, torch.arange(40) % 5) and batch.label_count() == 40


def test_cutmix_weights_labels_by_the_visible_area():
    before, batch = augment_all(AugmentSettings(cutmix=1.0))
    partners = torch.from_numpy(image_rows(augment=AugmentSettings(cutmix=1.0)).batch(np.arange(40), 1, 0).transform.partners)
    after, strangers = batch.inputs["pixels"], before[partners]
    mine, theirs = (after == before).all(1), (after == strangers).all(1)  # (B, H, W)
    assert (mine | theirs).all()
    for i in (partners != torch.arange(40)).nonzero()[:, 0].tolist():
        assert float(batch.mixture.weight[i]) == pytest.approx(float(mine[i].float().mean()), abs=0.02)


def test_mixup_and_cutmix_each_get_half_of_the_images():
    drawn = sample_augmentation(AugmentSettings(mixup=0.5, cutmix=0.5), np.arange(1000), (H, W), 1, 0)
    cut = (drawn.cuts[:, 2] > drawn.cuts[:, 0]) & (drawn.cuts[:, 3] > drawn.cuts[:, 1])
    assert 0.4 < cut.mean() < 0.55 and 0.45 < (drawn.weights == 1).mean() < 0.55
    assert not cut[drawn.weights < 1].any()


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
def test_images_that_are_not_mixed_keep_pixels_and_labels(method):
    always, sometimes = (
        image_rows(augment=AugmentSettings(**{method: 1.0}, mix_probability=p)).batch(np.arange(40), 1, 0) for p in (1.0, 0.25)
    )
    before, after = sometimes.inputs["pixels"], sometimes.transform(sometimes)
    weight, mixed_always = after.mixture.weight, always.transform(always)
    unmixed = weight == 1
    assert 0.6 < unmixed.float().mean() < 0.9
    assert torch.equal(after.inputs["pixels"][unmixed], before[unmixed])
    assert torch.equal(weight[~unmixed], mixed_always.mixture.weight[~unmixed])
    assert torch.equal(after.inputs["pixels"][~unmixed], mixed_always.inputs["pixels"][~unmixed])
    with pytest.raises(ValueError, match="needs mixup or cutmix"):
        AugmentSettings(flip=True, mix_probability=0.5)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_random_rectangles_lie_inside_the_image(height, width, seed):
    generator = np.random.default_rng(seed)
    top, left, bottom, right = random_rectangles(
        generator, generator.random(20), (height, width), generator.uniform(0.3, 3, 20)
    ).T
    assert (top >= 0).all() and (top <= bottom).all() and (bottom <= height).all()
    assert (left >= 0).all() and (left <= right).all() and (right <= width).all()


def test_no_settings_and_magnitude_zero_leave_images_unaugment_all():
    assert not AugmentSettings().enabled and EVERYTHING.enabled
    before, batch = augment_all(AugmentSettings(rand_augment={"magnitude": 0.0}))
    same = (batch.inputs["pixels"] == before).all((1, 2, 3))
    assert 0.4 < same.float().mean() < 0.99  # equalize has no magnitude

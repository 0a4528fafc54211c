"""What is done to pictures in training: a pure function of (seed, epoch, batch); each part what it says; none in evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from regard.batches.augment import Augmentation, random_rectangles, sample_augmentation, shift_and_flip
from regard.batches.batch import Batch
from regard.batches.batches import Batches, sequential_batches
from regard.batches.image_rows import ImageClassificationRows
from regard.batches.randaugment import OPERATIONS, rand_augment
from regard.recipe import AugmentSettings

H, W = 16, 24
EVERYTHING = AugmentSettings(
    crop_padding=2, flip=True, rand_augment={"operations": 2, "magnitude": 9}, random_erasing=0.5, mixup=0.8, cutmix=1.0
)
CPU = torch.device("cpu")


def pictures(number=40, augment=EVERYTHING):
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


def test_the_same_place_is_the_same_and_another_is_another():
    def at(seed, epoch, index):
        torch.manual_seed(np.random.randint(1000))  # whatever else was drawn
        return Batches(pictures(), 7 * 8, seed).batch(epoch, index).to(CPU)

    assert same(at(1, 2, 3), at(1, 2, 3))
    for other in ((1, 2, 4), (1, 3, 3), (2, 2, 3)):
        assert not torch.equal(at(1, 2, 3).inputs["pixels"], at(*other).inputs["pixels"])
    one, other = (sample_augmentation(EVERYTHING, np.arange(begin, begin + 8), (H, W), 1, 0) for begin in (0, 8))
    assert not np.array_equal(one.shifts, other.shifts) and not np.array_equal(one.weights, other.weights)
    rows = np.arange(8)
    first, second = (pictures().batch(rows, 1, epoch).to(CPU) for epoch in (0, 1))
    assert not same(first, second), "the same pictures are changed anew in every epoch"


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(workers):
    alone = Batches(pictures(), 7 * 8, 1).iterate(12, workers=0)
    helped = Batches(pictures(), 7 * 8, 1).iterate(12, workers=workers)
    for (e, i, a), (f, j, b) in zip(alone, helped, strict=True):
        assert (e, i) == (f, j) and same(a.to(CPU), b.to(CPU))


def test_evaluation_sees_pictures_as_they_are():
    rows = pictures()
    for batch in sequential_batches(rows, 7 * 8):
        there = batch.to(CPU)
        assert there.mixture is None
        assert np.array_equal(there.inputs["pixels"].permute(0, 2, 3, 1).numpy(), rows.pixels[batch.rows])


def test_carried_out_in_reduced_precision_nothing_changes():
    batch = pictures().batch(np.arange(40), 1, 0)
    plain = batch.to(CPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(plain, batch.to(CPU))


@given(st.integers(-3, 3), st.integers(-3, 3), st.booleans())
def test_moved_and_turned_around(down, across, flip):
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
FAR = [0.6, -0.8]


def affine(across, down):
    """What Pillow makes of a map from each place to where it comes from, both from the middle."""

    def change(image, far):
        (a, b, c), (d, e, f) = across(far), down(far)
        x, y = image.width / 2, image.height / 2
        data = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)

    return change


def enhanced(kind):
    return lambda image, far: kind(image).enhance(1 + 0.9 * far)


PILLOW = {
    "identity": lambda image, far: image,
    "shear x": affine(lambda far: (1, 0.3 * far, 0), lambda far: (0, 1, 0)),
    "shear y": affine(lambda far: (1, 0, 0), lambda far: (0.3 * far, 1, 0)),
    "translate x": affine(lambda far: (1, 0, 0.45 * far * W), lambda far: (0, 1, 0)),
    "translate y": affine(lambda far: (1, 0, 0), lambda far: (0, 1, 0.45 * far * H)),
    "rotate": lambda image, far: image.rotate(30 * far, Image.Resampling.BILINEAR, fillcolor=(128,) * 3),
    "brightness": enhanced(ImageEnhance.Brightness),
    "contrast": enhanced(ImageEnhance.Contrast),
    "colour": enhanced(ImageEnhance.Color),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "solarize": lambda image, far: ImageOps.solarize(image, 256 * (1 - abs(far))),
    "posterize": lambda image, far: ImageOps.posterize(image, 8 - round(4 * abs(far))),
    "autocontrast": lambda image, far: ImageOps.autocontrast(image),
    "equalize": lambda image, far: ImageOps.equalize(image),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_change_is_pillows(name):
    x = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float()
    found = rand_augment(x, np.full(2, OPERATIONS.index(name)), np.array(FAR)).round().permute(0, 2, 3, 1).numpy()
    expected = np.stack([np.asarray(PILLOW[name](Image.fromarray(one), far)) for one, far in zip(PIXELS, FAR)]).astype(float)
    apart = np.abs(found - expected)
    geometric = name in ("shear x", "shear y", "translate x", "translate y", "rotate")
    assert np.median(apart) <= 1 and (apart <= 1).mean() > (0.9 if geometric else 0.999999)  # borders are mixed with grey
    assert (name == "identity") == np.array_equal(found, PIXELS)
    assert name not in ("equalize", "posterize", "solarize") or not apart.any()


def test_every_picture_has_its_own_change():
    """Those with the same change are done together; each comes out as if it had been alone."""
    x = torch.from_numpy(pictures().pixels).permute(0, 3, 1, 2).float()
    chance = np.random.default_rng(3)
    which, far = chance.integers(len(OPERATIONS), size=40), chance.uniform(-1, 1, 40)
    together = rand_augment(x, which, far)
    for i in range(40):
        alone = rand_augment(x[i : i + 1], which[i : i + 1], far[i : i + 1])[0]
        torch.testing.assert_close(together[i], alone, atol=1e-3, rtol=0, msg=OPERATIONS[which[i]])
    again = Augmentation(operations=[(which, far)])(Batch({"pixels": x.to(torch.uint8)}, torch.zeros(40), np.arange(40)))
    assert torch.equal(again.inputs["pixels"], together.round().clamp(0, 255).to(torch.uint8))


def changed(augment, number=40):
    rows = pictures(number, augment)
    before = torch.from_numpy(rows.pixels).permute(0, 3, 1, 2)
    return before, rows.batch(np.arange(number), 1, 0).to(CPU)


def test_what_is_erased_is_a_rectangle_of_one_colour():
    before, batch = changed(AugmentSettings(random_erasing=0.7), 200)
    touched = (batch.inputs["pixels"] != before).any(1)  # (B, H, W)
    assert 0.6 < touched.any((1, 2)).float().mean() < 0.8 and batch.mixture is None
    for mask, after in zip(touched[touched.any((1, 2))], batch.inputs["pixels"][touched.any((1, 2))]):
        down, across = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
        inside = after[:, down[0] : down[-1] + 1, across[0] : across[-1] + 1]
        assert (inside == inside[:, :1, :1]).all() and inside.numel() <= 3 * (H * W / 3 + H + W)


def test_mixup_blends_pictures_and_labels_alike():
    before, batch = changed(AugmentSettings(mixup=1.0))
    share, after = batch.mixture.weight, batch.inputs["pixels"]
    partners = pictures(augment=AugmentSettings(mixup=1.0)).batch(np.arange(40), 1, 0).transform.partners
    expected = share[:, None, None, None] * before + (1 - share)[:, None, None, None] * before[torch.from_numpy(partners)]
    assert (after - expected).abs().max() <= 0.501 and share.std() > 0.1
    assert torch.equal(batch.mixture.other, batch.labels[torch.from_numpy(partners)])
    assert torch.equal(batch.labels, torch.arange(40) % 5) and batch.label_count() == 40


def test_cutmix_shares_labels_by_what_is_seen_of_each_picture():
    before, batch = changed(AugmentSettings(cutmix=1.0))
    partners = torch.from_numpy(pictures(augment=AugmentSettings(cutmix=1.0)).batch(np.arange(40), 1, 0).transform.partners)
    after, strangers = batch.inputs["pixels"], before[partners]
    mine, theirs = (after == before).all(1), (after == strangers).all(1)  # (B, H, W)
    assert (mine | theirs).all()
    for i in (partners != torch.arange(40)).nonzero()[:, 0].tolist():
        assert float(batch.mixture.weight[i]) == pytest.approx(float(mine[i].float().mean()), abs=0.02)


def test_both_have_half_of_the_pictures_each():
    drawn = sample_augmentation(AugmentSettings(mixup=0.5, cutmix=0.5), np.arange(1000), (H, W), 1, 0)
    cut = (drawn.cuts[:, 2] > drawn.cuts[:, 0]) & (drawn.cuts[:, 3] > drawn.cuts[:, 1])
    assert 0.4 < cut.mean() < 0.55 and 0.45 < (drawn.weights == 1).mean() < 0.55
    assert not cut[drawn.weights < 1].any()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_rectangles_lie_inside(height, width, seed):
    chance = np.random.default_rng(seed)
    top, left, bottom, right = random_rectangles(chance, chance.random(20), (height, width), chance.uniform(0.3, 3, 20)).T
    assert (top >= 0).all() and (top <= bottom).all() and (bottom <= height).all()
    assert (left >= 0).all() and (left <= right).all() and (right <= width).all()


def test_nothing_asked_for_is_nothing_done():
    assert not AugmentSettings().enabled and EVERYTHING.enabled
    before, batch = changed(AugmentSettings(rand_augment={"magnitude": 0.0}))
    same = (batch.inputs["pixels"] == before).all((1, 2, 3))
    assert 0.4 < same.float().mean() < 0.99  # evened histograms know no magnitude

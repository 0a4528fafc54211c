"""Images with captions: one caption per epoch in training, every caption in evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import Batches
from regard.batches.image_rows import CaptionRows
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.recipe import AugmentSettings
from regard.tokens.special_tokens import BOS, DEFAULT_SPECIAL_TOKENS, EOS

CAPTIONS = [[[10], [11, 12, 13], [14, 15]], [[20]], [[30, 31], [32]]]
PIXELS = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)


def rows(**options):
    flat = [caption for captions in CAPTIONS for caption in captions]
    numbers = [len(captions) for captions in CAPTIONS]
    return CaptionRows.from_counts(
        PIXELS, TokenStore(Ragged.from_rows(flat)), numbers, positions=8, special_tokens=DEFAULT_SPECIAL_TOKENS, **options
    )


def captions_of(batch):
    return [[token for token in labels.tolist() if token != IGNORE_INDEX][:-1] for labels in batch.labels]


def test_batches_have_all_captions_of_their_images_as_references():
    batch = replace(rows(), with_references=True).batch(np.array([2, 0]), 7, 0)
    assert batch.references == batch.to(torch.device("cpu")).references == [CAPTIONS[2], CAPTIONS[0]]
    assert rows().batch(np.array([2, 0]), 7, 0).references is None


def test_each_epoch_uses_one_caption_per_image_and_in_time_all():
    found, seen = rows(), [set(), set(), set()]
    for epoch in range(40):
        batch = found.batch(np.arange(3), 7, epoch)
        assert captions_of(batch) == captions_of(rows().batch(np.arange(3), 7, epoch)), "a pure function of seed and epoch"
        for image, caption in enumerate(captions_of(batch)):
            assert caption in CAPTIONS[image]
            seen[image].add(tuple(caption))
        lengths = found.lengths(7, epoch)
        assert lengths[0].tolist() == [8] * 3 and lengths[1].tolist() == [len(caption) + 1 for caption in captions_of(batch)]
    assert [len(captions) for captions in seen] == [3, 1, 2]
    assert any(captions_of(rows().batch(np.arange(3), 8, e)) != captions_of(rows().batch(np.arange(3), 7, e)) for e in range(5))


def test_a_caption_row_is_independent_of_its_batch():
    together = captions_of(rows().batch(np.array([2, 0, 1]), 1, 3))
    assert together == [captions_of(rows().batch(np.array([row]), 1, 3))[0] for row in (2, 0, 1)]


def test_row_per_caption_has_every_caption_of_every_image():
    found = rows(row_per_caption=True)
    batch = found.batch(np.arange(len(found)), 0, 0)
    assert captions_of(batch) == [caption for captions in CAPTIONS for caption in captions]
    owners = [image for image, captions in enumerate(CAPTIONS) for _ in captions]
    for pixels, image, target, labels in zip(batch.inputs["pixels"], owners, batch.inputs["target"], batch.labels):
        assert (pixels.permute(1, 2, 0).numpy() == PIXELS[image]).all()
        assert target[0] == BOS and EOS in labels


@pytest.mark.parametrize("row_per_caption", [False, True])
def test_rows_with_feature_maps_have_the_map_of_their_image_and_the_same_captions(row_per_caption):
    maps = torch.arange(3.0)[:, None, None].expand(3, 2, 4).half()
    plain, found = rows(row_per_caption=row_per_caption), replace(rows(row_per_caption=row_per_caption), feature_maps=maps)
    some = np.arange(len(found))[::-1].copy()
    batch, expected = found.batch(some, 7, 2).to(torch.device("cpu")), plain.batch(some, 7, 2)
    assert set(batch.inputs) == {"pixels", "target"} and batch.inputs["target"].equal(expected.inputs["target"])
    assert batch.inputs["pixels"].equal(maps[plain.images[some]]) and batch.labels.equal(expected.labels)


def test_deterministic_rows_use_the_longest_caption():
    assert captions_of(rows().deterministic().batch(np.arange(3), 5, 9)) == [[11, 12, 13], [20], [30, 31]]
    assert captions_of(rows().deterministic().truncate(3).batch(np.arange(3), 5, 9)) == [[11, 12], [20], [30, 31]]


def test_caption_batches_count_images_and_training_augments_them():
    plan = Batches(rows(), 2 * 8, 1).plan(0)
    assert sorted(map(len, plan)) == [1, 2]
    augmented = rows(augment=AugmentSettings(crop_padding=2))
    changed, plain = (one.batch(np.arange(3), 1, 0).to(torch.device("cpu")) for one in (augmented, augmented.deterministic()))
    assert (changed.inputs["pixels"] != plain.inputs["pixels"]).any()
    with pytest.raises(IndexError):
        rows().batch(np.array([3]), 0, 0)

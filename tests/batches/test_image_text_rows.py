"""Images with one of their captions: which one is a pure function of seed and epoch."""

import numpy as np
import torch

from regard.batches.batches import Batches, sequential_batches
from regard.batches.image_rows import ImageTextRows
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.recipe import AugmentSettings
from regard.tokens.special_tokens import BOS_AND_EOS

COUNTS = [1, 2, 3, 5, 5, 4, 1, 2, 3]


def rows(augment=None, negatives=0):
    """A caption repeats its number, and each image has its own colour. Hard negatives, 6 of each image, follow the captions."""
    first = np.cumsum([0, *COUNTS])
    false = first[-1] + np.arange(0, 6 * len(COUNTS) + 1, 6) if negatives else None
    captions = Ragged.from_rows([[10 + i] * (1 + i % 4) for i in range(false[-1] if negatives else first[-1])])
    pixels = np.broadcast_to(np.arange(len(COUNTS), dtype=np.uint8)[:, None, None, None], (len(COUNTS), 4, 4, 3)).copy()
    return ImageTextRows(pixels, TokenStore(captions), first, 20, BOS_AND_EOS, augment, false, negatives)


def test_each_image_has_one_of_its_captions_and_in_time_all():
    made, seen = rows(), [set() for _ in COUNTS]
    for epoch in range(max(COUNTS)):
        batch = made.batch(np.arange(len(COUNTS)), 1, epoch)
        for i, (ids, length) in enumerate(zip(batch.inputs["source"], batch.inputs["lengths"])):
            assert ids[0] == 1 and ids[length - 1] == 2 and len(set(ids[1 : length - 1].tolist())) == 1
            seen[i].add(int(ids[1]) - 10)
            assert batch.inputs["pixels"][i].unique().tolist() == [i]
    assert [sorted(found) for found in seen] == [list(range(a, b)) for a, b in zip(made.offsets, made.offsets[1:])]


def test_the_caption_depends_only_on_seed_and_epoch():
    made = rows()
    whole, part = made.batch(np.arange(9), 3, 2), made.batch(np.array([7, 4]), 3, 2)
    for name in ("source", "lengths", "pixels"):
        width = part.inputs["source"].size(1)
        expected = whole.inputs[name][[7, 4]]
        assert torch.equal(part.inputs[name], expected[:, :width] if name == "source" else expected)
    assert not torch.equal(made.batch(np.arange(9), 4, 2).inputs["source"], whole.inputs["source"])


def test_batches_are_drawn_from_all_pairs_and_labels_are_row_numbers():
    batches = Batches(rows(), 4 * 20, 1)
    sizes = sorted(len(found) for found in batches.plan(0))
    assert sizes == [1, 4, 4]
    assert batches.batch(0, 0).labels.tolist() == list(range(len(batches.plan(0)[0])))
    lengths = [set(batches.batch(epoch, i).inputs["lengths"].tolist()) for epoch in range(3) for i in range(3)]
    assert any(len(found) > 1 for found in lengths)  # not sorted by length


def test_evaluation_has_no_augmentation_and_fixed_captions():
    made = rows(AugmentSettings(crop_padding=2, flip=True))
    one, other = list(sequential_batches(made, 60)), list(sequential_batches(made, 60))
    assert all(torch.equal(a.inputs["pixels"], b.inputs["pixels"]) and a.transform is None for a, b in zip(one, other))
    assert made.batch(np.arange(4), 1, 1).transform is not None


def test_hard_negatives_follow_the_captions_and_are_used_in_turn():
    made, plain, seen = rows(negatives=2), rows(), [[] for _ in COUNTS]
    for epoch in range(3):
        batch, without = made.batch(np.arange(9), 1, epoch), plain.batch(np.arange(9), 1, epoch)
        assert torch.equal(batch.inputs["source"][:9, :2], without.inputs["source"][:, :2]), "the same captions as without"
        assert len(batch.inputs["source"]) == len(batch.inputs["lengths"]) == 9 + 9 * 2
        assert len(batch.labels) == batch.label_count() == 9 and torch.equal(batch.inputs["pixels"], without.inputs["pixels"])
        for i, number in enumerate(batch.inputs["source"][9:, 1].tolist()):
            seen[i // 2].append(number - 10)
    assert [sorted(found) for found in seen] == [
        list(range(a, b)) for a, b in zip(made.negative_offsets, made.negative_offsets[1:])
    ]

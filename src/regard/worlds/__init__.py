"""Embedded data sets with exact annotations: a bilingual grammar, images of shapes, algorithms."""

import hashlib

SPLITS = {"train": 14, "valid": 1, "test": 1}  # of sixteen examples


def assign_split(text: str) -> str:
    """Return the split of an example by its text alone: no seed and no number puts a test example into train.

    Of sixteen examples one is in valid, one in test, and the others in train.
    """
    bucket = hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16
    return {0: "valid", 1: "test"}.get(bucket, "train")

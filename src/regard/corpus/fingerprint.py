"""The fingerprint of a set of examples, a hash of their content and order wherever they come from; and hashes of single ones."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

import numpy as np

from regard.corpus.examples import Examples, ImageExamples, TaskMixture, TextLines

EXAMPLES_PER_CALL = 20_000
HASH_BYTES, HASH_TYPE = 8, np.dtype("<u8")
NOT_CONTENT = ("name", "lines", "places", "gold")
"""Fields that say where an example is, and annotations of which training knows nothing."""


def fingerprint(examples: Examples | TaskMixture) -> str:
    """Return the SHA-256 of all examples in their order: texts, labels, images. File names and compression do not matter."""
    digest = hashlib.sha256(type(examples).__name__.encode())
    for name, values in _content(examples):
        digest.update(f"\n{name}\n".encode())
        rows = list(values)
        for start in range(0, len(rows), EXAMPLES_PER_CALL):
            digest.update(json.dumps(rows[start : start + EXAMPLES_PER_CALL]).encode())
    return digest.hexdigest()


def _content(examples: Examples | TaskMixture) -> Iterable[tuple[str, Iterable[object]]]:
    """Yield the name and the values of every field that training depends on."""
    if isinstance(examples, TaskMixture):
        for name, part in examples.parts.items():
            yield name, [fingerprint(part)]
        return
    for name in (part.name for part in fields(examples) if part.name not in NOT_CONTENT):
        values = examples.digests if isinstance(examples, ImageExamples) and name == "images" else getattr(examples, name)
        yield name, values
    if isinstance(examples, TextLines):
        yield "documents", examples.documents()


def key_hashes(examples: Examples | TaskMixture) -> np.ndarray:
    """Return the distinct hashes (64 bits) of what tells examples apart, sorted: source texts, contexts, images."""
    parts: list[Examples] = list(examples.parts.values()) if isinstance(examples, TaskMixture) else [examples]
    keys = {key for part in parts for key in part.keys()}  # noqa: SIM118
    found = [hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest() for key in keys]
    return np.unique(np.frombuffer(b"".join(found), HASH_TYPE))


def count_known(examples: Examples | TaskMixture, known: np.ndarray) -> int:
    """Return how many distinct examples have one of the hashes `known`."""
    return int(np.isin(key_hashes(examples), known).sum())

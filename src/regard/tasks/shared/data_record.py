"""What a run folder says of its data: data.json (schema and fingerprint of every set), and hashes of the training examples."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from regard.corpus.dataset import Dataset
from regard.corpus.examples import Examples, TaskMixture
from regard.corpus.fingerprint import HASH_BYTES, HASH_TYPE, count_known, key_hashes
from regard.errors import UserError
from regard.files import atomic_write
from regard.recipe import Recipe

DATA_FILE = "data.json"
HASHES_FILE = "training_hashes.bin"
SCHEMA_SETTINGS = (
    "columns",
    "fields",
    "text",
    "text_pair",
    "label",
    "column",
    "word",
    "tag",
    "path",
    "captions",
    "stream",
    "reverse",
)
MAX_LABELS = 1000


def write_data_record(folder: Path, recipe: Recipe, data: Dataset[Any], fingerprints: Mapping[str, object]) -> None:
    """Write data.json and the hashes of the training examples into a run folder."""
    settings = recipe.data.model_dump(mode="json", exclude_none=True)
    record = {
        "sets": fingerprints,
        "schema": describe_schema(data.train),
        "settings": {name: settings[name] for name in SCHEMA_SETTINGS if name in settings},
    }
    atomic_write(folder / DATA_FILE, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    atomic_write(folder / HASHES_FILE, key_hashes(data.train).tobytes())


def describe_schema(examples: Examples | TaskMixture) -> dict[str, object]:
    """Return the kind of the examples, their fields, and the labels where there are some."""
    if isinstance(examples, TaskMixture):
        return {name: describe_schema(part) for name, part in examples.parts.items()}
    filled = [
        part.name for part in fields(examples) if part.name not in ("name", "lines", "places") and getattr(examples, part.name)
    ]
    labels: list[str] = getattr(examples, "labels", list)()
    schema: dict[str, object] = {"kind": type(examples).__name__, "fields": filled}
    return {**schema, "labels": labels[:MAX_LABELS]} if labels else schema


def trained_examples(folder: Path, examples: Examples | TaskMixture) -> int:
    """Return how many distinct examples were in the training data of a run folder; 0 where the folder does not say."""
    path = folder / HASHES_FILE
    if not path.is_file():
        return 0
    content = path.read_bytes()
    if len(content) % HASH_BYTES:
        raise UserError(f"{path} is damaged; copy the run folder again, or delete the file to compare without it")
    return count_known(examples, np.frombuffer(content, HASH_TYPE))

"""Labels, and texts or pairs of texts that a model classifies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.batches.ragged import Ragged
from regard.batches.rows import ClassificationRows, PairClassificationRows, Rows
from regard.batches.token_store import TokenStore
from regard.corpus.dataset import Dataset
from regard.corpus.examples import Examples, LabelledTexts
from regard.errors import UserError
from regard.files import atomic_write
from regard.interop.convert import HuggingFaceFolder
from regard.tasks.base import Run
from regard.tasks.shared.run_folder import read_json
from regard.tokens.special_tokens import SpecialTokens

LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class Prediction:
    """A label and its probability."""

    label: str
    probability: float

    def __str__(self) -> str:
        return f"{self.label} {self.probability:.3f}"


class Classification(tuple[Prediction, ...]):
    """Every label of one text or image with its probability, the most probable first."""

    __slots__ = ()

    @property
    def label(self) -> str:
        """The most probable label."""
        return self[0].label

    @property
    def probability(self) -> float:
        """The probability of the most probable label."""
        return self[0].probability

    def __str__(self) -> str:
        return str(self[0])


def write_labels(folder: Path, data: Dataset[Any]) -> list[str]:
    """Write the labels of the training data into a run folder."""
    labels: list[str] = data.train.labels()
    if len(labels) < 2:
        raise UserError(f"{data.train.name} has only the label {labels[0]!r}; at least two are needed")
    atomic_write(folder / LABELS_FILE, json.dumps(labels, ensure_ascii=False, indent=1) + "\n")
    return labels


def read_labels(folder: Path, huggingface: HuggingFaceFolder | None) -> list[str]:
    """Return the labels of a run folder or of a Hugging Face folder."""
    return read_json(folder / LABELS_FILE, list) if huggingface is None else huggingface.labels


def label_ids(labels: Sequence[str], examples: Examples, given: Sequence[str]) -> np.ndarray:
    """Return the class of each example's label; a label that is not in the training data is an error."""
    known = {label: number for number, label in enumerate(labels)}
    for index, label in enumerate(given):
        if label not in known:
            shown = ", ".join(labels[:8]) + (" …" if len(labels) > 8 else "")
            raise UserError(f"{examples.where(index)} has the label {label!r}, which is not in the training data ({shown})")
    return np.array([known[label] for label in given])


def rank_labels(labels: Sequence[str], logits: Tensor) -> list[Classification]:
    """Return every label of each row of logits (N, C), the most probable first."""
    p = logits.softmax(-1)
    order = p.argsort(descending=True, stable=True)
    return [Classification(Prediction(labels[i], float(row[i])) for i in best) for row, best in zip(p, order.tolist())]


def labelled_rows(run: Run, examples: LabelledTexts, targets: np.ndarray, training: bool) -> Rows:
    """Tokenize texts, or pairs of texts, with the target of each."""
    text = run._token_store(examples.text, run.tokenizers[0], training)
    if not examples.text_pair:
        return ClassificationRows(text, targets, special_tokens=run._special_tokens)
    text_pair = run._token_store(examples.text_pair, run.tokenizers[0], training)
    return PairClassificationRows(text, text_pair, targets, pair_special_tokens(run))


def pair_special_tokens(run: Run) -> SpecialTokens:
    """Return the special tokens around the texts of a pair, or around each of them where the model reads it alone."""
    special_tokens = run._special_tokens
    return special_tokens.around_each_text() if getattr(run.recipe.model, "reads_texts_alone", False) else special_tokens


def classify_logits(run: Run, texts: Sequence[str]) -> Tensor:
    """Return the logits (N, C) of texts, or of pairs separated by a tab."""
    pairs = [reads_pairs(run, text) for text in texts]
    found: list[Any] = [None] * len(texts)
    for is_pair, make_rows in ((False, single_rows), (True, pair_rows)):
        chosen = {i: text for i, text in enumerate(texts) if pairs[i] == is_pair}
        for number, logits in zip(chosen, run._logits(make_rows(run, chosen)) if chosen else []):
            found[number] = logits
    return torch.stack(found) if found else torch.zeros(0, 1)


def reads_pairs(run: Run, text: str) -> bool:
    """Whether a text is read as a pair: as the recipe says, or for a Hugging Face folder if the text has a tab."""
    return getattr(run.recipe.data, "text_pair", None) is not None if run._huggingface is None else "\t" in text


def classify_inputs(run: Run, text: str) -> dict[str, Tensor]:
    """Return the model's inputs for one text, or one pair separated by a tab."""
    if not reads_pairs(run, text):
        return Run._inputs(run, text)
    return pair_rows(run, {0: text}).batch(np.array([0]), 0, 0).inputs


def single_rows(run: Run, texts: Mapping[int, str]) -> ClassificationRows:
    """Tokenize a user's texts, by line number, without targets."""
    ids = TokenStore(Ragged.from_rows(run._ids(list(texts.values()))))
    return ClassificationRows(ids, np.zeros(len(texts), np.int64), special_tokens=run._special_tokens)


def pair_rows(run: Run, texts: Mapping[int, str]) -> PairClassificationRows:
    """Tokenize a user's pairs, each separated by a tab, by line number, without targets."""
    parts = [text.split("\t") for text in texts.values()]
    for number, part in zip(texts, parts):
        if len(part) != 2:
            raise UserError(f"line {number + 1} has {len(part)} texts; this run reads pairs, separated by a tab")
    first, second = (TokenStore(Ragged.from_rows(run.tokenizers[0].encode(list(side)))) for side in zip(*parts))
    rows = PairClassificationRows(first, second, np.zeros(len(texts), np.int64), pair_special_tokens(run))
    return rows.truncate(run.recipe.model.max_length)

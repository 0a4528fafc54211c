"""Which output of a run is explained, and what is known about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from regard.errors import UserError
from regard.explain.faithfulness import GroundTruth
from regard.explain.target import AttributionTarget
from regard.rng import hash64
from regard.tasks.base import Run
from regard.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class OutputSelection:
    """The output to explain; the run's own prediction by default."""

    label: str | None = None
    """--class, for a classifier."""
    word: str | None = None
    """--word, of a translation or a caption, or the next word."""
    fits: str | None = None
    """--text, to be compared with an image."""
    against: str | None = None
    """--against: another label, word or text, explained beside it."""

    def refuse(self, run: Run, *, but: str, cure: str) -> None:
        """Refuse the options that the run has no use for: all but one."""
        for name, value in (("class", self.label), ("word", self.word), ("text", self.fits)):
            if value is not None and name != but:
                raise UserError(f"--{name} {value}: {run.folder} {run.task.does}; {cure}")


PREDICTED = OutputSelection()
Target = TypeVar("Target", bound=AttributionTarget)


@dataclass(frozen=True)
class ExplainedImage:
    """An image as the model reads it, (H, W, 3) in uint8, and the grid of its patches."""

    pixels: np.ndarray
    grid: tuple[int, int]


@dataclass(frozen=True)
class ExplainedOutput:
    """An output of a run, the features that explain it, and those known to matter."""

    target: AttributionTarget
    features: list[str]
    description: str
    """The output in words."""
    truth: dict[str, GroundTruth] = field(default_factory=dict)
    image: ExplainedImage | None = None
    against: tuple[int, str] | None = None
    """Another output: its index, and in words."""

    @property
    def is_compared_with_itself(self) -> bool:
        return self.against is not None and self.against[0] == self.target.output


def explain_label(
    target: AttributionTarget,
    features: list[str],
    labels: Sequence[str],
    selection: OutputSelection,
    image: ExplainedImage | None = None,
) -> ExplainedOutput:
    """Return the label of a target whose output is set, and the one to compare it with."""
    how, other = "predicted" if selection.label is None else "selected", selection.against
    against = None if other is None else (label_index("against", other, labels), f"the label {other!r}")
    return ExplainedOutput(target, features, f"the label {labels[target.output]!r}, {how}", image=image, against=against)


def word_alternative(word: str | None, tokenizer: Tokenizer) -> tuple[int, str] | None:
    """Return the word to compare a word of an output with, if there is one."""
    return None if word is None else (first_token_id("against", word, tokenizer), f"the word {word!r} in its place")


def with_predicted_output(target: Target) -> Target:
    """Return the target with the model's own prediction if its output is not set (-1)."""
    if target.output >= 0:
        return target
    with torch.no_grad():
        return replace(target, output=int(target.scores(target.input)[0].argmax()))


def label_index(option: str, label: str, labels: Sequence[str]) -> int:
    if label not in labels:
        shown = ", ".join(labels[:8]) + (" …" if len(labels) > 8 else "")
        raise UserError(f"--{option} {label}: no such label; use one of: {shown}")
    return labels.index(label)


def word_index(word: str | None, words: Sequence[str], what: str = "translation") -> int:
    """Return the index of a word given by its number from 1 or as it is written; the first word if None."""
    if not words:
        raise UserError(f"the {what} is empty: there is nothing to explain")
    if word is not None and not word.isdigit():
        plain = [one.strip(".,;:!?") for one in words]
        if word not in (*words, *plain):
            raise UserError(f"--word {word}: not in the {what} {' '.join(words)!r}; use one of its words, or a number from 1")
        return words.index(word) if word in words else plain.index(word)
    number = int(word or 1)
    if not 1 <= number <= len(words):
        raise UserError(f"--word {number}: the {what} has words 1 to {len(words)}: {' '.join(words)!r}")
    return number - 1


def first_token_id(option: str, word: str, tokenizer: Tokenizer) -> int:
    ids = tokenizer.encode([word])[0]
    if not ids:
        raise UserError(f"--{option} {word!r}: no such token")
    return ids[0]


def pick(values: Sequence[int], index: int) -> int:
    """Return a pseudo-random value for the example of this index."""
    return values[int(hash64(index)) % len(values)]

"""What is asked of a run that is to be explained, and what is then explained."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    """Which answer of a run is explained: its own where nothing is said."""

    label: str | None = None
    """--class, of a classifier."""
    word: str | None = None
    """--word, of a translation or a caption, or what should come next."""
    fits: str | None = None
    """--text, that a picture fits."""
    against: str | None = None
    """--against: another label, word or text, which is explained beside it."""

    def refuse(self, run: Run, *, but: str, cure: str) -> None:
        """What a run has no use for, save one kind of answer."""
        for name, value in (("class", self.label), ("word", self.word), ("text", self.fits)):
            if value is not None and name != but:
                raise UserError(f"--{name} {value}: {run.folder} {run.task.does}; {cure}")


PREDICTED = OutputSelection()


@dataclass(frozen=True)
class ExplainedImage:
    """A picture as the model sees it, (H, W, 3) in uint8, and the grid of its patches."""

    pixels: np.ndarray
    grid: tuple[int, int]


@dataclass(frozen=True)
class ExplainedOutput:
    """An answer of a run, the pieces it is explained by, and those that are known to matter."""

    target: AttributionTarget
    pieces: list[str]
    answer: str
    """What is explained, in words."""
    gold: dict[str, GroundTruth] = field(default_factory=dict)
    picture: ExplainedImage | None = None
    against: tuple[int, str] | None = None
    """Another answer: its number, and in words."""


def with_predicted_output(target: AttributionTarget) -> AttributionTarget:
    """The same, of the answer that the model gives itself, where it is not known yet (-1)."""
    if target.answer >= 0:
        return target
    with torch.no_grad():
        return replace(target, answer=int(target.scores(target.read)[0].argmax()))


def label_index(option: str, label: str, labels: Sequence[str]) -> int:
    if label not in labels:
        raise UserError(
            f"--{option} {label}: there is no such label; there are: {', '.join(labels[:8])}" + (" …" if len(labels) > 8 else "")
        )
    return labels.index(label)


def word_index(word: str | None, words: Sequence[str], what: str = "translation") -> int:
    """Which word is meant, counted from 0."""
    if not words:
        raise UserError(f"the {what} is empty: there is nothing to explain")
    if word is not None and not word.isdigit():
        plain = [one.strip(".,;:!?") for one in words]
        if word not in (*words, *plain):
            raise UserError(f"--word {word}: not in the {what} {' '.join(words)!r}; give one of its words, or a number from 1")
        return words.index(word) if word in words else plain.index(word)
    number = int(word or 1)
    if not 1 <= number <= len(words):
        raise UserError(f"--word {number}: the {what} has words 1 to {len(words)}: {' '.join(words)!r}")
    return number - 1


def first_token_id(option: str, word: str, tokenizer: Tokenizer) -> int:
    found = tokenizer.encode([word])[0]
    if not found:
        raise UserError(f"--{option} {word!r}: there is no such token")
    return found[0]


def pick(values: Sequence[int], index: int) -> int:
    return values[int(hash64(index)) % len(values)]

"""What is asked of a run that is to be explained, and what is then explained."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from regard.errors import Mistake
from regard.explain.faithfulness import Gold
from regard.explain.target import Target
from regard.rng import mix
from regard.tasks.base import Run
from regard.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Question:
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
                raise Mistake(f"--{name} {value}: {run.folder} {run.does}; {cure}")


ITS_OWN = Question()


@dataclass(frozen=True)
class Seen:
    """A picture as the model sees it, (H, W, 3) in uint8, and the grid of its patches."""

    pixels: np.ndarray
    grid: tuple[int, int]


@dataclass(frozen=True)
class Asked:
    """An answer of a run, the pieces it is explained by, and those that are known to matter."""

    target: Target
    pieces: list[str]
    answer: str
    """What is explained, in words."""
    gold: dict[str, Gold] = field(default_factory=dict)
    picture: Seen | None = None
    against: tuple[int, str] | None = None
    """Another answer: its number, and in words."""


def likeliest(target: Target) -> Target:
    """The same, of the answer that the model gives itself, where it is not known yet (-1)."""
    if target.answer >= 0:
        return target
    with torch.no_grad():
        return replace(target, answer=int(target.scores(target.read)[0].argmax()))


def named_label(option: str, label: str, numbers: dict[str, int]) -> int:
    if label not in numbers:
        shown = list(numbers)
        raise Mistake(
            f"--{option} {label}: there is no such label; there are: {', '.join(shown[:8])}" + (" …" if len(shown) > 8 else "")
        )
    return numbers[label]


def word_number(word: str | None, words: Sequence[str], what: str = "translation") -> int:
    """Which word is meant, counted from 0."""
    if not words:
        raise Mistake(f"the {what} is empty: there is nothing to explain")
    if word is not None and not word.isdigit():
        plain = [one.strip(".,;:!?") for one in words]
        if word not in (*words, *plain):
            raise Mistake(f"--word {word}: not in the {what} {' '.join(words)!r}; give one of its words, or a number from 1")
        return words.index(word) if word in words else plain.index(word)
    number = int(word or 1)
    if not 1 <= number <= len(words):
        raise Mistake(f"--word {number}: the {what} has words 1 to {len(words)}: {' '.join(words)!r}")
    return number - 1


def first_token(option: str, word: str, tokenizer: Tokenizer) -> int:
    found = tokenizer.encode([word])[0]
    if not found:
        raise Mistake(f"--{option} {word!r}: there is no such token")
    return found[0]


def drawn(values: Sequence[int], index: int) -> int:
    return values[int(mix(index)) % len(values)]

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
    """--word, of a translation or a caption; or the word that a language model or a masked model predicts."""
    fits: str | None = None
    """--text, to be compared with an image."""
    against: str | None = None
    """--against: another label, word or text, explained beside it."""
    position: str | None = None
    """--position: the word of the text whose prediction is explained, for a language model or a masked model."""
    layer: int | None = None
    """--layer: whose attention is tested, counted from 1; the last by default."""
    head: int | None = None
    """--head: its head, counted from 1; the mean over heads by default."""

    def refuse(self, run: Run, *, but: str | tuple[str, ...], cure: str) -> None:
        """Refuse the options that the run has no use for: all but these."""
        given = {"class": self.label, "word": self.word, "text": self.fits, "position": self.position}
        for name, value in given.items():
            if value is not None and name not in ((but,) if isinstance(but, str) else but):
                raise UserError(f"--{name} {value}: {run.folder} {run.task.does}; {cure}")


PREDICTED = OutputSelection()
PUNCTUATION = ".,;:!?"
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
    against: tuple[AttributionTarget, str] | None = None
    """Another output of the same features, and in words."""

    @property
    def is_compared_with_itself(self) -> bool:
        one, other = self.target, None if self.against is None else self.against[0]
        return other is not None and (one.output, one.further) == (other.output, other.further)

    def with_attention_of(self, layer: int | None, head: int | None) -> "ExplainedOutput":
        """Return the output with the layer and head whose attention is tested."""
        if layer is None and head is None:
            return self
        against = None if self.against is None else (replace(self.against[0], layer=layer, head=head), self.against[1])
        return replace(self, target=replace(self.target, layer=layer, head=head), against=against)


def explain_label(
    target: AttributionTarget,
    features: list[str],
    labels: Sequence[str],
    selection: OutputSelection,
    image: ExplainedImage | None = None,
) -> ExplainedOutput:
    """Return the label of a target whose output is set, and the one to compare it with."""
    how, other = "predicted" if selection.label is None else "selected", selection.against
    against = None
    if other is not None:
        against = (replace(target, output=label_index("against", other, labels)), f"the label {other!r}")
    return ExplainedOutput(target, features, f"the label {labels[target.output]!r}, {how}", image=image, against=against)


def predict_word(target: Target, input_name: str, before: Sequence[int], tokens: Sequence[int]) -> Target:
    """Return the target that predicts all tokens of a word after those `before` it, which a decoder reads as `input_name`."""
    step = len(before) - 1
    read = torch.tensor([[*before, *tokens[:-1]]], device=target.input.device)
    further = tuple((step + number, token) for number, token in enumerate(tokens[1:], 1))
    return replace(target, inputs={**target.inputs, input_name: read}, step=step, output=tokens[0], further=further)


def word_alternative(
    word: str | None, target: AttributionTarget, before: Sequence[int], tokenizer: Tokenizer
) -> tuple[AttributionTarget, str] | None:
    """Return the word to compare a word of an output with, if there is one."""
    if word is None:
        return None
    tokens = word_tokens("against", tokenizer.decode([list(before)])[0], word, tokenizer)
    return predict_word(target, "target", before, tokens), f"the word {word!r} in its place"


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
        plain = [one.strip(PUNCTUATION) for one in words]
        if word not in (*words, *plain):
            raise UserError(f"--word {word}: not in the {what} {' '.join(words)!r}; use one of its words, or a number from 1")
        return words.index(word) if word in words else plain.index(word)
    number = int(word or 1)
    if not 1 <= number <= len(words):
        raise UserError(f"--word {number}: the {what} has words 1 to {len(words)}: {' '.join(words)!r}")
    return number - 1


def find_word(position: str, words: Sequence[str]) -> int:
    """Return the index of a word of a text: given by its number from 1, as it is written, or as "word:2", the second of them."""
    shown = " ".join(words)
    if position.isdigit():
        if not 1 <= int(position) <= len(words):
            raise UserError(f"--position {position}: the text has words 1 to {len(words)}: {shown!r}")
        return int(position) - 1
    word, colon, number = position.rpartition(":")
    word, occurrence = (word, int(number)) if colon and number.isdigit() else (position, 1)
    found = [i for i, one in enumerate(words) if word in (one, one.strip(PUNCTUATION))]
    if not found:
        raise UserError(f"--position {position}: not in the text {shown!r}; use one of its words, or a number from 1")
    if not 1 <= occurrence <= len(found):
        raise UserError(f"--position {position}: the text has {word!r} {len(found)} times: {shown!r}")
    return found[occurrence - 1]


def word_tokens(option: str, text: str, word: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a word as it is written after a text."""
    longer, shorter = tokenizer.encode([f"{text} {word}", text]) if text else ([], [])
    continues = longer[: len(shorter)] == shorter and len(longer) > len(shorter)
    found = longer[len(shorter) :] if continues else tokenizer.encode([word])[0]
    if not found:
        raise UserError(f"--{option} {word!r}: no such token")
    return found


def pick(values: Sequence[int], index: int) -> int:
    """Return a pseudo-random value for the example of this index."""
    return values[int(hash64(index)) % len(values)]

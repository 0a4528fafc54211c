"""Examples of every kind: sentence pairs, lines, labelled texts, tagged sentences, questions, pictures. Each remembers whence it
came."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Protocol, Self

import numpy as np

from regard.corpus.image_bytes import ImageFile
from regard.worlds import bilingual


class Examples(Protocol):
    """What every kind has."""

    name: str
    lines: list[int]

    def __len__(self) -> int: ...
    def where(self, index: int) -> str: ...
    def select(self, indices: Sequence[int]) -> Self: ...
    def keys(self) -> list[str]: ...
    def texts(self) -> list[list[str]]: ...


class ExampleList:
    """Examples held as lists of equal length, one a field."""

    name: str
    lines: list[int]

    def where(self, index: int) -> str:
        return f"{self.name}:{self.lines[index]}" if self.lines else f"{self.name} example {index + 1}"

    def select(self, indices: Sequence[int]) -> Self:
        def pick(values: Any) -> Any:
            return [values[i] for i in indices] if isinstance(values, list) and values else values

        return replace(self, **{part.name: pick(getattr(self, part.name)) for part in fields(self)})  # type: ignore[type-var, arg-type]


@dataclass
class SentencePairs(ExampleList):
    """Sentences and their translations."""

    source: list[str]
    target: list[str]
    name: str = ""
    lines: list[int] = field(default_factory=list)
    """The line each pair came from, counted from 1."""
    gold: list[bilingual.SentencePair] | None = None
    """What a world knows of its pairs, alignments and antecedents; or a file, alignments alone."""

    def __len__(self) -> int:
        return len(self.source)

    def keys(self) -> list[str]:
        """What a held-out set must not share with the training set."""
        return self.source

    def texts(self) -> list[list[str]]:
        """The text of each side."""
        return [self.source, self.target]

    def reversed(self) -> "SentencePairs":
        """The other direction; what a world knows of its pairs holds for this one only."""
        return SentencePairs(self.target, self.source, self.name, self.lines)


@dataclass
class TaskPairs(SentencePairs):
    """Pairs of one of several tasks; what says which it is stands before every source."""

    task: str = ""


@dataclass
class TaskMixture:
    """The examples of several tasks, by name."""

    parts: dict[str, TaskPairs]

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def texts(self) -> list[list[str]]:
        """The text of each side, task after task."""
        return [list(chain.from_iterable(side)) for side in zip(*(pairs.texts() for pairs in self.parts.values()))]


@dataclass
class TextLines(ExampleList):
    """Plain text, an example a line."""

    text: list[str]
    name: str = ""
    lines: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.text)

    def keys(self) -> list[str]:
        return self.text

    def texts(self) -> list[list[str]]:
        return [self.text]

    def documents(self) -> list[int]:
        """Which document each line belongs to: lines that follow one another in a file, without an empty line between them."""
        if not self.lines:
            return [0] * len(self.text)
        found = [0]
        for before, line in pairwise(self.lines):
            found.append(found[-1] + (line != before + 1))
        return found


@dataclass
class LabelledTexts(ExampleList):
    """Texts, or pairs of them, each with a label."""

    text: list[str]
    label: list[str]
    name: str = ""
    lines: list[int] = field(default_factory=list)
    text_pair: list[str] = field(default_factory=list)
    """The other text of each pair; none where texts are judged alone."""

    def __len__(self) -> int:
        return len(self.text)

    def keys(self) -> list[str]:
        return [f"{one}\t{other}" for one, other in zip(self.text, self.text_pair)] if self.text_pair else self.text

    def texts(self) -> list[list[str]]:
        return [self.text + self.text_pair]

    def labels(self) -> list[str]:
        return distinct(self.label)


@dataclass
class TaggedSentences(ExampleList):
    """Sentences of words, each word with a tag."""

    words: list[list[str]]
    tags: list[list[str]]
    name: str = ""
    lines: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def keys(self) -> list[str]:
        return [" ".join(words) for words in self.words]

    def texts(self) -> list[list[str]]:
        return [self.keys()]

    def labels(self) -> list[str]:
        return distinct(tag for tags in self.tags for tag in tags)


@dataclass
class QuestionExamples(ExampleList):
    """Questions, each with the context that answers it, and where in it the answers stand (from, to); none where it does not."""

    question: list[str]
    context: list[str]
    answers: list[list[tuple[int, int]]]
    name: str = ""
    lines: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    """How a message names each: by file and line, or by file and the question's id."""

    def __len__(self) -> int:
        return len(self.question)

    def where(self, index: int) -> str:
        return self.places[index] if self.places else super().where(index)

    def keys(self) -> list[str]:
        return self.context

    def texts(self) -> list[list[str]]:
        return [[*self.question, *dict.fromkeys(self.context)]]

    def answer_texts(self) -> list[list[str]]:
        """The answers of each question as text."""
        return [[context[start:end] for start, end in spans] for context, spans in zip(self.context, self.answers)]


@dataclass
class ImageExamples(ExampleList):
    """Pictures, each with a label, with captions, or with both."""

    images: list[ImageFile | np.ndarray]
    """The places of their bytes, or the pixels themselves (H, W, 3) where a world draws them."""
    name: str = ""
    lines: list[int] = field(default_factory=list)
    """The line that names each, 0 where none does."""
    label: list[str] = field(default_factory=list)
    captions: list[list[str]] = field(default_factory=list)
    gold: list[Any] = field(default_factory=list)
    """What a world knows of each."""

    def __len__(self) -> int:
        return len(self.images)

    def where(self, index: int) -> str:
        picture = self.images[index]
        return str(picture) if isinstance(picture, ImageFile) else super().where(index)

    def select(self, indices: Sequence[int]) -> "ImageExamples":
        chosen = super().select(indices)
        if "digests" in self.__dict__:  # known: not read again
            chosen.digests = [self.digests[i] for i in indices]
        return chosen

    @cached_property
    def digests(self) -> list[str]:
        """What each picture is, whatever it is called."""
        return [
            hashlib.sha256(one.read() if isinstance(one, ImageFile) else f"{one.shape}".encode() + one.tobytes()).hexdigest()
            for one in self.images
        ]

    def keys(self) -> list[str]:
        return self.digests

    def texts(self) -> list[list[str]]:
        return [[caption for captions in self.captions for caption in captions]]

    def labels(self) -> list[str]:
        return distinct(self.label)


def distinct(labels: Iterable[str]) -> list[str]:
    return sorted(set(labels))

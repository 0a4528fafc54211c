"""Examples of every kind: sentence pairs, lines, labelled texts, tagged sentences, questions, images. Each knows its
file and line."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from regard.corpus.lines import printable
from regard.errors import UserError
from regard.worlds import bilingual, shapes

MAX_IMAGE_BYTES = 2**28


@dataclass(frozen=True)
class ImageFile:
    """Where the bytes of an image are: in a file of their own, or from `offset` on in a file with others."""

    path: Path
    name: str = ""
    """The name inside the file."""
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.name}" if self.name else str(self.path))

    def read(self) -> bytes:
        try:
            if self.path.is_dir():
                raise UserError(f"{self} is a folder; give an image")
            if self.path.exists() and not self.path.is_file():
                raise UserError(f"{self} is not a regular file; give an image")
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(MAX_IMAGE_BYTES + 1 if self.length is None else min(self.length, MAX_IMAGE_BYTES + 1))
        except FileNotFoundError:
            raise UserError(f"no image {self}; check the path") from None
        except OSError as error:
            raise UserError(f"cannot read {self}: {error.strerror or error}") from None
        except ValueError:
            raise UserError(f"{self} is not the name of a file") from None
        if len(data) > MAX_IMAGE_BYTES:
            raise UserError(f"{self} has more than {MAX_IMAGE_BYTES:,} bytes; make it smaller, or leave it out")
        if self.length is not None and len(data) < self.length:
            raise UserError(f"{self} should have {self.length:,} bytes and has {len(data):,}; fetch the file again")
        return data


@dataclass(kw_only=True)
class Examples:
    """Examples held as lists of equal length, one list per field."""

    name: str = ""
    lines: list[int] = field(default_factory=list)
    """The line of each example, counted from 1; 0 if none names it."""

    def __len__(self) -> int:
        return len(getattr(self, next(part.name for part in fields(self) if not part.kw_only)))

    def texts(self) -> list[list[str]]:
        """Return the texts of each side."""
        raise NotImplementedError

    def keys(self) -> list[str]:
        """Return what a held-out set must not share with the training set."""
        return self.texts()[0]

    def where(self, index: int) -> str:
        """Return the file and line of an example, for a message."""
        return f"{self.name}:{self.lines[index]}" if self.lines else f"{self.name} example {index + 1}"

    def select(self, indices: Sequence[int]) -> Self:
        """Return the examples with these indices."""

        def pick(values: object) -> Any:
            return [values[i] for i in indices] if isinstance(values, list) and values else values

        return replace(self, **{part.name: pick(getattr(self, part.name)) for part in fields(self)})


@dataclass
class SentencePairs(Examples):
    """Sentences and their translations."""

    source: list[str]
    target: list[str]
    gold: list[bilingual.SentencePair] | None = None
    """Gold annotations: alignments and antecedents of a world, or alignments of a file."""

    def texts(self) -> list[list[str]]:
        return [self.source, self.target]

    def reversed(self) -> "SentencePairs":
        """Return the pairs in the other direction, without gold annotations, which hold for this one only."""
        return SentencePairs(self.target, self.source, name=self.name, lines=self.lines)


@dataclass
class TaskPairs(SentencePairs):
    """Pairs of one task of a mixture; every source starts with the task's prefix."""

    task: str = ""


@dataclass
class TaskMixture:
    """The examples of several tasks, by task name."""

    parts: dict[str, TaskPairs]

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def texts(self) -> list[list[str]]:
        """Return the texts of each side, task after task."""
        return [list(chain.from_iterable(side)) for side in zip(*(pairs.texts() for pairs in self.parts.values()))]


@dataclass
class TextLines(Examples):
    """Plain text, one example per line."""

    text: list[str]

    def texts(self) -> list[list[str]]:
        return [self.text]

    def documents(self) -> list[int]:
        """Return the document of each line: consecutive lines of a file without an empty line between them."""
        if not self.lines:
            return [0] * len(self.text)
        found = [0]
        for before, line in pairwise(self.lines):
            found.append(found[-1] + (line != before + 1))
        return found


@dataclass
class LabelledTexts(Examples):
    """Texts, or pairs of them, each with a label."""

    text: list[str]
    label: list[str]
    text_pair: list[str] = field(default_factory=list)
    """The second text of each pair; empty for single texts."""

    def keys(self) -> list[str]:
        return [f"{one}\t{other}" for one, other in zip(self.text, self.text_pair)] if self.text_pair else self.text

    def texts(self) -> list[list[str]]:
        return [self.text + self.text_pair]

    def labels(self) -> list[str]:
        return sorted(set(self.label))


@dataclass
class TaggedSentences(Examples):
    """Sentences of words, each word with a tag."""

    words: list[list[str]]
    tags: list[list[str]]

    def keys(self) -> list[str]:
        return [" ".join(words) for words in self.words]

    def texts(self) -> list[list[str]]:
        return [self.keys()]

    def labels(self) -> list[str]:
        return sorted({tag for tags in self.tags for tag in tags})


@dataclass
class QuestionExamples(Examples):
    """Questions with their contexts, and the character spans (from, to) of the answers; none if unanswerable."""

    question: list[str]
    context: list[str]
    answers: list[list[tuple[int, int]]]
    places: list[str] = field(default_factory=list)
    """The name of each in messages: file and line, or file and question id."""

    def where(self, index: int) -> str:
        return self.places[index] if self.places else super().where(index)

    def keys(self) -> list[str]:
        return self.context

    def texts(self) -> list[list[str]]:
        return [[*self.question, *dict.fromkeys(self.context)]]

    def answer_texts(self) -> list[list[str]]:
        """Return the answers of each question as text."""
        return [[context[start:end] for start, end in spans] for context, spans in zip(self.context, self.answers)]


@dataclass
class ImageExamples(Examples):
    """Images, each with a label, captions, or both."""

    images: list[ImageFile | np.ndarray]
    """The location of each image's bytes, or its pixels (H, W, 3) if a world renders it."""
    label: list[str] = field(default_factory=list)
    captions: list[list[str]] = field(default_factory=list)
    gold: list[shapes.ShapesImage] = field(default_factory=list)
    """The world's annotations of each image."""

    def where(self, index: int) -> str:
        image = self.images[index]
        return str(image) if isinstance(image, ImageFile) else super().where(index)

    def select(self, indices: Sequence[int]) -> "ImageExamples":
        chosen = super().select(indices)
        if "digests" in self.__dict__:  # computed already: do not read the files again
            chosen.digests = [self.digests[i] for i in indices]
        return chosen

    @cached_property
    def digests(self) -> list[str]:
        """The SHA-256 of each image, whatever its name."""
        return [
            hashlib.sha256(one.read() if isinstance(one, ImageFile) else f"{one.shape}".encode() + one.tobytes()).hexdigest()
            for one in self.images
        ]

    def keys(self) -> list[str]:
        return self.digests

    def texts(self) -> list[list[str]]:
        return [[caption for captions in self.captions for caption in captions]]

    def labels(self) -> list[str]:
        return sorted(set(self.label))

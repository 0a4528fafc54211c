"""Tagging: predict a label for every word."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from pydantic import model_validator

from regard.batches.batch import IGNORE_INDEX
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TaggingRows
from regard.batches.token_store import TokenStore
from regard.corpus.dataset import Dataset
from regard.corpus.examples import TaggedSentences
from regard.errors import UserError
from regard.models.bert import EncoderTagger
from regard.models.recurrent_encoder import RecurrentTagger
from regard.recipe import EncoderModel, Recipe, RecurrentEncoderModel, TaggedData, TextEncoderModel
from regard.scoring import Confusion, compare_accuracy, grouped_accuracy
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.labels import read_labels, write_labels
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.starters.text_starters import tag_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, ComparisonRow, EvaluationResult, Size, Task, TaskCard

NOT_TAGGED = "(too-long)"
"""What stands for the tag of a word beyond `model.max_length`, which is counted as wrong."""


class TagRecipe(Recipe):
    """Predict a label for every word."""

    task: Literal["tag"] = "tag"
    data: TaggedData
    model: TextEncoderModel = RecurrentEncoderModel()

    @model_validator(mode="after")
    def check_tokens(self) -> Self:
        if self.train.regularize.bpe_dropout:
            raise ValueError(
                "train.regularize.bpe_dropout: a tag belongs to a word's first sub-word, which dropout would move; set it to 0"
            )
        return self


@dataclass(frozen=True)
class Tagging:
    """The words of a text, and a label for each."""

    words: list[str]
    labels: list[str]

    def __str__(self) -> str:
        return " ".join(f"{word}/{label}" for word, label in zip(self.words, self.labels))


class TagRun(Run):
    """A tagger."""

    labels: list[str]

    embed = embed_texts

    @overload
    def tag(self, texts: str) -> Tagging: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, texts: Iterable[str]) -> list[Tagging]: ...
    def tag(self, texts: str | Iterable[str]) -> Tagging | list[Tagging]:
        """Return the words of a text, or of each text of a list, separated by white space, with their labels."""
        return one_or_many(texts, self._tag)

    def _tag(self, texts: Sequence[str]) -> list[Tagging]:
        ids = self._ids(texts)
        word_ids = [words[: len(row)] for row, (_, words) in zip(ids, self.tokenizers[0].encode_words(texts))]
        firsts = [first_token_labels(row, range(max(row, default=-1) + 1), "a text") for row in word_ids]
        rows = TaggingRows(TokenStore(Ragged.from_rows(ids)), Ragged.from_rows(firsts), special_tokens=self._special_tokens)
        results = [Tagging([], []) for _ in texts]
        for batch in self._batches(rows, shard=False):
            with torch.no_grad():
                best = self.model(**batch.inputs).argmax(-1)  # (B, S)
            for row, predicted, is_first in zip(batch.rows, best, batch.labels != IGNORE_INDEX):
                labels = [self.labels[i] for i in predicted[is_first].tolist()]
                results[row] = Tagging(texts[row].split()[: len(labels)], labels)
        return results

    @classmethod
    def _prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        super()._prepare(folder, recipe, data)
        write_labels(folder, data)

    def _open_files(self) -> None:
        self.labels = read_labels(self.folder, self._huggingface)

    def _model_sizes(self) -> list[Size]:
        return [*super()._model_sizes(), len(self.labels)]

    def _encode(self, examples: TaggedSentences, *, training: bool = False) -> Rows:
        """Tokenize sentences; a tag that is not in the training data is ignored in the loss and wrong in the accuracy."""
        known = {label: number for number, label in enumerate(self.labels)}
        store = self._token_store(examples.keys(), self.tokenizers[0], training)
        tags = [
            first_token_labels(word_ids, [known.get(tag, IGNORE_INDEX) for tag in row], examples.where(i))
            for i, (row, (_, word_ids)) in enumerate(zip(examples.tags, self.tokenizers[0].encode_words(examples.keys())))
        ]
        return TaggingRows(store, Ragged.from_rows(tags), special_tokens=self._special_tokens)

    def _predictions(self, examples: TaggedSentences) -> list[list[str]]:
        """Return a tag for each word, NOT_TAGGED beyond the words that the model takes."""
        tagged = self.tag(examples.keys())
        return [[*found.labels, *[NOT_TAGGED] * (len(tags) - len(found.labels))] for found, tags in zip(tagged, examples.tags)]

    def _correct(self, examples: TaggedSentences) -> list[tuple[int, int]]:
        """Return for each sentence the number of words tagged right, and of all words."""
        return count_correct(self._predictions(examples), examples.tags)

    def _validate(self, examples: TaggedSentences, rows: Rows) -> dict[str, float]:
        right = np.sum(self._correct(examples), axis=0)
        return {**super()._validate(examples, rows), "valid_accuracy": 100 * float(right[0] / right[1])}

    def _score(self, name: str, examples: TaggedSentences) -> EvaluationResult:
        predicted, gold = self._predictions(examples), examples.tags
        scores = {"accuracy": grouped_accuracy(count_correct(predicted, gold))}
        confusion = Confusion.count(list(chain(*gold)), list(chain(*predicted)), self.labels)
        return EvaluationResult(name, examples, [" ".join(tags) for tags in predicted], scores, confusion=confusion)

    def _compare(self, runs: "dict[str, TagRun]", examples: TaggedSentences) -> list[ComparisonRow]:
        """Compare whole sentences, since the words of one are not independent."""
        return compare_accuracy({name: [right == words for right, words in run._correct(examples)] for name, run in runs.items()})


def count_correct(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Return for each sentence the number of words tagged right, and of all words."""
    return [(sum(a == b for a, b in zip(ours, tags)), len(tags)) for ours, tags in zip(predicted, gold)]


def first_token_labels(word_ids: list[int], values: Sequence[int], where: str) -> list[int]:
    """Return each word's value at its first token, IGNORE_INDEX elsewhere."""
    if word_ids and set(word_ids) != set(range(len(values))):
        raise UserError(f"{where} has {len(values)} words, but the tokenizer reads {len(set(word_ids))}; remove odd white space")
    return [values[word] if i == 0 or word_ids[i - 1] != word else IGNORE_INDEX for i, word in enumerate(word_ids)]


TAG = Task(
    name="tag",
    does="tags words",
    recipe=TagRecipe,
    run=TagRun,
    models={"transformer": EncoderTagger, "recurrent": RecurrentTagger},
    verbs=("tag", "embed"),
    metrics=("valid_accuracy",),
    count_correct=lambda outputs, examples: count_correct([line.split() for line in outputs], examples.tags),
    pretrained=(EncoderModel, TaggedData),
    model_sizes=lambda recipe, vocabulary: (vocabulary[0], 2),
    starter=tag_recipe,
    card=TaskCard(
        uses="Labels of the words of texts like those it was trained on. Research and teaching.",
        misuses=f"{HUMAN_CHECK} every decision.",
        limits=TEXT_LIMITS,
        commands=('tag {} "…"', 'embed {} "…" --pool words'),
    ),
)

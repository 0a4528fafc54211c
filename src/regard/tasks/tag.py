"""A tagger: a run that says a label of every word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import sequential_batches
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TaggingRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import TaggedSentences
from regard.errors import UserError
from regard.scoring import Score, compare_accuracy, grouped_accuracy
from regard.tasks.base import EVALUATE_TOKENS, EvaluationResult
from regard.tasks.labels import LabelRun


@dataclass(frozen=True)
class Tagging:
    """The words of a text, and a label for each."""

    words: list[str]
    labels: list[str]


class Tagger(LabelRun):
    does = "tags"

    def encode(self, examples: TaggedSentences, *, training: bool = False) -> Rows:
        """A tag that was not in the training data is not asked for; it counts as wrong in the accuracy."""
        side = self.side(examples.keys(), self.tokenizers[0], training)
        tags = [
            self.first_tokens(words, [self.numbers.get(tag, IGNORE_INDEX) for tag in row], examples.where(i))
            for i, (row, (_, words)) in enumerate(zip(examples.tags, self.tokenizers[0].encode_words(examples.keys())))
        ]
        return TaggingRows(side, Ragged.from_rows(tags), special_tokens=self.special_tokens)

    def first_tokens(self, words: list[int], values: Sequence[int], where: str) -> list[int]:
        """Each word's value at its first token, nothing elsewhere; `words` are those of a text's tokens."""
        if words and set(words) != set(range(len(values))):
            raise UserError(f"{where} has {len(values)} words, but the tokenizer reads {len(set(words))}; remove odd white space")
        return [values[word] if i == 0 or words[i - 1] != word else IGNORE_INDEX for i, word in enumerate(words)]

    def tag(self, texts: Sequence[str]) -> list[Tagging]:
        """Each text's words with their labels; words are what spaces separate."""
        ids = self.ids(texts)
        words = [words[: len(row)] for row, (_, words) in zip(ids, self.tokenizers[0].encode_words(texts))]
        firsts = [self.first_tokens(row, range(max(row, default=-1) + 1), "a text") for row in words]
        rows = TaggingRows(TokenStore(Ragged.from_rows(ids)), Ragged.from_rows(firsts), special_tokens=self.special_tokens)
        found = [Tagging([], []) for _ in texts]
        for batch in sequential_batches(rows, EVALUATE_TOKENS):
            with torch.no_grad():
                best = self.model(**batch.to(self.device).inputs).argmax(-1).cpu()  # (B, S)
            for row, said, asked in zip(batch.rows, best, batch.labels != IGNORE_INDEX):
                labels = [self.labels[i] for i in said[asked].tolist()]
                found[row] = Tagging(texts[row].split()[: len(labels)], labels)
        return found

    def right(self, examples: TaggedSentences) -> list[tuple[int, int]]:
        """Of each sentence, how many words are tagged right, and how many there are."""
        said = self.tag(examples.keys())
        return [(sum(a == b for a, b in zip(found.labels, tags)), len(tags)) for found, tags in zip(said, examples.tags)]

    def accuracy(self, examples: TaggedSentences) -> Score:
        return grouped_accuracy(self.right(examples))

    def validate(self, examples: TaggedSentences, rows: Rows) -> dict[str, float]:
        right = np.sum(self.right(examples), axis=0)
        return {**super().validate(examples, rows), "valid_accuracy": 100 * float(right[0] / right[1])}

    def score(self, name: str, examples: TaggedSentences) -> EvaluationResult:
        said = [" ".join(found.labels) for found in self.tag(examples.keys())]
        return EvaluationResult(name, examples, said, {"accuracy": self.accuracy(examples)})

    def paired(self, runs: "dict[str, Tagger]", examples: TaggedSentences) -> list[dict[str, Any]]:
        """Whole sentences count, for the words of one are not independent."""
        return compare_accuracy({name: [right == words for right, words in run.right(examples)] for name, run in runs.items()})

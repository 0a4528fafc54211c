"""A masked language model: a run that fills in masked words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import distributed
from regard.batches.batch import NOTHING
from regard.batches.batches import in_order
from regard.batches.masked_rows import Masked, MaskedPairs, successors, word_heads
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, read
from regard.corpus.examples import Lines
from regard.errors import Mistake
from regard.scoring import Score, accuracy, item_accuracy
from regard.tasks.base import EVALUATE_TOKENS, Result, Run
from regard.tasks.classify import Judgement
from regard.tokens.special import BOTH_ENDS, MASK_TEXT, Marks

WRITTEN = re.compile(r"\[MASK\]|<mask>")
"""How a user writes a mask."""


@dataclass(frozen=True)
class Filled:
    """A text with its likeliest words filled in, and for each mask the candidates, best first."""

    text: str
    candidates: list[list[Judgement]]


class MaskedRun(Run):
    does = "fills in masked words"
    more_marks = (MASK_TEXT,)

    def own_marks(self) -> Marks:
        return BOTH_ENDS

    @property
    def mask(self) -> int:
        """The mask of its vocabulary, which may have been brought from elsewhere."""
        names = [self.tokenizers[0].library.token_to_id(name) for name in (MASK_TEXT, "[MASK]")]
        if not any(names):
            raise Mistake(f"{self.folder / 'tokenizer.json'} has no token {MASK_TEXT} or [MASK] to hide words behind")
        return next(number for number in names if number)

    def encode(self, examples: Lines, *, training: bool = False) -> Rows:
        masking = self.recipe.masking
        side, size = self.side(examples.text, self.tokenizers[0], training), self.tokenizers[0].size
        heads = None
        if masking.whole_words:
            heads = word_heads(side.ids, [self.tokenizers[0].words(side.ids[i].tolist()) for i in range(len(side.ids))])
        if not masking.next_sentence:
            return Masked(side, masking, self.mask, size, heads, marks=self.marks)
        firsts = successors(np.array(examples.documents()))
        if not len(firsts):
            raise Mistake(f"{examples.name} has no two lines in a row; masking.next_sentence needs documents of several lines")
        return MaskedPairs(side, masking, self.mask, size, heads, firsts, marks=self.marks)

    def fill(self, texts: Sequence[str], *, number: int = 5) -> list[Filled]:
        """The likeliest words in place of each mask, written [MASK] or <mask>; all masks of a text at once."""
        return [self.fill_one(text, number) for text in texts]

    def fill_one(self, text: str, number: int) -> Filled:
        ids = self.masked(text)
        if self.mask not in ids:
            raise Mistake(f"{text!r} has no mask; write [MASK] where a word is missing")
        inputs = {name: part.to(self.device) for name, part in read(Ragged.of([ids]), self.marks).items()}
        with torch.no_grad():
            p = self.model(**inputs)[0, len(self.marks.before) :].float().softmax(-1).cpu()  # (S, V)
        candidates = []
        for at in [i for i, token in enumerate(ids) if token == self.mask]:
            best = p[at].topk(min(number, p.size(-1)))
            words = self.tokenizers[0].pieces(best.indices.tolist())
            candidates.append([Judgement(word.strip(), float(q)) for word, q in zip(words, best.values)])
            ids[at] = int(best.indices[0])
        return Filled(self.tokenizers[0].decode([ids])[0], candidates)

    def masked(self, text: str) -> list[int]:
        """A text as ids, its masks among them."""
        parts = self.tokenizers[0].encode(WRITTEN.split(text))
        ids = [token for part in parts for token in (self.mask, *part)][1:]
        if len(ids) + self.marks.around > self.recipe.model.max_length:
            raise Mistake(
                f"{text!r} is {len(ids) + self.marks.around} tokens long, "
                f"the model takes {self.recipe.model.max_length}; shorten it"
            )
        return ids

    def reading(self, text: str) -> dict[str, Tensor]:
        if not (ids := self.masked(text)):
            raise Mistake("there is nothing to show of an empty sentence")
        return read(Ragged.of([ids]), self.marks)

    def judged(self, rows: Rows) -> tuple[list[tuple[int, int]], list[bool]]:
        """Of each row, how many hidden words are said right, and how many there are; and whether the next sentence was told."""
        words: list[Any] = [None] * len(rows)
        told: list[bool] = []
        for batch in distributed.share(in_order(rows, EVALUATE_TOKENS)):
            with torch.no_grad():
                said = self.model(**batch.to(self.device).inputs).argmax(-1).cpu()  # (B, S)
            asked = batch.labels != NOTHING
            for row, right, number in zip(batch.rows, ((said == batch.labels) & asked).sum(1), asked.sum(1)):
                words[row] = int(right), int(number)
            if "follows" in batch.inputs:
                told += (self.model.followed.argmax(-1).cpu() == batch.inputs["follows"]).tolist()
        return distributed.filled(words), [one for some in distributed.gathered(told) for one in some]

    def validate(self, examples: Lines, rows: Rows) -> dict[str, float]:
        words, told = self.judged(rows)
        right, number = np.sum(words, axis=0)
        scores = {**super().validate(examples, rows), "valid_accuracy": 100 * float(right / number)}
        return {**scores, "valid_next_sentence": 100 * float(np.mean(told))} if told else scores

    def score(self, name: str, examples: Lines) -> Result:
        rows = self.evaluation_rows(examples)
        words, told = self.judged(rows)
        scores: dict[str, Score] = {"accuracy": item_accuracy(words), "perplexity": self.perplexity(examples)}
        if told:
            scores["next_sentence"] = accuracy(told, "next_sentence")
        return Result(name, examples, [], scores, notes=[self.commonest(examples)])

    def commonest(self, examples: Lines) -> str:
        counts: Any = np.bincount(np.concatenate([np.array(ids, np.int64) for ids in self.tokenizers[0].encode(examples.text)]))
        return f"always saying the commonest token: {counts.max() / counts.sum():.1%}"

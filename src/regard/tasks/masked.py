"""A masked language model: a run that fills in masked words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import distributed
from regard.batches.batch import IGNORE_INDEX
from regard.batches.batches import sequential_batches
from regard.batches.masked_rows import MaskedPairRows, MaskedRows, lines_with_successor, word_starts
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs
from regard.corpus.examples import TextLines
from regard.errors import UserError
from regard.scoring import Score, accuracy, grouped_accuracy
from regard.tasks.base import EVALUATE_TOKENS, EvaluationResult, Run
from regard.tasks.classify import Prediction
from regard.tokens.special_tokens import BOS_AND_EOS, MASK_NAME, SpecialTokens

MASK_PATTERN = re.compile(r"\[MASK\]|<mask>")
"""How a user writes a mask."""


@dataclass(frozen=True)
class FilledText:
    """A text with its likeliest words filled in, and for each mask the candidates, best first."""

    text: str
    candidates: list[list[Prediction]]


class MaskedRun(Run):
    does = "fills in masked words"
    more_marks = (MASK_NAME,)

    def own_marks(self) -> SpecialTokens:
        return BOS_AND_EOS

    @property
    def mask(self) -> int:
        """The mask of its vocabulary, which may have been brought from elsewhere."""
        names = [self.tokenizers[0].library.token_to_id(name) for name in (MASK_NAME, "[MASK]")]
        if not any(names):
            raise UserError(f"{self.folder / 'tokenizer.json'} has no token {MASK_NAME} or [MASK] to hide words behind")
        return next(number for number in names if number)

    def encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        masking = self.recipe.masking
        side, size = self.side(examples.text, self.tokenizers[0], training), self.tokenizers[0].size
        heads = None
        if masking.whole_words:
            heads = word_starts(side.ids, [self.tokenizers[0].word_ids(side.ids[i].tolist()) for i in range(len(side.ids))])
        if not masking.next_sentence:
            return MaskedRows(side, masking, self.mask, size, heads, special_tokens=self.special_tokens)
        firsts = lines_with_successor(np.array(examples.documents()))
        if not len(firsts):
            raise UserError(f"{examples.name} has no two lines in a row; masking.next_sentence needs documents of several lines")
        return MaskedPairRows(side, masking, self.mask, size, heads, firsts, special_tokens=self.special_tokens)

    def fill(self, texts: Sequence[str], *, number: int = 5) -> list[FilledText]:
        """The likeliest words in place of each mask, written [MASK] or <mask>; all masks of a text at once."""
        return [self.fill_one(text, number) for text in texts]

    def fill_one(self, text: str, number: int) -> FilledText:
        ids = self.masked(text)
        if self.mask not in ids:
            raise UserError(f"{text!r} has no mask; write [MASK] where a word is missing")
        inputs = {
            name: part.to(self.device) for name, part in encoder_inputs(Ragged.from_rows([ids]), self.special_tokens).items()
        }
        with torch.no_grad():
            p = self.model(**inputs)[0, len(self.special_tokens.prefix) :].float().softmax(-1).cpu()  # (S, V)
        candidates = []
        for at in [i for i, token in enumerate(ids) if token == self.mask]:
            best = p[at].topk(min(number, p.size(-1)))
            words = self.tokenizers[0].pieces(best.indices.tolist())
            candidates.append([Prediction(word.strip(), float(q)) for word, q in zip(words, best.values)])
            ids[at] = int(best.indices[0])
        return FilledText(self.tokenizers[0].decode([ids])[0], candidates)

    def masked(self, text: str) -> list[int]:
        """A text as ids, its masks among them."""
        parts = self.tokenizers[0].encode(MASK_PATTERN.split(text))
        ids = [token for part in parts for token in (self.mask, *part)][1:]
        if len(ids) + self.special_tokens.num_added > self.recipe.model.max_length:
            raise UserError(
                f"{text!r} is {len(ids) + self.special_tokens.num_added} tokens long, "
                f"the model takes {self.recipe.model.max_length}; shorten it"
            )
        return ids

    def reading(self, text: str) -> dict[str, Tensor]:
        if not (ids := self.masked(text)):
            raise UserError("there is nothing to show of an empty sentence")
        return encoder_inputs(Ragged.from_rows([ids]), self.special_tokens)

    def judged(self, rows: Rows) -> tuple[list[tuple[int, int]], list[bool]]:
        """Of each row, how many hidden words are said right, and how many there are; and whether the next sentence was told."""
        words: list[Any] = [None] * len(rows)
        told: list[bool] = []
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            with torch.no_grad():
                said = self.model(**batch.to(self.device).inputs).argmax(-1).cpu()  # (B, S)
            asked = batch.labels != IGNORE_INDEX
            for row, right, number in zip(batch.rows, ((said == batch.labels) & asked).sum(1), asked.sum(1)):
                words[row] = int(right), int(number)
            if "follows" in batch.inputs:
                told += (self.model.next_sentence_logits.argmax(-1).cpu() == batch.inputs["follows"]).tolist()
        return distributed.merge_shards(words), [one for some in distributed.all_gather(told) for one in some]

    def validate(self, examples: TextLines, rows: Rows) -> dict[str, float]:
        words, told = self.judged(rows)
        right, number = np.sum(words, axis=0)
        scores = {**super().validate(examples, rows), "valid_accuracy": 100 * float(right / number)}
        return {**scores, "valid_next_sentence": 100 * float(np.mean(told))} if told else scores

    def score(self, name: str, examples: TextLines) -> EvaluationResult:
        rows = self.evaluation_rows(examples)
        words, told = self.judged(rows)
        scores: dict[str, Score] = {"accuracy": grouped_accuracy(words), "perplexity": self.perplexity(examples)}
        if told:
            scores["next_sentence"] = accuracy(told, "next_sentence")
        return EvaluationResult(name, examples, [], scores, notes=[self.commonest(examples)])

    def commonest(self, examples: TextLines) -> str:
        counts: Any = np.bincount(np.concatenate([np.array(ids, np.int64) for ids in self.tokenizers[0].encode(examples.text)]))
        return f"always saying the commonest token: {counts.max() / counts.sum():.1%}"

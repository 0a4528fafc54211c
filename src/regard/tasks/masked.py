"""Masked language modelling (BERT, Devlin et al. 2019): fill in masked words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard import distributed
from regard.batches.batch import IGNORE_INDEX
from regard.batches.masked_rows import MaskedPairRows, MaskedRows, lines_with_successor, word_starts
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs
from regard.corpus.examples import TextLines
from regard.errors import UserError
from regard.models.bert import MaskedLanguageModel
from regard.recipe import EncoderModel, Masking, Recipe, TextData
from regard.scoring import Score, accuracy, grouped_accuracy
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.labels import Prediction
from regard.tasks.shared.one_or_many import one_or_many
from regard.tasks.starters.text_starters import masked_recipe
from regard.tasks.task import TEXT_LIMITS, EvaluationResult, Task, TaskCard
from regard.tokens.special_tokens import MASK_NAME

MASK_PATTERN = re.compile(r"\[MASK\]|<mask>")
"""How a user writes a mask."""


class MaskedRecipe(Recipe):
    """Predict masked words."""

    task: Literal["masked"] = "masked"
    data: TextData
    model: EncoderModel = EncoderModel(kind="transformer", preset="bert-mini")
    masking: Masking = Masking()

    @model_validator(mode="before")
    @classmethod
    def hold_out_documents(cls, given: object) -> object:
        """Hold out whole documents for next-sentence prediction, which reads two lines in a row."""
        if not isinstance(given, dict) or not isinstance(given.get("masking"), dict) or not isinstance(given.get("data"), dict):
            return given
        documents = {"held_out_documents": True} if given["masking"].get("next_sentence") is True else {}
        return {**given, "data": {**documents, **given["data"]}}

    @model_validator(mode="after")
    def check_data(self) -> Self:
        if self.train.regularize.bpe_dropout:
            raise ValueError("train.regularize.bpe_dropout: words are masked anew each epoch, but tokenized alike; set it to 0")
        if self.data.stream:
            raise ValueError("data.stream: words are masked line by line; set it to false")
        if self.data.pack and self.model.convolution:
            raise ValueError("data.pack: model.convolution would see from one text into the next; give one or the other")
        if self.masking.next_sentence and not self.model.segments:
            raise ValueError("masking.next_sentence needs model.segments = 2")
        if self.masking.next_sentence and (self.data.pack or self.data.too_long == "split"):
            setting = "data.pack" if self.data.pack else "data.too_long = 'split'"
            raise ValueError(f"{setting}: masking.next_sentence reads pairs of whole lines; give one or the other")
        return self


@dataclass(frozen=True)
class FilledText:
    """A text with the most probable words filled in, and for each mask the candidates, best first."""

    text: str
    candidates: list[list[Prediction]]

    def __str__(self) -> str:
        return self.text


class MaskedRun(Run):
    """A masked language model."""

    recipe: MaskedRecipe
    _extra_special_tokens = (MASK_NAME,)

    embed = embed_texts

    @overload
    def fill(self, texts: str, *, number: int = 5) -> FilledText: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Iterable[str], *, number: int = 5) -> list[FilledText]: ...
    def fill(self, texts: str | Iterable[str], *, number: int = 5) -> FilledText | list[FilledText]:
        """Return the most probable words for each mask, written [MASK] or <mask>; all masks of a text are filled at once."""
        return one_or_many(texts, lambda several: [self._fill_one(text, number) for text in several])

    def _fill_one(self, text: str, number: int) -> FilledText:
        ids = self._encode_masked(text)
        if self._mask_id not in ids:
            raise UserError(f"{text!r} has no mask; write [MASK] where a word is missing")
        inputs = encoder_inputs(Ragged.from_rows([ids]), self._special_tokens)
        with torch.no_grad():
            logits = self.model(**{name: part.to(self.device) for name, part in inputs.items()})  # (1, S, V)
        p = logits[0, len(self._special_tokens.prefix) :].float().softmax(-1).cpu()  # (S, V)
        candidates = []
        for at in [i for i, token in enumerate(ids) if token == self._mask_id]:
            best = p[at].topk(min(number, p.size(-1)))
            words = self.tokenizers[0].pieces(best.indices.tolist())
            candidates.append([Prediction(word.strip(), float(q)) for word, q in zip(words, best.values)])
            ids[at] = int(best.indices[0])
        return FilledText(self.tokenizers[0].decode([ids])[0], candidates)

    def _encode_masked(self, text: str) -> list[int]:
        """Tokenize a text with its masks."""
        parts = self.tokenizers[0].encode(MASK_PATTERN.split(text))
        ids = [token for part in parts for token in (self._mask_id, *part)][1:]
        length, max_length = len(ids) + self._special_tokens.num_added, self.recipe.model.max_length
        if length > max_length:
            raise UserError(f"{text!r} has {length} tokens, the model takes {max_length}; shorten it")
        return ids

    def _inputs(self, text: str) -> dict[str, Tensor]:
        if not (ids := self._encode_masked(text)):
            raise UserError("the text is empty: there is nothing to show")
        return encoder_inputs(Ragged.from_rows([ids]), self._special_tokens)

    @property
    def _mask_id(self) -> int:
        """The mask token of the vocabulary."""
        if self._huggingface is not None and self._huggingface.mask is not None:
            return self._huggingface.mask
        names = [self.tokenizers[0].library.token_to_id(name) for name in (MASK_NAME, "[MASK]")]
        if not any(names):
            raise UserError(f"{self.folder / 'tokenizer.json'} has no mask token ({MASK_NAME} or [MASK])")
        return next(number for number in names if number)

    def _encode(self, examples: TextLines, *, training: bool = False) -> Rows:
        masking = self.recipe.masking
        store, size = self._token_store(examples.text, self.tokenizers[0], training), self.tokenizers[0].size
        starts = None
        if masking.whole_words:
            starts = word_starts(store.ids, [self.tokenizers[0].word_ids(store.ids[i].tolist()) for i in range(len(store.ids))])
        if not masking.next_sentence:
            return MaskedRows(store, masking, self._mask_id, size, starts, special_tokens=self._special_tokens)
        firsts = lines_with_successor(np.array(examples.documents()))
        if not len(firsts):
            raise UserError(f"{examples.name} has no two lines in a row; masking.next_sentence needs documents of several lines")
        return MaskedPairRows(store, masking, self._mask_id, size, starts, firsts, special_tokens=self._special_tokens)

    def _predictions(self, rows: Rows) -> tuple[list[tuple[int, int]], list[bool]]:
        """Return for each row the number of masked words predicted right and of all, and whether each next sentence was."""
        words: list[Any] = [None] * len(rows)
        next_sentence: list[bool] = []
        for batch in self._batches(rows):
            with torch.no_grad():
                predicted = self.model(**batch.inputs).argmax(-1)  # (B, S)
            masked = batch.labels != IGNORE_INDEX
            right = ((predicted == batch.labels) & masked).sum(1)
            for row, *counts in zip(batch.rows, right.tolist(), masked.sum(1).tolist()):
                words[row] = tuple(counts)
            if "follows" in batch.inputs:
                next_sentence += (self.model.next_sentence_logits.argmax(-1) == batch.inputs["follows"]).tolist()
        return distributed.merge_shards(words), [one for some in distributed.all_gather(next_sentence) for one in some]

    def _validate(self, examples: TextLines, rows: Rows) -> dict[str, float]:
        words, next_sentence = self._predictions(rows)
        right, number = np.sum(words, axis=0)
        scores = {**super()._validate(examples, rows), "valid_accuracy": 100 * float(right / number)}
        return {**scores, "valid_next_sentence": 100 * float(np.mean(next_sentence))} if next_sentence else scores

    def _score(self, name: str, examples: TextLines) -> EvaluationResult:
        words, next_sentence = self._predictions(self._evaluation_rows(examples))
        scores: dict[str, Score] = {"accuracy": grouped_accuracy(words), "perplexity": self._perplexity(examples)}
        if next_sentence:
            scores["next_sentence"] = accuracy(next_sentence, "next_sentence")
        ids = [np.array(ids, np.int64) for ids in self.tokenizers[0].encode(examples.text)]
        counts: Any = np.bincount(np.concatenate(ids))
        baseline = f"baseline, the most frequent token: {counts.max() / counts.sum():.1%}"
        return EvaluationResult(name, examples, [], scores, notes=[baseline])


MASKED = Task(
    name="masked",
    does="fills in masked words",
    recipe=MaskedRecipe,
    run=MaskedRun,
    models={"transformer": MaskedLanguageModel},
    verbs=("fill", "embed"),
    metrics=("valid_accuracy",),
    pretrained=(EncoderModel, TextData),
    explains="masked_token",
    starter=masked_recipe,
    card=TaskCard(
        uses="Filling in words of texts like those it was trained on, contextual vectors, fine-tuning. Research and teaching.",
        misuses="Deciding what somebody meant to write; any use of the associations it has learned about people.",
        limits=TEXT_LIMITS,
        commands=('fill {} "a <mask> ran"', 'embed {} "…" --pool words'),
    ),
)

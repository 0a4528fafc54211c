"""Translation: a sequence-to-sequence model, its search, its word alignments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, Unpack, overload

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from regard.attention.watch import watch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import SentencePairs
from regard.decoding.batching import SearchParams, Sources, decode_all, num_workers, text_sources
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.models.recurrent_translator import RecurrentTranslator
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import (
    AlgorithmWorld,
    Model,
    PairData,
    PairTokenSettings,
    Recipe,
    TransformerModel,
)
from regard.scoring import (
    Score,
    accuracy,
    compare_accuracy,
    compare_systems,
    grouped_accuracy,
    merge_words,
    score_by_length,
    translation_scores,
)
from regard.scoring.alignment import sharpest_layer
from regard.tasks.base import (
    HUMAN_CHECK,
    OWN_ENGINE,
    TEXT_LIMITS,
    ComparisonRow,
    EvaluationResult,
    Run,
    SearchOptions,
    Task,
    TaskCard,
    embed_texts,
    search_params,
)
from regard.tasks.starters.text_starters import translate_recipe
from regard.tokens.special_tokens import NO_TOKEN
from regard.tokens.tokenizer import Tokenizer

ALIGN_BATCH = 64
SEQ2SEQ_MODELS = {"transformer": Transformer, "recurrent": RecurrentTranslator, "universal": UniversalTransformer}


class TranslateRecipe(Recipe):
    """Translate sentences."""

    task: Literal["translate"] = "translate"
    data: PairData
    tokens: PairTokenSettings = PairTokenSettings()
    model: Model = TransformerModel()

    @model_validator(mode="after")
    def check_ties(self) -> Self:
        if not self.tokens.joint and self.model.tie in ("all", "embeddings"):
            raise ValueError(
                f"model.tie = {self.model.tie!r} needs one vocabulary: set tokens.joint = true, or model.tie = 'target'"
            )
        return self


@dataclass(frozen=True)
class Translation:
    """A hypothesis as text."""

    text: str
    score: float
    """Log-probability divided by the length penalty."""
    log_probability: float
    tokens: list[int]
    engine: str = ""
    """The program that computed it."""


@dataclass(frozen=True)
class Alignment:
    """What each target word attends to: weights (layers, heads, target words, source words)."""

    source: list[str]
    target: list[str]
    weights: np.ndarray

    def view(self, layer: int | None = None, head: int | None = None) -> tuple[np.ndarray, str]:
        """Return one matrix and its name: a head, the mean of a layer's heads, or of the sharpest layer's."""
        chosen = sharpest_layer(self.weights) if layer is None else layer
        if head is None:
            heads = self.weights.shape[1]
            return self.weights[chosen].mean(0), f"layer {chosen + 1}" + (f", mean of {heads} heads" if heads > 1 else "")
        return self.weights[chosen, head], f"layer {chosen + 1}, head {head + 1}"


class TranslateRun(Run):
    """A translator. On data of an algorithm (`data.world.kind = "copy"` or `"addition"`) it is scored by exact match."""

    embed = embed_texts

    @overload
    def translate(self, texts: str, **options: Unpack[SearchOptions]) -> list[Translation]: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, texts: Sequence[str], **options: Unpack[SearchOptions]) -> list[list[Translation]]: ...
    def translate(
        self, texts: str | Sequence[str], **options: Unpack[SearchOptions]
    ) -> list[Translation] | list[list[Translation]]:
        """Return the `number` best translations of a text, or of each text, best first; with a `temperature`, sample one.

        Options: beam, length_penalty, max_tokens, number, temperature, top_k, top_p, seed.
        """
        params = search_params(self.recipe.decode, **options)
        sources = self._ids([texts] if isinstance(texts, str) else texts)
        not_empty = [i for i, ids in enumerate(sources) if ids]
        engine = self._engine if params.sampling is None else None  # our sampling uses our random stream
        name = OWN_ENGINE if engine is None else engine.name
        results = [[Translation("", 0.0, 0.0, [], name)] for _ in sources]
        if engine is not None:
            found = engine.decode([sources[i] for i in not_empty], params, self.recipe.model.max_length)
        else:
            found = self._search([sources[i] for i in not_empty], params)
        for i, hypotheses in zip(not_empty, found):
            results[i] = self._translations(hypotheses, name)
        return results[0] if isinstance(texts, str) else results

    def align(self, texts: Sequence[str], references: Sequence[str] | None = None, *, kind: str = "cross") -> Iterator[Alignment]:
        """Yield what each word of a translation, the model's own or a reference, attends to in its source.

        With `kind="encoder"`, what each word of the source attends to.
        """
        assert kind in ("cross", "encoder"), kind
        if references is None:
            return self._align_translations(texts, self._best(texts), kind)
        encoded, max_length = self.tokenizers[1].encode_words(references), self.recipe.model.max_length - 1
        targets = [(text, ids[:max_length], words[:max_length]) for text, (ids, words) in zip(references, encoded)]
        return self._align_targets(texts, targets, kind)

    def _load_tokenizers(self) -> list[Tokenizer]:
        """Return the tokenizers of source and target; they may be the same."""
        found = super()._load_tokenizers()
        if found[-1].special_tokens.bos == NO_TOKEN:
            raise UserError(
                f"tokens.file = {self.recipe.tokens.file!r} has no token that begins an output; a translator needs one"
            )
        return [found[0], found[-1]]

    def _encode(self, examples: SentencePairs, *, training: bool = False) -> Rows:
        source, target = (
            self._token_store(texts, tokenizer, training) for texts, tokenizer in zip(examples.texts(), self.tokenizers)
        )
        return TranslationRows(source, target, self._special_tokens)

    def _search(self, ids: Sequence[Sequence[int]], params: SearchParams) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source by our own search."""
        return decode_all(
            self.model,
            self._sources(ids, params.max_tokens),
            params,
            device=self.device,
            workers=num_workers(self.model, self.device),
            special_tokens=self._special_tokens,
        )

    def _sources(self, ids: Sequence[Sequence[int]], max_tokens: int | None) -> Sources:
        """Return token ids as inputs to decode from."""
        return text_sources(
            ids,
            device=self.device,
            max_length=self.recipe.model.max_length,
            max_tokens=max_tokens,
            special_tokens=self._special_tokens,
        )

    def _translations(self, hypotheses: list[Hypothesis], engine: str = "") -> list[Translation]:
        texts = self.tokenizers[1].decode([h.tokens for h in hypotheses])
        return [Translation(text, h.score, h.log_probability, h.tokens, engine) for text, h in zip(texts, hypotheses)]

    def _best(self, texts: Sequence[str], **options: Unpack[SearchOptions]) -> list[Translation]:
        """Return the best translation of each text."""
        return [found[0] for found in self.translate(texts, **options)]

    # scores

    @property
    def _is_algorithm(self) -> bool:
        return isinstance(getattr(self.recipe.data, "world", None), AlgorithmWorld)

    def _validate(self, examples: SentencePairs, rows: Rows) -> dict[str, float]:
        """Return the loss, and with `train.evaluate_sentences` the greedy BLEU or, of an algorithm, the exact match."""
        scores = super()._validate(examples, rows)
        number = self.recipe.train.evaluate_sentences
        if not number:
            return scores
        if self._is_algorithm:
            outputs = [found.text for found in self._best(examples.source[:number], beam=1)]
            scores["valid_accuracy"] = accuracy(exact_matches(outputs, examples.target[:number])).score
        else:
            some = examples.select(range(0, len(examples), -(-len(examples) // number)))  # a file may be sorted
            outputs = [found.text for found in self._best(some.source, beam=1)]
            scores["valid_bleu"] = translation_scores(outputs, some.target, metrics=("bleu",), samples=2)["bleu"].score
        return scores

    def _score(self, name: str, examples: SentencePairs) -> EvaluationResult:
        outputs = [found.text for found in self._best(examples.source)]
        if self._is_algorithm:
            scores = {**exact_match_scores(outputs, examples.target), "perplexity": self._perplexity(examples)}
            return EvaluationResult(name, examples, outputs, scores)
        scores = {**translation_scores(outputs, examples.target), "perplexity": self._perplexity(examples)}
        return EvaluationResult(name, examples, outputs, scores, score_by_length(examples.source, outputs, examples.target))

    def _compare(self, runs: "dict[str, TranslateRun]", examples: SentencePairs) -> list[ComparisonRow]:
        outputs = {name: [found.text for found in run._best(examples.source)] for name, run in runs.items()}
        if self._is_algorithm:
            return compare_accuracy({name: exact_matches(texts, examples.target) for name, texts in outputs.items()})
        return compare_systems(outputs, examples.target)

    # attention

    def _align_translations(
        self, texts: Sequence[str], translations: Sequence[Translation], kind: str = "cross"
    ) -> Iterator[Alignment]:
        targets = [(one.text, one.tokens, self.tokenizers[1].word_ids(one.tokens)) for one in translations]
        return self._align_targets(texts, targets, kind)

    def _align_targets(
        self, texts: Sequence[str], targets: Sequence[tuple[str, list[int], list[int]]], kind: str
    ) -> Iterator[Alignment]:
        """Yield the alignment of each text with its target: the text, its tokens, and the word that each token belongs to."""
        sources, source_words = self._ids(texts), [words for _, words in self.tokenizers[0].encode_words(texts)]
        target_ids = [ids for _, ids, _ in targets]
        if not self._attends:
            raise UserError(f"{self.folder}: a model without attention has nothing to show (model.attention = 'none')")
        if not all(sources) or not all(target_ids):
            raise UserError("the text is empty: there is nothing to show")
        rows = TranslationRows(
            TokenStore(Ragged.from_rows(sources)), TokenStore(Ragged.from_rows(target_ids)), self._special_tokens
        )
        for i, weights in enumerate(attention_of_rows(self, rows, "cross" if kind == "cross" else r"^encoder\.")):
            words = source_words[i][: len(sources[i])]
            text, _, queries = targets[i] if kind == "cross" else (texts[i], sources[i], words)
            yield alignment_by_words(texts[i], words, text, queries, weights[:, :, : len(queries) + 1, : len(words) + 1])

    def _inputs(self, text: str) -> dict[str, Tensor]:
        """Return the source, and its best translation as decoder input."""
        (source,), (best,) = self._ids([text]), self._best([text])
        if not source:
            raise UserError("the text is empty: there is nothing to show")
        rows = TranslationRows(
            TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([best.tokens])), self._special_tokens
        )
        return rows.batch(np.array([0]), 0, 0).inputs


def attention_of_rows(run: Run, rows: Rows, kinds: str) -> Iterator[np.ndarray]:
    """Yield the attention weights (L, H, T, S) of each row in order, padded to the longest of its batch."""
    for start in range(0, len(rows), ALIGN_BATCH):
        batch = rows.batch(np.arange(start, min(start + ALIGN_BATCH, len(rows))), 0, 0).to(run.device)
        with torch.no_grad(), watch(run.model, kinds=kinds) as seen:
            run.model(**batch.inputs)
        yield from seen.stack().float().cpu().numpy().swapaxes(0, 1)  # (B, L, H, T, S)


def alignment_by_words(source: str, keys: list[int], target: str, queries: list[int], weights: np.ndarray) -> Alignment:
    """Merge sub-words into words by the word that each token belongs to; the end tokens are left out."""
    merged = np.array([[merge_words(head, [*queries, -1], [*keys, -1]) for head in layer] for layer in weights])
    return Alignment(source.split()[: merged.shape[-1]], target.split()[: merged.shape[-2]], merged)


def exact_match_scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """Return the percentage of outputs that are right, and of characters; the surplus of the longer text counts as wrong."""
    places = [(sum(a == b for a, b in zip(one, other)), max(len(one), len(other))) for one, other in zip(outputs, references)]
    return {
        "exact": accuracy(exact_matches(outputs, references), "exact"),
        "characters": grouped_accuracy(places, "characters"),
    }


def exact_matches(outputs: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Whether each output equals its reference."""
    return [one == other for one, other in zip(outputs, references, strict=True)]


TRANSLATE = Task(
    name="translate",
    does="translates",
    recipe=TranslateRecipe,
    run=TranslateRun,
    models=SEQ2SEQ_MODELS,
    verbs=("translate", "align", "embed"),
    encoder_decoder=True,
    searches=True,
    metrics=("valid_bleu", "valid_accuracy"),
    pretrained=(TransformerModel, PairData),
    explains="translation",
    model_sizes=lambda recipe, vocabulary: vocabulary,
    lengths=lambda recipe, given: given or (30, 30),
    starter=translate_recipe,
    card=TaskCard(
        uses="Translation of short texts like those it was trained on. Research and teaching.",
        misuses=f"{HUMAN_CHECK} and reads both languages; passing its output off as a person's words.",
        limits=f"{TEXT_LIMITS} It can translate fluently and wrongly.",
        commands=('translate {} "…"', 'show {} "…" --out attention.svg'),
    ),
)

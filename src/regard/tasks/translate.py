"""A translator: a run that translates, and shows what its translations looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.modules import attention_modules
from regard.attention.watch import watch
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import SentencePairs
from regard.decoding.batching import SearchParams, Sources, decode_all, num_workers, text_sources
from regard.decoding.protocol import Hypothesis
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.scoring import compare_systems, merge_words, score_by_length, translation_scores
from regard.scoring.alignment import sharpest_layer
from regard.tasks.base import EvaluationResult, Run, search_params
from regard.tokens.special_tokens import NO_TOKEN

ALIGN_AT_ONCE = 64


@dataclass(frozen=True)
class Translation:
    text: str
    score: float
    """Log-probability divided by the length penalty."""
    log_probability: float
    tokens: list[int]
    engine: str = ""
    """Whose program said it."""


class DecodingEngine(Protocol):
    """Somebody else's program that searches with this model."""

    name: str

    def decode(self, sources: Sequence[Sequence[int]], params: SearchParams, max_length: int) -> list[list[Hypothesis]]: ...


@dataclass(frozen=True)
class Alignment:
    """What each target word looked at: weights (layers, heads, target words, source words)."""

    source: list[str]
    target: list[str]
    weights: np.ndarray

    def view(self, layer: int | None = None, head: int | None = None) -> tuple[np.ndarray, str]:
        """One matrix and its name: a head, the mean of a layer's heads, or of the layer that looks most sharply."""
        chosen = sharpest_layer(self.weights) if layer is None else layer
        if head is None:
            heads = self.weights.shape[1]
            return self.weights[chosen].mean(0), f"layer {chosen + 1}" + (f", mean of {heads} heads" if heads > 1 else "")
        return self.weights[chosen, head], f"layer {chosen + 1}, head {head + 1}"


class TranslateRun(Run):
    does = "translates"
    engine: DecodingEngine | None = None
    """Another program than ours that translates; everything else is ours."""

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"] if recipe.tokens.joint else ["tokenizer.source.json", "tokenizer.target.json"]

    def load_tokenizers(self):
        """Of the source and of the target; they may be the same."""
        found = super().load_tokenizers()
        if found[-1].special_tokens.bos == NO_TOKEN:
            raise UserError(
                f"tokens.file = {self.recipe.tokens.file!r} has no token that begins an output; a translator needs one"
            )
        return [found[0], found[-1]]

    def build_model(self) -> nn.Module:
        settings = self.recipe.model
        return MODELS["translate"][settings.kind](
            settings, *(tokenizer.size for tokenizer in self.tokenizers), self.recipe.train.regularize
        )

    def encode(self, examples: SentencePairs, *, training: bool = False) -> Rows:
        source, target = (self.side(texts, tokenizer, training) for texts, tokenizer in zip(examples.texts(), self.tokenizers))
        return TranslationRows(source, target, self.special_tokens)

    def validate(self, examples: SentencePairs, rows: Rows) -> dict[str, float]:
        """The loss, and greedy BLEU where the recipe asks for it."""
        scores = super().validate(examples, rows)
        if number := self.recipe.train.evaluate_sentences:
            some = examples.select(range(0, len(examples), -(-len(examples) // number)))  # a file may be sorted
            said = [translation.text for translation in self.best(some.source, beam=1)]
            scores["valid_bleu"] = translation_scores(said, some.target, metrics=("bleu",), samples=2)["bleu"].score
        return scores

    def score(self, name: str, examples: SentencePairs) -> EvaluationResult:
        said = [translation.text for translation in self.best(examples.source)]
        scores = translation_scores(said, examples.target)
        scores["perplexity"] = self.perplexity(examples)
        return EvaluationResult(name, examples, said, scores, score_by_length(examples.source, said, examples.target))

    def paired(self, runs: "dict[str, TranslateRun]", examples: SentencePairs) -> list[dict[str, Any]]:
        """Is each run different from the first on these sentences?"""
        return compare_systems(
            {name: [found.text for found in run.best(examples.source)] for name, run in runs.items()}, examples.target
        )

    def signature(self) -> str:
        decode = self.recipe.decode
        return f"beam:{decode.beam}|alpha:{decode.length_penalty}|{super().signature()}"

    @property
    def attends(self) -> bool:
        """Whether its decoder looks at the source."""
        return bool(attention_modules(self.model, kinds="cross"))

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_tokens: int | None = None,
        number: int = 1,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[list[Translation]]:
        """The `number` best translations of each text, best first. A `temperature` samples one instead."""
        params = search_params(
            self.recipe.decode,
            "hypotheses",
            beam=beam,
            length_penalty=length_penalty,
            max_tokens=max_tokens,
            number=number,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        sources = self.ids(texts)
        spoken = [i for i, ids in enumerate(sources) if ids]
        engine = self.engine if temperature is None else None  # what is drawn depends on our own chance
        name = self.engine_name if engine is self.engine else super().engine_name
        results = [[Translation("", 0.0, 0.0, [], name)] for _ in texts]
        if engine is not None:
            found = engine.decode([sources[i] for i in spoken], params, self.recipe.model.max_length)
        else:
            found = self.search([sources[i] for i in spoken], params)
        for i, hypotheses in zip(spoken, found):
            results[i] = self.translations(hypotheses, name)
        return results

    def search(self, ids: Sequence[Sequence[int]], params: SearchParams) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source by our own search."""
        return decode_all(
            self.model,
            self.sources(ids, params.max_tokens),
            params,
            device=self.device,
            special_tokens=self.special_tokens,
            workers=num_workers(self.model, self.device),
        )

    def sources(self, ids: Sequence[Sequence[int]], max_tokens: int | None) -> Sources:
        """Return token ids as inputs to decode from."""
        return text_sources(
            ids,
            device=self.device,
            max_length=self.recipe.model.max_length,
            max_tokens=max_tokens,
            special_tokens=self.special_tokens,
        )

    @property
    def engine_name(self) -> str:
        return super().engine_name if self.engine is None else self.engine.name

    def translations(self, hypotheses: list[Hypothesis], engine: str = "") -> list[Translation]:
        texts = self.tokenizers[1].decode([h.tokens for h in hypotheses])
        return [Translation(text, h.score, h.log_probability, h.tokens, engine) for text, h in zip(texts, hypotheses)]

    def align(self, texts: Sequence[str], references: Sequence[str] | None = None, *, kind: str = "cross") -> Iterator[Alignment]:
        """What each word of a translation (the model's own, unless references are given) looked at in its source; of the kind
        "encoder", what each word of the source did."""
        assert kind in ("cross", "encoder"), kind
        if references is None:
            return self.aligned(texts, self.best(texts), kind)
        encoded, most = self.tokenizers[1].encode_words(references), self.recipe.model.max_length - 1
        return self.looked(texts, [(text, ids[:most], words[:most]) for text, (ids, words) in zip(references, encoded)], kind)

    def aligned(self, texts: Sequence[str], found: Sequence[Translation], kind: str = "cross") -> Iterator[Alignment]:
        """The same of translations that were found."""
        return self.looked(texts, [(one.text, one.tokens, self.tokenizers[1].word_ids(one.tokens)) for one in found], kind)

    def looked(self, texts: Sequence[str], told: Sequence[tuple[str, list[int], list[int]]], kind: str) -> Iterator[Alignment]:
        """Of what is told of each text: its words, its tokens, and the number of the word that each is of."""
        sources, read = self.ids(texts), [words for _, words in self.tokenizers[0].encode_words(texts)]
        said = [ids for _, ids, _ in told]
        if not self.attends:
            raise UserError(f"{self.folder}: a model without attention has nothing to show (model.attention = 'none')")
        if not all(sources) or not all(said):
            raise UserError("there is nothing to show of an empty sentence")
        rows_of = TranslationRows(TokenStore(Ragged.from_rows(sources)), TokenStore(Ragged.from_rows(said)), self.special_tokens)
        for start in range(0, len(texts), ALIGN_AT_ONCE):
            rows = np.arange(start, min(start + ALIGN_AT_ONCE, len(texts)))
            batch = rows_of.batch(rows, 0, 0).to(self.device)
            with torch.no_grad(), watch(self.model, kinds="cross" if kind == "cross" else r"^encoder\.") as seen:
                self.model(**batch.inputs)
            weights = seen.stack().float().cpu().numpy()  # (L, B, H, T, S)
            for row, i in enumerate(rows.tolist()):
                words = read[i][: len(sources[i])]
                asking, _, asked = told[i] if kind == "cross" else (texts[i], sources[i], words)
                yield alignment_by_words(texts[i], words, asking, asked, weights[:, row, :, : len(asked) + 1, : len(words) + 1])

    def reading(self, text: str) -> dict[str, Tensor]:
        """Its source, and its best translation as the decoder reads it."""
        (source,), (said,) = self.ids([text]), self.best([text])
        if not source:
            raise UserError("there is nothing to show of an empty sentence")
        rows = TranslationRows(
            TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([said.tokens])), self.special_tokens
        )
        return rows.batch(np.array([0]), 0, 0).inputs

    def best(self, texts: Sequence[str], **settings: Any) -> list[Translation]:
        """The best translation of each text."""
        return [found[0] for found in self.translate(texts, **settings)]


def alignment_by_words(source: str, read: list[int], asking: str, asked: list[int], weights: np.ndarray) -> Alignment:
    """Sub-words, of which the numbers of their words are given, merged into words; end marks are left out."""
    merged = np.array([[merge_words(head, [*asked, -1], [*read, -1]) for head in layer] for layer in weights])
    return Alignment(source.split()[: merged.shape[-1]], asking.split()[: merged.shape[-2]], merged)

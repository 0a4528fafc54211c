"""Translation: a sequence-to-sequence model, its search, its word alignments."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from regard.decoding.batching import Sources, decode_all, is_watched, num_workers, text_sources
from regard.decoding.protocol import Hypothesis
from regard.decoding.sampling import sample_index
from regard.errors import UserError
from regard.models.recurrent_translator import RecurrentTranslator
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import (
    AlgorithmWorld,
    LadderSettings,
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
from regard.tasks.base import OWN_ENGINE, Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.long_texts import TooLong, fitting_parts
from regard.tasks.shared.one_or_many import as_several, best_or_ranked, one_or_many
from regard.tasks.shared.search import SearchOptions, TranslateOptions, search_params
from regard.tasks.starters.pair_starters import translate_recipe
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, ComparisonRow, EvaluationResult, Task, TaskCard
from regard.tokens.languages import has_target_language, language_codes, with_languages
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
    ladder: LadderSettings | None = None
    """How `regard ladder` trains this and other models."""

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
    rows: list[int] = field(default_factory=list, compare=False, repr=False)
    """Its row of the batch in each step of the search, for `seen.of(translation)`."""

    def __str__(self) -> str:
        return self.text


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


# what every model from text to text can do


@overload
def translate_texts(run: Run, texts: str, *, number: None = None, **options: Unpack[TranslateOptions]) -> Translation: ...  # type: ignore[overload-overlap]
@overload
def translate_texts(run: Run, texts: str, *, number: int, **options: Unpack[TranslateOptions]) -> list[Translation]: ...  # type: ignore[overload-overlap]
@overload
def translate_texts(
    run: Run, texts: Iterable[str], *, number: None = None, **options: Unpack[TranslateOptions]
) -> list[Translation]: ...
@overload
def translate_texts(
    run: Run, texts: Iterable[str], *, number: int, **options: Unpack[TranslateOptions]
) -> list[list[Translation]]: ...
def translate_texts(
    run: Run, texts: str | Iterable[str], *, number: int | None = None, **options: Unpack[TranslateOptions]
) -> Translation | list[Translation] | list[list[Translation]]:
    """Return the translation of a text, or of each text of a list; with a `number`, a list of its best translations.

    With a `temperature`, translations are sampled. Options: beam, length_penalty, max_tokens, temperature, top_k, top_p, seed;
    `too_long` ("error", "truncate" or "split") says what happens to texts that are longer than the model takes.
    """
    return best_or_ranked(texts, number, lambda several: search_translations(run, several, number, **options))


def search_translations(
    run: Run,
    texts: Sequence[str],
    number: int | None = None,
    *,
    too_long: TooLong | None = None,
    place: int = 0,
    **options: Unpack[SearchOptions],
) -> list[list[Translation]]:
    """Return the `number` best translations of each text, best first, or as many samples.

    The translation of a text that is split is that of its parts, joined.
    """
    params = search_params(run.recipe.decode, number, **options)
    parts = fitting_parts(run, texts, too_long, place=place)
    rows = [(i, j) for i, found in enumerate(parts) for j in range(len(found)) if found[j]]
    sources, indices = [parts[i][j] for i, j in rows], [sample_index(place + i, 0, j) for i, j in rows]
    own = params.sampling is not None or is_watched(run.model)  # our random stream; what only our model can show
    engine = None if own else run._engine
    if engine is not None:
        hypotheses = engine.decode(sources, params, run.recipe.model.max_length)
    else:
        hypotheses = decode_all(
            run._predictor,
            replace(text_inputs(run, sources, params.max_tokens), sequence_ids=indices),
            params,
            device=run.device,
            workers=num_workers(run.model, run.device),
            special_tokens=run._special_tokens,
        )
    name = OWN_ENGINE if engine is None else engine.name
    translated: list[list[list[Translation]]] = [[[] for _ in found] for found in parts]
    for (i, j), found in zip(rows, hypotheses):
        translated[i][j] += as_translations(run, found, name)
    return [join_parts(found, name) for found in translated]


def join_parts(parts: Sequence[Sequence[Translation]], engine: str) -> list[Translation]:
    """Return the translations of a text from those of its parts: the best of each joined, then the second best, and so on."""
    found = [part for part in parts if part]
    if len(found) == 1:
        return list(found[0])
    joined = [[part[min(rank, len(part) - 1)] for part in found] for rank in range(max(map(len, found), default=1))]
    return [
        Translation(
            " ".join(one.text for one in several),
            sum((one.score for one in several), 0.0),
            sum((one.log_probability for one in several), 0.0),
            [token for one in several for token in one.tokens],
            engine,
        )
        for several in joined
    ]


def best_translations(run: Run, texts: Sequence[str], **options: Unpack[TranslateOptions]) -> list[Translation]:
    """Return the best translation of each text."""
    return [found[0] for found in search_translations(run, texts, **options)]


def text_inputs(run: Run, ids: Sequence[Sequence[int]], max_tokens: int | None) -> Sources:
    """Return token ids as inputs to decode from."""
    multilingual = run._huggingface is not None and run._huggingface.family.language_codes != "none"
    if multilingual and not has_target_language(run.tokenizers[-1]):
        codes = list(language_codes(run.tokenizers[-1]))
        raise UserError(
            f"{run.folder} translates into {len(codes)} languages; name one with --target-language, such as {codes[0]} "
            "(in Python: run.use_languages(target=…))"
        )
    return text_sources(
        ids,
        device=run.device,
        max_length=run.recipe.model.max_length,
        max_tokens=max_tokens,
        special_tokens=run._special_tokens,
    )


def as_translations(run: Run, hypotheses: list[Hypothesis], engine: str = "") -> list[Translation]:
    """Return hypotheses as texts."""
    texts = run.tokenizers[1].decode([h.tokens for h in hypotheses])
    return [Translation(text, h.score, h.log_probability, h.tokens, engine, h.rows) for text, h in zip(texts, hypotheses)]


def load_pair_tokenizers(run: Run) -> list[Tokenizer]:
    """Return the tokenizers of source and target; they may be the same."""
    found = Run._load_tokenizers(run)
    if found[-1].special_tokens.bos == NO_TOKEN:
        raise UserError(f"tokens.file = {run.recipe.tokens.file!r} has no token that begins an output; a translator needs one")
    if isinstance(tokens := run.recipe.tokens, PairTokenSettings):
        set_languages(found, tokens.source_language, tokens.target_language)
    return [found[0], found[-1]]


def set_languages(tokenizers: Sequence[Tokenizer], source: str | None, target: str | None) -> None:
    """Set the language codes around a text and at the beginning of an output, where they are given."""
    if source is not None or target is not None:
        special_tokens = with_languages(tokenizers[0], source, target)
        for tokenizer in tokenizers:
            tokenizer.special_tokens = special_tokens


def use_languages(run: Run, *, source: str | None = None, target: str | None = None) -> None:
    """Translate from and into these languages, given as codes of the model: "deu_Latn" for NLLB, "de_DE" for mBART."""
    set_languages(run.tokenizers, source, target)


def use_engine(run: Run, engine: str = "auto", precision: str | None = None) -> None:
    """Translate with our engine ("regard"), with "ctranslate2", or with the faster one if it is as good ("auto", measured once).

    Sampling, and a model that is watched or edited, stay with ours. CTranslate2 has the weights of the folder: after changing
    `run.model`, use "regard". `precision` is "fp32", "bf16" or "int8".
    """
    from regard.run import engines

    engines.use_engine(run, engine, precision)


def encode_pairs(run: Run, examples: SentencePairs, *, training: bool = False) -> Rows:
    """Tokenize sentence pairs."""
    source, target = (run._token_store(texts, tokenizer, training) for texts, tokenizer in zip(examples.texts(), run.tokenizers))
    return TranslationRows(source, target, run._special_tokens)


def translation_inputs(run: Run, text: str) -> dict[str, Tensor]:
    """Return the source, and its best translation as decoder input."""
    (source,), (best,) = run._ids([text]), best_translations(run, [text])
    if not source:
        raise UserError("the text is empty: there is nothing to show")
    rows = TranslationRows(
        TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([best.tokens])), run._special_tokens
    )
    return rows.batch(np.array([0]), 0, 0).inputs


@overload
def align_texts(run: Run, texts: str, references: str | None = None, *, kind: str = "cross") -> Alignment: ...  # type: ignore[overload-overlap]
@overload
def align_texts(
    run: Run, texts: Sequence[str], references: Sequence[str] | None = None, *, kind: str = "cross"
) -> list[Alignment]: ...
def align_texts(
    run: Run, texts: str | Sequence[str], references: str | Sequence[str] | None = None, *, kind: str = "cross"
) -> Alignment | list[Alignment]:
    """Return what each word of a translation, the model's own or a reference, attends to in its source.

    With `kind="encoder"`, what each word of the source attends to.
    """
    given = None if references is None else as_several(references)
    return one_or_many(texts, lambda several: list(iterate_alignments(run, several, given, kind=kind)))


def iterate_alignments(
    run: Run, texts: Sequence[str], references: Sequence[str] | None = None, *, kind: str = "cross"
) -> Iterator[Alignment]:
    """Yield the alignment of each text with its translation or reference."""
    if references is not None and len(references) != len(texts):
        raise UserError(f"{len(texts)} texts but {len(references)} references: give one for each")
    assert kind in ("cross", "encoder"), kind
    if references is None:
        return align_translations(run, texts, best_translations(run, texts), kind)
    encoded, max_length = run.tokenizers[1].encode_words(references), run.recipe.model.max_length - 1
    targets = [(text, ids[:max_length], words[:max_length]) for text, (ids, words) in zip(references, encoded)]
    return align_targets(run, texts, targets, kind)


def align_translations(
    run: Run, texts: Sequence[str], translations: Sequence[Translation], kind: str = "cross"
) -> Iterator[Alignment]:
    """Yield the alignment of each text with its translation."""
    targets = [(one.text, one.tokens, run.tokenizers[1].word_ids(one.tokens)) for one in translations]
    return align_targets(run, texts, targets, kind)


def align_targets(
    run: Run, texts: Sequence[str], targets: Sequence[tuple[str, list[int], list[int]]], kind: str
) -> Iterator[Alignment]:
    """Yield the alignment of each text with its target: the text, its tokens, and the word that each token belongs to."""
    sources, source_words = run._ids(texts), [words for _, words in run.tokenizers[0].encode_words(texts)]
    target_ids = [ids for _, ids, _ in targets]
    if not run._attends:
        raise UserError(f"{run.folder}: a model without attention has nothing to show (model.attention = 'none')")
    if not all(sources) or not all(target_ids):
        raise UserError("the text is empty: there is nothing to show")
    rows = TranslationRows(TokenStore(Ragged.from_rows(sources)), TokenStore(Ragged.from_rows(target_ids)), run._special_tokens)
    for i, weights in enumerate(attention_of_rows(run, rows, "cross" if kind == "cross" else r"^encoder\.")):
        words = source_words[i][: len(sources[i])]
        text, _, queries = targets[i] if kind == "cross" else (texts[i], sources[i], words)
        first_key = len(run._special_tokens.prefix)
        first_query = len(run._special_tokens.output_prefix) if kind == "cross" else first_key
        weights = weights[:, :, first_query : first_query + len(queries) + 1, first_key : first_key + len(words) + 1]
        yield alignment_by_words(texts[i], words, text, queries, weights)


class TextToTextVerbs:
    """What every run of a model from text to text can do, beside what `Run` has."""

    translate = translate_texts
    use_languages = use_languages
    use_engine = use_engine
    align = align_texts
    _align = iterate_alignments
    embed = embed_texts
    _best = best_translations
    _sources = text_inputs
    _translations = as_translations
    _align_translations = align_translations
    _load_tokenizers = load_pair_tokenizers
    _encode = encode_pairs
    _inputs = translation_inputs


class TranslateRun(TextToTextVerbs, Run):
    """A translator. On data of an algorithm (`data.world.kind = "copy"` or `"addition"`) it is scored by exact match."""

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
        scores = (exact_match_scores if self._is_algorithm else translation_scores)(outputs, examples.target)
        by_length = [] if self._is_algorithm else score_by_length(examples.source, outputs, examples.target)
        return EvaluationResult(name, examples, outputs, {**scores, "perplexity": self._perplexity(examples)}, by_length)

    def _compare(self, runs: "dict[str, TranslateRun]", examples: SentencePairs) -> list[ComparisonRow]:
        outputs = {name: [found.text for found in run._best(examples.source)] for name, run in runs.items()}
        if self._is_algorithm:
            return compare_accuracy({name: exact_matches(texts, examples.target) for name, texts in outputs.items()})
        return compare_systems(outputs, examples.target)


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

"""A run: a model with its recipe and tokenizers. What the runs of all tasks have, and what each must say of itself."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard import __version__, distributed
from regard.attention.modules import attention_modules
from regard.batches.batches import sequential_batches
from regard.batches.language_rows import PackedRows, UnpaddedRows
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, encoder_inputs, evaluation_rows, training_rows
from regard.batches.token_store import build_token_store, open_token_store
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.examples import Examples
from regard.decoding.batching import SearchParams, batches_by_length
from regard.decoding.sampling import SamplingParams
from regard.errors import UserError
from regard.files import atomic_write
from regard.interop.convert import HuggingFaceFolder, is_huggingface_folder, open_huggingface_folder
from regard.models.registry import MODELS
from regard.recipe import DecodeSettings
from regard.run import environment
from regard.scoring import Score, perplexity
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens
from regard.tokens.tokenizer import Tokenizer, load_any_tokenizer, load_tokenizer, parse_tokenizer, train_tokenizer
from regard.training.losses import CrossEntropy, Objective, sequence_log_probs

EVALUATE_TOKENS = 8192
MAXIMIZED_METRICS = ("valid_bleu", "valid_accuracy", "valid_spearman", "valid_f1", "valid_mean", "valid_recall")
"""Validation metrics that choose the best weights, where they are measured; else the lowest valid_loss does."""
EMBED_TOKENS, EMBED_TOKENS_CPU = 4096, 1024
"""A CPU is busy with fewer at once, of which less is padding."""
SPECIAL_TOKENS_FILE = "marks.json"
"""The marks of a tokenizer that came from elsewhere."""
POOLS = ("mean", "cls", "words")


@dataclass
class EvaluationResult:
    """The scores of one set, and what they were computed from."""

    name: str
    examples: Any
    outputs: list[str]
    """What the run said of each example, one line each."""
    scores: dict[str, Score]
    by_length: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EmbeddedText:
    """What vectors (N, D) were made of, and the vectors."""

    tokens: list[str]
    vectors: np.ndarray


class Run:
    """A run folder opened."""

    does = "nothing"
    """What it does, in a word for messages."""

    more_marks: tuple[str, ...] = ()
    """Marks in its vocabulary besides the usual ones."""

    def __init__(self, folder: Path, recipe: Any, device: torch.device, huggingface: HuggingFaceFolder | None = None):
        """`foreign` is the Hugging Face folder it was opened from, where it is one."""
        self.folder, self.recipe, self.device, self.huggingface = folder, recipe, device, huggingface
        self.tokenizers = self.load_tokenizers()
        self.model: Any = self.build_model().to(device).eval()
        self.exact: Any = self.model
        """As it was trained; `model` may be the same in another precision (run/engines.py)."""
        self.precision = "fp32"

    # what it is made of

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        """Write what a run needs besides its weights: its tokenizers, found in the folder, loaded from the recipe's file, or
        trained on the training data."""
        names, texts = cls.tokenizer_names(recipe), data.train.texts()
        begin = recipe.train.init_from
        if begin is not None and begin.tokenizer and names:
            copy_tokenizers(Path(begin.run), folder, names)
        if len(names) < len(texts):
            texts = [[line for side in texts for line in side]]
        for name, lines in zip(names, texts):
            if not (folder / name).exists():
                write_tokenizer(
                    load_any_tokenizer(Path(recipe.data.root, recipe.tokens.file))
                    if recipe.tokens.file
                    else train_tokenizer(recipe.tokens, lines, cls.more_marks),
                    folder / name,
                )

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"]

    def load_tokenizers(self) -> list[Tokenizer]:
        if self.huggingface is not None and self.huggingface.tokenizer is not None:
            return [self.huggingface.tokenizer]
        if (self.folder / SPECIAL_TOKENS_FILE).is_file():
            return [load_pretrained_tokenizer(self.folder)]
        found = [load_tokenizer(self.folder / name) for name in self.tokenizer_names(self.recipe)]
        for tokenizer in found:
            tokenizer.special_tokens = self.own_marks()
        return found

    def own_marks(self) -> SpecialTokens:
        """The marks its texts are read with."""
        return DEFAULT_SPECIAL_TOKENS

    def build_model(self) -> nn.Module:
        return MODELS[self.recipe.task][self.recipe.model.kind](
            self.recipe.model, self.tokenizers[0].size, self.recipe.train.regularize
        )

    @property
    def special_tokens(self) -> SpecialTokens:
        return self.tokenizers[0].special_tokens

    def writing_marks(self) -> SpecialTokens:
        """Those of what it writes."""
        return self.special_tokens

    def spoken_weights(self) -> dict[str, Tensor]:
        """The weights of a model that says of itself what the run says: for other libraries, which have the model alone."""
        return dict(self.model.named_parameters())

    def learned(self, logits: Tensor) -> Tensor:
        """What such a model says, as ours learned to say it."""
        return logits

    @property
    def longest(self) -> int:
        """Positions that an example may take."""
        return self.recipe.model.max_length

    def sizes(self) -> dict[str, Any]:
        """What its model has the size of, for config.json."""
        return {"vocabularies": [tokenizer.size for tokenizer in self.tokenizers]}

    # what it learns from

    @cached_property
    def data(self) -> Dataset[Any]:
        """The validation and test sets of the recipe."""
        if self.huggingface is not None:
            raise UserError(f"{self.folder} is a Hugging Face folder, which names no data; give --source and --reference")
        return read_dataset(self.recipe.data, train=False)

    def encode(self, examples: Any, *, training: bool = False) -> Rows:
        """Examples as ids."""
        raise NotImplementedError

    def side(self, texts: Sequence[str], tokenizer: Tokenizer, training: bool):
        """Texts as ids: kept on disk, and with BPE-dropout, for training."""
        if not training:
            return build_token_store(texts, tokenizer)
        return open_token_store(texts, tokenizer, bpe_dropout=self.recipe.train.regularize.bpe_dropout, seed=self.recipe.seed)

    def too_long(self, examples: Any) -> str:
        """What is done with those of some examples that are too long."""
        return self.recipe.data.too_long

    def training_rows(self, examples: Any) -> tuple[Rows, int]:
        """The training examples that fit, as ids, and how many did not."""
        most = self.longest
        rows, long = training_rows(
            examples, partial(self.encode, training=True), max_length=most, too_long=self.too_long(examples)
        )
        return PackedRows(cast(UnpaddedRows, rows), most) if getattr(self.recipe.data, "pack", False) else rows, long

    def evaluation_rows(self, examples: Any, *, refuse: bool = False) -> Rows:
        """Examples to be scored, as ids; `refuse` those too long where the recipe says so, else cut them."""
        too_long = self.too_long(examples)
        return evaluation_rows(
            examples,
            self.encode,
            max_length=self.longest,
            too_long="truncate" if too_long == "error" and not refuse else too_long,
        )

    def objective(self) -> Objective:
        """What it is trained for."""
        return CrossEntropy(self.recipe.train.regularize)

    # how well it does

    def validate(self, examples: Any, rows: Rows) -> dict[str, float]:
        """What is measured while training: the loss a label, and more where it is cheap."""
        total, count = 0.0, 0
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            total -= float(sequence_log_probs(self.model, batch.to(self.device)).sum())
            count += batch.label_count()
        return {"valid_loss": distributed.all_reduce_sum(total) / distributed.all_reduce_sum(count)}

    def score(self, name: str, examples: Any) -> EvaluationResult:
        """Everything that is measured of one set."""
        raise NotImplementedError

    def signed(self, result: EvaluationResult) -> EvaluationResult:
        """Every score with what it was made by."""
        signature = self.signature()
        result.scores = {
            metric: replace(score, signature=f"{score.signature}|{signature}") for metric, score in result.scores.items()
        }
        return result

    def perplexity(self, examples: Examples) -> Score:
        """Perplexity a label, of which there is one a token."""
        rows = self.evaluation_rows(examples)
        log_p, counts = np.zeros(len(rows)), np.zeros(len(rows))
        for batch in distributed.shard(sequential_batches(rows, self.recipe.decode.batch_tokens)):
            log_p[batch.rows] = sequence_log_probs(self.model, batch.to(self.device)).cpu()
            counts[batch.rows] = [int(labels.ge(0).sum()) for labels in batch.labels]
        return perplexity(distributed.all_reduce_sum(log_p), distributed.all_reduce_sum(counts))

    @torch.no_grad()
    def logits(self, rows: Rows) -> Tensor:
        """What the model says of each row, where that is one thing: (N, C)."""
        said: list[Any] = [None] * len(rows)
        for batch in distributed.shard(sequential_batches(rows, EVALUATE_TOKENS)):
            for row, logits in zip(batch.rows, self.model(**batch.to(self.device).inputs).float().tolist()):
                said[row] = logits
        return torch.tensor(distributed.merge_shards(said)) if said else torch.zeros(0, 1)

    def signature(self) -> str:
        """What every score of this run carries besides its metric's own signature."""
        precision = "" if self.precision == "fp32" else f"|precision:{self.precision}"
        return f"recipe:{self.recipe.digest()}|engine:{self.engine_name}{precision}|hardware:{environment.hardware(self.device)}"

    @property
    def engine_name(self) -> str:
        """Whose program says what it says."""
        return f"regard-{__version__}"

    # what it can do

    @property
    def attends(self) -> bool:
        """Whether it looks at anything."""
        return bool(attention_modules(self.model))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; one that is longer than the model allows is refused, or cut where the recipe says so."""
        found, most, marks = self.tokenizers[0].encode(texts), self.recipe.model.max_length, self.special_tokens.num_added
        for number, ids in enumerate(found, start=1):
            if len(ids) + marks > most and self.recipe.data.too_long == "error":
                raise UserError(f"line {number} is {len(ids) + marks} tokens long, the model takes {most}; split the sentence")
        return [ids[: most - marks] for ids in found]

    def reading(self, text: str) -> dict[str, Tensor]:
        """What the model is given when it reads a text: one row of inputs."""
        (ids,) = self.ids([text])
        if not ids:
            raise UserError("there is nothing to show of an empty sentence")
        return encoder_inputs(Ragged.from_rows([ids]), self.special_tokens)

    def read(self, inputs: dict[str, Tensor]) -> Any:
        """Have the model read what `reading` gives, for what is to be seen of it; what it says."""
        return self.model(**inputs)

    def embed(self, texts: Sequence[str], *, layer: int = -1, pool: str = "mean") -> "list[EmbeddedText]":
        """The vectors of each text in a layer of the encoder: one of the whole, the mean of its tokens (`mean`) or that of the
        mark it begins with (`cls`); or one for each word in its sentence (`words`). Layer 0 is the word embeddings."""
        if pool not in POOLS:
            raise UserError(f"--pool {pool}: should be {' or '.join(POOLS)}")
        if pool == "cls" and not self.special_tokens.prefix:
            raise UserError(f"--pool cls: {self.folder} reads texts without a mark before them; use --pool mean")
        ids = self.ids(texts)
        if not all(ids):
            raise UserError("there are no vectors of an empty text")
        words = [found for _, found in self.tokenizers[0].encode_words(texts)] if pool == "words" else []
        found: list[Any] = [None] * len(texts)
        for numbers, layers in iterate_layers(self.model, ids, self.special_tokens, self.device):
            if not -len(layers) <= layer < len(layers):
                raise UserError(f"--layer {layer}: there are layers 0 (the word embeddings) to {len(layers) - 1}")
            for i, vectors in zip(numbers, layers[layer].float().cpu().numpy()):
                tokens = vectors[: len(ids[i]) + self.special_tokens.num_added]
                inside = tokens[len(self.special_tokens.prefix) :][: len(ids[i])]
                found[i] = (
                    pool_words(texts[i], words[i][: len(inside)], inside)
                    if pool == "words"
                    else EmbeddedText([texts[i]], tokens[:1] if pool == "cls" else self.mean_of(tokens, inside))
                )
        return found

    def mean_of(self, tokens: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Of a text's own tokens; in a Hugging Face folder of its marks too, as sentence-transformers has it."""
        return (inside if self.huggingface is None else tokens).mean(0, keepdims=True)

    def explain(self, text: Any, method: str = "all", **selection: str) -> Any:
        """What each token of a text, or patch of a picture, has to do with what is said of it, and whether to believe it.
        Asked for may be a `label`, a `word`, a text that a picture `fits`, and another one `against` it."""
        from regard.explain.report import explain_one
        from regard.explain.selection import OutputSelection

        return explain_one(self, text, method, OutputSelection(**selection))

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return read_json(path) if path.exists() else {}


def read_json(path: Path, kind: type = dict) -> Any:
    """What a file of a run folder holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the run folder again, or resume its training") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(found, kind):
        raise UserError(f"{path} is damaged: it should hold a {kind.__name__}")
    return found


@torch.no_grad()
def iterate_layers(
    model: Any, ids: Sequence[Sequence[int]], special_tokens: SpecialTokens, device: torch.device
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """What every layer makes of texts (B, S, D), those of alike lengths together, so that hardly anything is padding; with the
    numbers of the texts."""
    budget = EMBED_TOKENS if device.type == "cuda" else EMBED_TOKENS_CPU
    for numbers in batches_by_length([len(row) + special_tokens.num_added for row in ids], budget):
        inputs = encoder_inputs(Ragged.from_rows([ids[i] for i in numbers]), special_tokens)
        yield numbers, model.hidden_states(**{name: part.to(device) for name, part in inputs.items()})


def pool_words(text: str, words: Sequence[int], vectors: np.ndarray) -> EmbeddedText:
    """The mean of each word's tokens; a word that the tokenizer leaves out has none."""
    of, spoken = np.array(words), text.split()
    present = sorted(set(words))
    return EmbeddedText([spoken[word] for word in present], np.stack([vectors[of == word].mean(0) for word in present]))


def copy_tokenizers(source: Path, folder: Path, names: Sequence[str]) -> None:
    """The tokenizers of the run or Hugging Face folder that weights are taken from, where this one has none yet."""
    if is_huggingface_folder(source):
        theirs = open_huggingface_folder(source).tokenizer
        if theirs is None:
            raise UserError(
                f"train.init_from.run = '{source}' reads pictures and has no tokenizer; set train.init_from.tokenizer = false"
            )
        write_tokenizer(theirs, folder / "tokenizer.json")
        return
    if (source / SPECIAL_TOKENS_FILE).is_file():
        shutil.copyfile(source / SPECIAL_TOKENS_FILE, folder / SPECIAL_TOKENS_FILE)
    for name in names:
        if not (source / name).is_file():
            raise UserError(
                f"train.init_from.run = '{source}' has no {name}; set train.init_from.tokenizer = false to train one's own"
            )
        if not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def write_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Beside it its marks, where they are not ours."""
    atomic_write(path, tokenizer.to_json())
    if tokenizer.special_tokens != DEFAULT_SPECIAL_TOKENS:
        kept = {"rows": tokenizer.size, **asdict(tokenizer.special_tokens)}
        atomic_write(path.parent / SPECIAL_TOKENS_FILE, json.dumps(kept) + "\n")


def load_pretrained_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer that came from a Hugging Face folder, with its own marks."""
    kept: dict[str, Any] = read_json(folder / SPECIAL_TOKENS_FILE)
    marks: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    rows = marks.pop("rows", None)
    try:
        found = SpecialTokens(**marks)
    except TypeError as error:
        raise UserError(f"{folder / SPECIAL_TOKENS_FILE} is damaged: {error}") from None
    tokenizer = parse_tokenizer(folder / "tokenizer.json", rows)
    tokenizer.special_tokens = found
    return tokenizer


def search_params(
    settings: DecodeSettings,
    what: str,
    *,
    number: int = 1,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> SearchParams:
    """Return how to search: the recipe's settings, overridden by what the caller gave; a temperature samples instead."""
    changed = override_settings(settings, **given)
    if number > changed.beam and temperature is None:
        raise UserError(f"{number} {what} asked for, but beam is {changed.beam}; set --beam {number}")
    sampling = None if temperature is None else SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    return SearchParams(**changed.model_dump(), num_hypotheses=number, sampling=sampling)


def override_settings(settings: DecodeSettings, **given: Any) -> DecodeSettings:
    """Settings with what the caller gave in place of the recipe's."""
    changed = {name: value for name, value in given.items() if value is not None}
    return settings.model_validate({**settings.model_dump(), **changed}) if changed else settings

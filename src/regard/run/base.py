"""A run: a model with its recipe and tokenizers. What the runs of all tasks have, and what each must say of itself."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import __version__
from regard.attention.watch import places
from regard.batches.batches import in_order
from regard.batches.lengths import evaluation_rows
from regard.batches.ragged import Ragged
from regard.batches.rows import Rows, read
from regard.batches.side import encode, open_side
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.examples import Examples
from regard.errors import Mistake
from regard.models.zoo import MODELS
from regard.recipe import Decode
from regard.run import environment
from regard.scoring import Score, perplexity
from regard.tokens.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from regard.training.objectives import log_probabilities

EVALUATE_TOKENS = 8192
EMBED_AT_ONCE = 64
POOLS = ("mean", "words")


@dataclass
class Result:
    """The scores of one set, and what they were computed from."""

    name: str
    examples: Any
    outputs: list[str]
    """What the run said of each example, one line each."""
    scores: dict[str, Score]
    by_length: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Embedded:
    """What vectors (N, D) were made of, and the vectors."""

    tokens: list[str]
    vectors: np.ndarray


class Run:
    """A run folder opened."""

    does = "nothing"
    """What it does, in a word for messages."""

    def __init__(self, folder: Path, recipe: Any, device: torch.device):
        self.folder, self.recipe, self.device = folder, recipe, device
        self.tokenizers = self.load_tokenizers()
        self.model: Any = self.build_model().to(device).eval()

    # what it is made of

    @classmethod
    def prepare(cls, folder: Path, recipe: Any, data: Dataset[Any]) -> None:
        """Write what a run needs besides its weights: its tokenizers, found in the folder, loaded from the recipe's file, or
        trained on the training data."""
        names, texts = cls.tokenizer_names(recipe), data.train.texts()
        if len(names) < len(texts):
            texts = [[line for side in texts for line in side]]
        for name, lines in zip(names, texts):
            if not (folder / name).exists():
                made = load_tokenizer(Path(recipe.data.root, recipe.tokens.file)) if recipe.tokens.file \
                    else train_tokenizer(recipe.tokens, lines)
                (folder / name).write_text(made.to_json(), encoding="utf-8")

    @classmethod
    def tokenizer_names(cls, recipe: Any) -> list[str]:
        return ["tokenizer.json"]

    def load_tokenizers(self) -> list[Tokenizer]:
        return [load_tokenizer(self.folder / name) for name in self.tokenizer_names(self.recipe)]

    def build_model(self) -> nn.Module:
        return MODELS[self.recipe.task][self.recipe.model.kind](self.recipe.model, self.tokenizers[0].size,
                                                                self.recipe.train.regularize)

    # what it learns from

    @cached_property
    def data(self) -> Dataset[Any]:
        """The validation and test sets of the recipe."""
        return read_dataset(self.recipe.data, train=False)

    def encode(self, examples: Any, *, training: bool = False) -> Rows:
        """Examples as ids."""
        raise NotImplementedError

    def side(self, texts: Sequence[str], tokenizer: Tokenizer, training: bool):
        """Texts as ids: kept on disk, and with BPE-dropout, for training."""
        if not training:
            return encode(texts, tokenizer)
        return open_side(texts, tokenizer, bpe_dropout=self.recipe.train.regularize.bpe_dropout, seed=self.recipe.seed)

    # how well it does

    def validate(self, examples: Any, rows: Rows) -> dict[str, float]:
        """What is measured while training: the loss a label, and more where it is cheap."""
        total, count = 0.0, 0
        for batch in in_order(rows, EVALUATE_TOKENS):
            total -= float(log_probabilities(self.model, batch.to(self.device)).sum())
            count += batch.label_count()
        return {"valid_loss": total / count}

    def score(self, name: str, examples: Any) -> Result:
        """Everything that is measured of one set."""
        raise NotImplementedError

    def signed(self, result: Result) -> Result:
        """Every score with what it was made by."""
        signature = self.signature()
        result.scores = {metric: replace(score, signature=f"{score.signature}|{signature}")
                         for metric, score in result.scores.items()}
        return result

    def perplexity(self, examples: Examples) -> Score:
        """Perplexity a label, of which there is one a token."""
        rows = evaluation_rows(examples, self.encode, max_length=self.recipe.model.max_length, too_long="truncate")
        log_p, counts = np.zeros(len(rows)), np.zeros(len(rows))
        for batch in in_order(rows, self.recipe.decode.batch_tokens):
            log_p[batch.rows] = log_probabilities(self.model, batch.to(self.device)).cpu()
            counts[batch.rows] = [int(labels.ge(0).sum()) for labels in batch.labels]
        return perplexity(log_p, counts)

    def signature(self) -> str:
        """What every score of this run carries besides its metric's own signature."""
        return (f"recipe:{self.recipe.digest()}|engine:regard-{__version__}"
                f"|hardware:{environment.hardware(self.device)}")

    # what it can do

    @property
    def attends(self) -> bool:
        """Whether it looks at anything."""
        return bool(places(self.model))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; one that is longer than the model allows is refused, or cut where the recipe says so."""
        found, most = self.tokenizers[0].encode(texts), self.recipe.model.max_length
        for number, ids in enumerate(found, start=1):
            if len(ids) >= most and self.recipe.data.too_long == "error":
                raise Mistake(f"line {number} is {len(ids) + 1} tokens long, the model takes {most}; split the sentence")
        return [ids[:most - 1] for ids in found]

    def embed(self, texts: Sequence[str], *, layer: int = -1, pool: str = "mean") -> "list[Embedded]":
        """The vectors of each text in a layer of the encoder: one of the whole (`mean`), or one for each word in its sentence
        (`words`). Layer 0 is the word embeddings."""
        if pool not in POOLS:
            raise Mistake(f"--pool {pool}: should be {' or '.join(POOLS)}")
        found = []
        for start in range(0, len(texts), EMBED_AT_ONCE):
            ids = self.ids(texts[start:start + EMBED_AT_ONCE])
            inputs = {name: part.to(self.device) for name, part in read(Ragged.of(ids)).items()}
            with torch.no_grad():
                layers = self.model.layers_of(**inputs)
            if not -len(layers) <= layer < len(layers):
                raise Mistake(f"--layer {layer}: there are layers 0 (the word embeddings) to {len(layers) - 1}")
            for row, vectors in zip(ids, layers[layer].float().cpu().numpy()):
                found.append(self.embedded(row, vectors[:len(row)], pool))
        return found

    def embedded(self, ids: list[int], vectors: np.ndarray, pool: str) -> "Embedded":
        """One text's token vectors, pooled."""
        if not ids:
            raise Mistake("there are no vectors of an empty text")
        text = self.tokenizers[0].decode([ids])[0]
        if pool == "mean":
            return Embedded([text], vectors.mean(0, keepdims=True))
        of = np.array(self.tokenizers[0].words(ids))
        return Embedded(text.split(), np.stack([vectors[of == word].mean(0) for word in range(of.max() + 1)]))

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def override(settings: Decode, **given: Any) -> Decode:
    """Settings with what the caller gave in place of the recipe's."""
    changed = {name: value for name, value in given.items() if value is not None}
    return settings.model_validate({**settings.model_dump(), **changed}) if changed else settings

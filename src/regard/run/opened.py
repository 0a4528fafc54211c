"""A run folder opened: the object with the verbs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import __version__
from regard import recipe as recipes
from regard.attention.watch import places, watch
from regard.batches.batches import build_batch
from regard.batches.ragged import Ragged
from regard.batches.store import Side, Store
from regard.corpus.dataset import Dataset, read_dataset
from regard.decoding.batched import decode_all
from regard.decoding.beam import beam_search
from regard.decoding.protocol import Hypothesis
from regard.decoding.walk import greedy, sampler, walk
from regard.errors import Mistake
from regard.models.zoo import build_translator
from regard.recipe import Decode, Recipe
from regard.run import environment
from regard.scoring.alignment import merge_words
from regard.tokens.tokenizer import Tokenizer, load_tokenizer
from regard.training.checkpoint import load_weights, read_weights

ALIGN_AT_ONCE = 64


@dataclass(frozen=True)
class Translation:
    text: str
    score: float
    """Log-probability divided by the length penalty."""
    log_probability: float
    tokens: list[int]


@dataclass(frozen=True)
class Alignment:
    """What each target word looked at: weights (layers, heads, target words, source words)."""

    source: list[str]
    target: list[str]
    weights: np.ndarray

    def sharpest(self) -> int:
        """The layer whose heads, taken together, look with the lowest entropy."""
        mean = self.weights.mean(1)                                               # (L, T, S)
        return int(-(mean * np.log(np.maximum(mean, 1e-12))).sum(-1).mean(-1).argmin())

    def view(self, layer: int | None = None, head: int | None = None) -> tuple[np.ndarray, str]:
        """One matrix and its name: a head, the mean of a layer's heads, or of the layer that looks most sharply."""
        chosen = self.sharpest() if layer is None else layer
        if head is None:
            heads = self.weights.shape[1]
            return self.weights[chosen].mean(0), f"layer {chosen + 1}" + (f", mean of {heads} heads" if heads > 1 else "")
        return self.weights[chosen, head], f"layer {chosen + 1}, head {head + 1}"


class Run:
    """A trained model with its recipe and tokenizers."""

    def __init__(self, folder: Path, recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer], model: Any, device: torch.device):
        self.folder, self.recipe, self.tokenizers, self.device = folder, recipe, tokenizers, device
        self.model = model.to(device).eval()

    @property
    def attends(self) -> bool:
        """Whether its decoder looks at the source."""
        return bool(places(self.model, kinds="cross"))

    @cached_property
    def data(self) -> Dataset:
        """The validation and test sets of the recipe."""
        return read_dataset(self.recipe.data, train=False)

    def translate(self, texts: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None,
                  max_tokens: int | None = None, number: int = 1, temperature: float | None = None, top_k: int = 0,
                  top_p: float = 1.0, seed: int = 0) -> list[list[Translation]]:
        """The `number` best translations of each text, best first. A `temperature` samples one instead."""
        settings = override(self.recipe.decode, beam=beam, length_penalty=length_penalty, max_tokens=max_tokens)
        if number > settings.beam and temperature is None:
            raise Mistake(f"{number} hypotheses asked for, but beam is {settings.beam}; set --beam {number}")
        sources = self.encode_sources(texts)

        def search(inputs, limits, numbers) -> list[list[Hypothesis]]:
            if temperature is not None:
                choose = sampler(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, numbers=numbers)
                return [[found] for found in walk(self.model, inputs, limits, choose, settings.length_penalty)]
            if settings.beam == 1:
                return [[found] for found in walk(self.model, inputs, limits, greedy, settings.length_penalty)]
            return beam_search(self.model, inputs, limits, beam=settings.beam, alpha=settings.length_penalty, number=number)

        spoken = [i for i, ids in enumerate(sources) if ids]
        found = decode_all([sources[i] for i in spoken], search, batch_tokens=max(1, settings.batch_tokens // settings.beam),
                           device=self.device, most=self.recipe.model.max_length, max_tokens=settings.max_tokens)
        results = [[Translation("", 0.0, 0.0, [])] for _ in texts]
        for i, hypotheses in zip(spoken, found):
            results[i] = self.translations(hypotheses)
        return results

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; one that is longer than the model allows is refused, or cut where the recipe says so."""
        sources, most = self.tokenizers[0].encode(texts), self.recipe.model.max_length
        for number, ids in enumerate(sources, start=1):
            if len(ids) >= most and self.recipe.data.too_long == "error":
                raise Mistake(f"line {number} is {len(ids) + 1} tokens long, the model takes {most}; split the sentence")
        return [ids[:most - 1] for ids in sources]

    def translations(self, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = self.tokenizers[1].decode([h.tokens for h in hypotheses])
        return [Translation(text, h.score, h.log_probability, h.tokens) for text, h in zip(texts, hypotheses)]

    def align(self, texts: Sequence[str], targets: Sequence[list[int]] | None = None) -> Iterator[Alignment]:
        """What each word of a translation (the model's own, unless its ids are given) looked at in its source."""
        sources = self.encode_sources(texts)
        said = [translation.tokens for translation in self.best(texts)] if targets is None else list(targets)
        if not self.attends:
            raise Mistake(f"{self.folder}: a model without attention has nothing to show (model.attention = 'none')")
        if not all(sources) or not all(said):
            raise Mistake("there is nothing to show of an empty sentence")
        store = Store(Side(Ragged.of(sources)), Side(Ragged.of(said)))
        for start in range(0, len(texts), ALIGN_AT_ONCE):
            rows = np.arange(start, min(start + ALIGN_AT_ONCE, len(texts)))
            batch = build_batch(store, rows, 0, 0).to(self.device)
            with torch.no_grad(), watch(self.model, kinds="cross") as seen:
                self.model(batch.source, batch.lengths, batch.target)
            weights = seen.stack().float().cpu().numpy()                          # (L, B, H, T, S)
            for row, i in enumerate(rows):
                yield self.by_words(sources[i], said[i], weights[:, row, :, :len(said[i]) + 1, :len(sources[i]) + 1])

    def best(self, texts: Sequence[str], **settings: Any) -> list[Translation]:
        """The best translation of each text."""
        return [found[0] for found in self.translate(texts, **settings)]

    def by_words(self, source: list[int], target: list[int], weights: np.ndarray) -> Alignment:
        """Sub-words merged into words, end marks left out."""
        source_words, target_words = [*self.tokenizers[0].words(source), -1], [*self.tokenizers[1].words(target), -1]
        merged = np.array([[merge_words(head, target_words, source_words) for head in layer] for layer in weights])
        texts = self.tokenizers[0].decode([source])[0], self.tokenizers[1].decode([target])[0]
        return Alignment(texts[0].split(), texts[1].split(), merged)

    def signature(self) -> str:
        """What every score of this run carries besides its metric's own signature."""
        decode = self.recipe.decode
        return (f"beam:{decode.beam}|alpha:{decode.length_penalty}|recipe:{self.recipe.digest()}|engine:regard-{__version__}"
                f"|hardware:{environment.hardware(self.device)}")


def override(settings: Decode, **given: Any) -> Decode:
    """Settings with what the caller gave in place of the recipe's."""
    changed = {name: value for name, value in given.items() if value is not None}
    return settings.model_validate({**settings.model_dump(), **changed}) if changed else settings


def load(path: str | Path, *, device: str = "auto") -> Run:
    """Open a run folder."""
    folder = Path(path)
    if not (folder / "recipe.toml").is_file():
        what = "is not a run folder (it has no recipe.toml)" if folder.exists() else "does not exist"
        raise Mistake(f"{folder} {what}; make one with: regard train RECIPE --out {folder}")
    if not (folder / "model.safetensors").is_file():
        raise Mistake(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    recipe = recipes.read(folder / "recipe.toml")
    tokenizers = load_tokenizers(folder, recipe)
    model = build_model(recipe, tokenizers)
    with torch.no_grad():
        load_weights(model, read_weights(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return Run(folder, recipe, tokenizers, model, environment.choose_device(device))


def load_tokenizers(folder: Path, recipe: Recipe) -> tuple[Tokenizer, Tokenizer]:
    if recipe.tokens.joint:
        both = load_tokenizer(folder / "tokenizer.json")
        return both, both
    return load_tokenizer(folder / "tokenizer.source.json"), load_tokenizer(folder / "tokenizer.target.json")


def build_model(recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer]) -> torch.nn.Module:
    return build_translator(recipe.model, tokenizers[0].size, tokenizers[1].size, recipe.train.regularize)

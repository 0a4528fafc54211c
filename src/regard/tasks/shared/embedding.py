"""Vectors of texts from any layer of an encoder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs
from regard.decoding.batching import batches_by_length
from regard.errors import UserError
from regard.tasks.shared.one_or_many import one_or_many

if TYPE_CHECKING:
    from regard.tasks.base import Run

EMBED_TOKENS, EMBED_TOKENS_CPU = 4096, 1024
"""A CPU is saturated by fewer tokens, and smaller batches have less padding."""
SHOWN = 6
"""Numbers of a vector that are printed."""
POOLS = ("mean", "cls", "words")


@dataclass(frozen=True)
class EmbeddedText:
    """Vectors (N, D), and the text, words or image that each one embeds."""

    tokens: list[str]
    vectors: np.ndarray

    def __str__(self) -> str:
        """Return each token with the beginning of its vector."""
        return "\n".join(
            f"{token}\t{' '.join(f'{x:.3f}' for x in vector[:SHOWN])}{' …' * (len(vector) > SHOWN)}"
            for token, vector in zip(self.tokens, self.vectors)
        )


@overload
def embed_texts(run: "Run", texts: str, *, layer: int = -1, pool: str = "mean") -> EmbeddedText: ...  # type: ignore[overload-overlap]
@overload
def embed_texts(run: "Run", texts: Iterable[str], *, layer: int = -1, pool: str = "mean") -> list[EmbeddedText]: ...
def embed_texts(
    run: "Run", texts: str | Iterable[str], *, layer: int = -1, pool: str = "mean"
) -> EmbeddedText | list[EmbeddedText]:
    """Return the vectors of a text, or of each text of a list, in a layer of the encoder; layer 0 is the word embeddings.

    `pool`: one vector per text, the mean of its tokens ("mean") or its first special token ("cls"), or one per word ("words").
    """
    return one_or_many(texts, lambda several: text_vectors(run, several, layer, pool))


def text_vectors(run: "Run", texts: Sequence[str], layer: int, pool: str) -> list[EmbeddedText]:
    """Return the vectors of each text."""
    if pool not in POOLS:
        raise UserError(f"--pool {pool}: should be {' or '.join(POOLS)}")
    if pool == "cls" and not run._special_tokens.prefix:
        raise UserError(f"--pool cls: {run.folder} reads texts without a special token before them; use --pool mean")
    ids = run._ids(texts)
    if not all(ids):
        raise UserError("an empty text has no vectors; leave it out")
    word_ids = [found for _, found in run.tokenizers[0].encode_words(texts)] if pool == "words" else []
    results: list[Any] = [None] * len(texts)
    budget = EMBED_TOKENS if run.device.type == "cuda" else EMBED_TOKENS_CPU
    for rows in batches_by_length([len(row) + run._special_tokens.num_added for row in ids], budget):
        inputs = encoder_inputs(Ragged.from_rows([ids[i] for i in rows]), run._special_tokens)
        with torch.no_grad():
            layers = run.model.hidden_states(**{name: part.to(run.device) for name, part in inputs.items()})
        if not -len(layers) <= layer < len(layers):
            raise UserError(f"--layer {layer}: there are layers 0 (the word embeddings) to {len(layers) - 1}")
        for i, vectors in zip(rows, layers[layer].float().cpu().numpy()):
            tokens = vectors[: len(ids[i]) + run._special_tokens.num_added]
            inside = tokens[len(run._special_tokens.prefix) :][: len(ids[i])]
            if pool == "words":
                results[i] = pool_words(texts[i], word_ids[i][: len(inside)], inside)
            elif pool == "cls":
                results[i] = EmbeddedText([texts[i]], tokens[:1])
            else:  # sentence-transformers, and so a Hugging Face folder, averages the special tokens too
                results[i] = EmbeddedText([texts[i]], (inside if run._huggingface is None else tokens).mean(0, keepdims=True))
    return results


def pool_words(text: str, word_ids: Sequence[int], vectors: np.ndarray) -> EmbeddedText:
    """Return the mean vector of each word's tokens; a word without tokens has none."""
    ids, words = np.array(word_ids), text.split()
    present = sorted(set(word_ids))
    return EmbeddedText([words[word] for word in present], np.stack([vectors[ids == word].mean(0) for word in present]))

"""Draw the cosine similarity of contextual word embeddings: "took a train" and "likes to train" should differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from regard.errors import UserError
from regard.show.figures.figure_files import save_figure
from regard.show.figures.teaching import similarity_figure
from regard.tasks.base import Run
from regard.tasks.shared.embedding import EmbeddedText

CONTEXT_WORDS = 2


class EmbedsTexts(Protocol):
    """A run with the verb `embed`."""

    def embed(self, texts: Sequence[str], *, layer: int, pool: str) -> list[EmbeddedText]: ...


def draw_word_similarity(run: Run, texts: Sequence[str], words: str | None, out: Path, *, layer: int = -1) -> str:
    """Draw the cosine similarity of every two occurrences of the words in the texts. Return the pairs, least similar first."""
    chosen = {word.strip().lower() for word in (words or "").split(",") if word.strip()}
    if not chosen:
        raise UserError("no words to draw: add --words train,date")
    names, vectors = word_occurrences(run, texts, chosen, layer)
    if len(names) < 2:
        raise UserError(f"{', '.join(sorted(chosen))}: found {len(names)} times in {len(texts)} texts; at least two are needed")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    matrix = unit @ unit.T
    save_figure(
        similarity_figure(
            matrix, names, title=f"cosine similarity, layer {layer}" if layer >= 0 else "cosine similarity, last layer"
        ),
        out,
    )
    pairs = sorted((float(matrix[i, j]), names[i], names[j]) for i in range(len(names)) for j in range(i))
    return "\n".join(f"{cosine:.3f}  {one}  |  {other}" for cosine, one, other in pairs)


def word_occurrences(run: Run, texts: Sequence[str], chosen: set[str], layer: int) -> tuple[list[str], np.ndarray]:
    """Return the occurrences of the words with a little context, grouped by word, and their vectors (N, D)."""
    listed = []
    for found in cast(EmbedsTexts, run).embed(texts, layer=layer, pool="words"):
        for at, (word, vector) in enumerate(zip(found.tokens, found.vectors)):
            if (plain := word.strip(".,;:!?\"'()").lower()) in chosen:
                before, after = found.tokens[max(0, at - CONTEXT_WORDS) : at], found.tokens[at + 1 : at + 1 + CONTEXT_WORDS]
                listed.append((plain, " ".join([*before, f"[{word}]", *after]), vector))
    listed.sort(key=lambda one: one[0])
    return [name for _, name, _ in listed], np.array([vector for *_, vector in listed])

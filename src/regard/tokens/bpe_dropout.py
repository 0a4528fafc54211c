"""BPE-dropout (Provilkov et al. 2020): a word is segmented anew with some merges skipped.

The library's own dropout cannot be seeded. Here a fixed number of segmentations of each word is drawn once, from a seed, and a
batch picks among them: a pure function of (seed, epoch, position).
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.errors import UserError
from regard.tokens.special_tokens import UNK
from regard.tokens.tokenizer import Tokenizer

MAX_VARIANTS = 16


@dataclass
class BpeSegmenter:
    """A trained BPE with its merges written out."""

    vocabulary: dict[str, int]
    ranks: dict[tuple[str, str], int]

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer) -> "BpeSegmenter":
        model = json.loads(tokenizer.to_json())["model"]
        if model["type"] != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
            raise UserError(
                "train.regularize.bpe_dropout needs a plain BPE tokenizer; set it to 0 or train one with tokens.kind = 'bpe'"
            )
        return BpeSegmenter(model["vocab"], {tuple(pair): rank for rank, pair in enumerate(model["merges"])})

    def segment(self, word: str, chance: random.Random, dropout: float) -> list[int]:
        """Merge the best-ranked neighbours first; each possible merge of a round is skipped with probability `dropout`."""
        pieces = list(word)
        while len(pieces) > 1:
            ranked = [
                (self.ranks[pair], i)
                for i, pair in enumerate(pairwise(pieces))
                if pair in self.ranks and not (dropout and chance.random() < dropout)
            ]
            if not ranked:
                break
            _, i = min(ranked)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return [self.vocabulary.get(piece, UNK) for piece in pieces]

    def variants(self, word: str, count: int, seed: int, dropout: float) -> list[list[int]]:
        """As many independent draws as the word occurs, within bounds."""
        chance = random.Random(f"{seed} {word}")
        return [self.segment(word, chance, dropout) for _ in range(max(4, min(count, MAX_VARIANTS)))]


def split_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[str]]:
    """Each text as the words that merges never cross."""
    library = tokenizer.library
    normalize = library.normalizer.normalize_str if library.normalizer else str
    return [[word for word, _ in library.pre_tokenizer.pre_tokenize_str(normalize(text))] for text in texts]

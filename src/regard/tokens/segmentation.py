"""Segmentation of texts below the tokenizer: splitting a text into chunks whose ids concatenate to its own, and BPE-dropout.

BPE-dropout (Provilkov et al. 2020) segments a word anew with some merges skipped. The library's own dropout cannot be seeded.
Here a fixed number of segmentations of each word is sampled once, from a seed, and a batch picks among them: a pure function of
(seed, epoch, position).
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from regard.errors import UserError
from regard.tokens.special_tokens import UNK
from regard.tokens.tokenizer import Tokenizer

WORDWISE_NORMALIZERS = {"NFC", "NFD", "Lowercase", "StripAccents", "BertNormalizer"}
"""Normalisers that treat a word alone as they treat it in a text."""
SPACE_NORMALIZERS = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": True, "strip_right": True},
]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPACE_BOUNDARY = re.compile(r"(?<=\S)(?= \S)")
MIN_VARIANTS, MAX_VARIANTS = 4, 16
NO_MERGE = 2**31
"""The rank of a pair of pieces that is never merged."""

SplitText = Callable[[str], list[str]]


def make_splitter(tokenizer: Tokenizer) -> SplitText:
    """Return a function that splits a text into chunks whose ids, concatenated, are those of the text.

    Most chunks are words, and a corpus has few distinct ones: each is encoded once and looked up from then on. For a tokenizer
    whose steps are unknown, a text is one chunk.
    """
    library: dict[str, Any] = json.loads(tokenizer.to_json())
    normalizers, splits = (_flatten_steps(library[name]) for name in ("normalizer", "pre_tokenizer"))
    wordwise = all(step in SPACE_NORMALIZERS or step["type"] in WORDWISE_NORMALIZERS for step in normalizers)
    if any(not token["special"] for token in library["added_tokens"]):
        return keep_whole
    match [split["type"] for split in splits]:
        case ["Metaspace", *others] if (
            splits[0] == METASPACE
            and set(others) <= {"Split"}
            and wordwise
            and all(step in normalizers for step in SPACE_NORMALIZERS)
        ):
            return split_at_spaces
        case ["BertPreTokenizer"] if wordwise:
            return split_at_spaces
        case ["ByteLevel"] if not normalizers and splits[0]["use_regex"] and not splits[0]["add_prefix_space"]:
            return SPACE_BOUNDARY.split
    return keep_whole


def _flatten_steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokeniser."""
    match part:
        case None:
            return []
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "pretokenizers": steps}:
            return [step for inner in steps for step in _flatten_steps(inner)]
    return [part]


def split_at_spaces(text: str) -> list[str]:
    return [text] if "▁" in text else text.split(" ")  # "▁" stands for a space and would count as one


def keep_whole(text: str) -> list[str]:
    return [text]


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
        """Merge the best-ranked neighbours first; skip each possible merge of a round with probability `dropout`."""
        pieces, rank_of, draw = list(word), self.ranks.get, chance.random
        ranks = [rank_of(pair, NO_MERGE) for pair in pairwise(pieces)]  # of each piece and the next; a merge changes two of them
        while True:
            best, at = NO_MERGE, -1
            for i, rank in enumerate(ranks):
                if rank != NO_MERGE and draw() >= dropout and rank < best:
                    best, at = rank, i
            if at < 0:
                return [self.vocabulary.get(piece, UNK) for piece in pieces]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            del ranks[at]
            if at > 0:
                ranks[at - 1] = rank_of((pieces[at - 1], pieces[at]), NO_MERGE)
            if at < len(ranks):
                ranks[at] = rank_of((pieces[at], pieces[at + 1]), NO_MERGE)

    def variants(self, word: str, count: int, seed: int, dropout: float) -> list[list[int]]:
        """Return as many independent samples as the word occurs, within bounds."""
        chance = random.Random(f"{seed} {word}")
        return [self.segment(word, chance, dropout) for _ in range(max(MIN_VARIANTS, min(count, MAX_VARIANTS)))]


def split_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[str]]:
    """Return each text as the words that merges never cross."""
    library = tokenizer.library
    normalize = library.normalizer.normalize_str if library.normalizer else str
    return [[word for word, _ in library.pre_tokenizer.pre_tokenize_str(normalize(text))] for text in texts]

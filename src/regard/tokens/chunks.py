"""Where a text can be cut so that the ids of the parts, one after the other, are those of the text.

Most parts are words, and a corpus has few of them: each is read once, and looked up from then on.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from regard.tokens.tokenizer import Tokenizer

WORDWISE_NORMALIZERS = {"NFC", "NFD", "Lowercase", "StripAccents", "BertNormalizer"}
"""Normalisers that do with a word what they would do with it in a text."""
SPACE_NORMALIZERS = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": True, "strip_right": True},
]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPACE_BOUNDARY = re.compile(r"(?<=\S)(?= \S)")

SplitText = Callable[[str], list[str]]


def make_splitter(tokenizer: Tokenizer) -> SplitText:
    """How to cut; where nothing is known of a tokenizer, a text is one part."""
    library: dict[str, Any] = json.loads(tokenizer.to_json())
    normalizers, splits = (flatten_steps(library[name]) for name in ("normalizer", "pre_tokenizer"))
    local = all(step in SPACE_NORMALIZERS or step["type"] in WORDWISE_NORMALIZERS for step in normalizers)
    if any(not token["special"] for token in library["added_tokens"]):
        return keep_whole
    match [split["type"] for split in splits]:
        case ["Metaspace", *others] if (
            splits[0] == METASPACE
            and set(others) <= {"Split"}
            and local
            and all(step in normalizers for step in SPACE_NORMALIZERS)
        ):
            return split_at_spaces
        case ["BertPreTokenizer"] if local:
            return split_at_spaces
        case ["ByteLevel"] if not normalizers and splits[0]["use_regex"] and not splits[0]["add_prefix_space"]:
            return SPACE_BOUNDARY.split
    return keep_whole


def flatten_steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser."""
    match part:
        case None:
            return []
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "pretokenizers": steps}:
            return [step for inner in steps for step in flatten_steps(inner)]
    return [part]


def split_at_spaces(text: str) -> list[str]:
    return [text] if "▁" in text else text.split(" ")  # "▁" stands for a space, and would count as one


def keep_whole(text: str) -> list[str]:
    return [text]

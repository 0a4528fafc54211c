"""The tokenizer of a folder, and the marks its model was made with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import Mistake
from regard.interop.config import MISSING, Config, read_json
from regard.interop.family_rules import Family
from regard.tokens.detect_special import around, between_two
from regard.tokens.special import NO_MARK, Marks
from regard.tokens.tokenizer import Tokenizer, parse_tokenizer

LARGEST = 256 * 2**20
MASKS = ("[MASK]", "<mask>")


def open_tokenizer(folder: Path, config: Config, family: Family, rows: int) -> Tokenizer:
    """tokenizer.json with its marks; the embedding has so many rows."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise Mistake(
            f"{folder} has no tokenizer.json; open it once with transformers' AutoTokenizer and save_pretrained, which writes one"
        )
    if path.stat().st_size > LARGEST:
        raise Mistake(f"{path} is larger than {LARGEST // 2**20} MB; that is not a vocabulary")
    tokenizer = parse_tokenizer(path, rows=rows)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    word, number = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if number >= rows:
        raise Mistake(f"{path} does not fit the model: {word!r} is token {number}, the embedding has {rows} rows (vocab_size)")
    tokenizer.marks = marks_of(tokenizer, config, family, generation(folder), rows)
    if problem := family.ends(config, tokenizer.marks, number):
        raise Mistake(f"{path} does not fit the model: {problem}")
    return tokenizer


def generation(folder: Path) -> Config:
    path = folder / "generation_config.json"
    return Config(read_json(path) if path.is_file() else {}, path)


def marks_of(tokenizer: Tokenizer, config: Config, family: Family, generation: Config, rows: int) -> Marks:
    """What is put around a text is what the tokenizer puts there; what begins and ends an output, what the settings say."""
    before, after = around(tokenizer)
    between, segment = between_two(tokenizer, before, after)
    if largest := [number for number in (*before, *after, *(between or ())) if number >= rows]:
        raise Mistake(
            f"{config.path.parent / 'tokenizer.json'} does not fit the model: it puts token "
            f"{max(largest)} around a text, the embedding has {rows} rows (vocab_size)"
        )
    end = token(config, "eos_token_id", rows)
    if family.begin is not None:
        begin = token(config, family.begin, rows)
        begin = token(config, "pad_token_id", rows) if begin == NO_MARK else begin
        if NO_MARK in (begin, end):
            raise Mistake(f"{config.path} does not say what an output begins with and ends with ({family.begin}, eos_token_id)")
    else:
        begin = before[-1] if before else NO_MARK
    never = dict.fromkeys([*(token(config, name, rows) for name in family.never), *silent(generation, rows)])
    return Marks(begin, end, before, after, tuple(number for number in never if number not in (NO_MARK, end)), between, segment)


def token(config: Config, name: str, rows: int) -> int:
    """A token that the settings name; of several, the first."""
    value = config.at(name)
    value = value[0] if isinstance(value, list) and value else value
    if value is MISSING:
        return NO_MARK
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < rows:
        raise config.wrong(name, value, f"should be one of the {rows} tokens")
    return value


def silent(generation: Config, rows: int) -> list[int]:
    """Tokens that are never to be said: `suppress_tokens`, and `bad_words_ids` of one token."""
    listed: list[Any] = []
    for name in ("suppress_tokens", "bad_words_ids"):
        value: Any = [] if generation.at(name) is MISSING else generation.at(name)
        if not isinstance(value, list):
            raise generation.wrong(name, value, "should be a list of tokens")
        listed += [item[0] if isinstance(item, list) and len(item) == 1 else item for item in value]
    return [item for item in listed if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < rows]


def mask_of(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The token that stands for a hidden word."""
    path = folder / "tokenizer_config.json"
    named: Any = (read_json(path) if path.is_file() else {}).get("mask_token")
    named = named.get("content") if isinstance(named, Mapping) else named
    found = [tokenizer.library.token_to_id(name) for name in (named, *MASKS) if isinstance(name, str)]
    return next((number for number in found if number is not None), None)


def labels_of(config: Config) -> list[str]:
    """The labels of a classifier or tagger, by number."""
    given = config.at("id2label")
    if given is MISSING:
        number = config.at("num_labels")
        number = 2 if number is MISSING else number
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 2**16:
            raise config.wrong("num_labels", number, "should be a whole number from 1 to 65536")
        return [f"LABEL_{i}" for i in range(number)]
    if (
        not isinstance(given, dict)
        or not given
        or not all(isinstance(label, str) for label in given.values())
        or set(given) != {str(i) for i in range(len(given))}
    ):
        raise config.wrong("id2label", given, "should name the labels 0, 1, 2 …")
    return [given[str(i)] for i in range(len(given))]

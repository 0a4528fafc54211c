"""The tokenizer of a folder, and the marks its model was made with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.config import MISSING, ConfigFile, read_json
from regard.interop.family_rules import ModelFamily
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.tokens.tokenizer import Tokenizer, parse_tokenizer, tokens_around_text, tokens_between_texts

MAX_TOKENIZER_BYTES = 256 * 2**20
MASK_TOKENS = ("[MASK]", "<mask>")


def open_tokenizer(folder: Path, config: ConfigFile, family: ModelFamily, rows: int) -> Tokenizer:
    """tokenizer.json with its marks; the embedding has so many rows."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no tokenizer.json; open it once with transformers' AutoTokenizer and save_pretrained, which writes one"
        )
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise UserError(f"{path} is larger than {MAX_TOKENIZER_BYTES // 2**20} MB; that is not a vocabulary")
    tokenizer = parse_tokenizer(path, rows=rows)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    word, number = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if number >= rows:
        raise UserError(f"{path} does not fit the model: {word!r} is token {number}, the embedding has {rows} rows (vocab_size)")
    tokenizer.special_tokens = read_special_tokens(tokenizer, config, family, read_generation_config(folder), rows)
    if problem := family.end_problem(config, tokenizer.special_tokens, number):
        raise UserError(f"{path} does not fit the model: {problem}")
    return tokenizer


def read_generation_config(folder: Path) -> ConfigFile:
    path = folder / "generation_config.json"
    return ConfigFile(read_json(path) if path.is_file() else {}, path)


def read_special_tokens(
    tokenizer: Tokenizer, config: ConfigFile, family: ModelFamily, generation: ConfigFile, rows: int
) -> SpecialTokens:
    """What is put around a text is what the tokenizer puts there; what begins and ends an output, what the settings say."""
    before, after = tokens_around_text(tokenizer)
    between, segment = tokens_between_texts(tokenizer, before, after)
    if largest := [number for number in (*before, *after, *(between or ())) if number >= rows]:
        raise UserError(
            f"{config.path.parent / 'tokenizer.json'} does not fit the model: it puts token "
            f"{max(largest)} around a text, the embedding has {rows} rows (vocab_size)"
        )
    end = read_token_id(config, "eos_token_id", rows)
    if family.decoder_start is not None:
        begin = read_token_id(config, family.decoder_start, rows)
        begin = read_token_id(config, "pad_token_id", rows) if begin == NO_TOKEN else begin
        if NO_TOKEN in (begin, end):
            raise UserError(
                f"{config.path} does not say what an output begins with and ends with ({family.decoder_start}, eos_token_id)"
            )
    else:
        begin = before[-1] if before else NO_TOKEN
    never = dict.fromkeys(
        [*(read_token_id(config, name, rows) for name in family.suppressed), *read_suppressed_tokens(generation, rows)]
    )
    return SpecialTokens(
        begin, end, before, after, tuple(number for number in never if number not in (NO_TOKEN, end)), between, segment
    )


def read_token_id(config: ConfigFile, name: str, rows: int) -> int:
    """A token that the settings name; of several, the first."""
    value = config.get(name)
    value = value[0] if isinstance(value, list) and value else value
    if value is MISSING:
        return NO_TOKEN
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < rows:
        raise config.error(name, value, f"should be one of the {rows} tokens")
    return value


def read_suppressed_tokens(generation: ConfigFile, rows: int) -> list[int]:
    """Tokens that are never to be said: `suppress_tokens`, and `bad_words_ids` of one token."""
    listed: list[Any] = []
    for name in ("suppress_tokens", "bad_words_ids"):
        value: Any = [] if generation.get(name) is MISSING else generation.get(name)
        if not isinstance(value, list):
            raise generation.error(name, value, "should be a list of tokens")
        listed += [item[0] if isinstance(item, list) and len(item) == 1 else item for item in value]
    return [item for item in listed if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < rows]


def find_mask_token(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The token that stands for a hidden word."""
    path = folder / "tokenizer_config.json"
    named: Any = (read_json(path) if path.is_file() else {}).get("mask_token")
    named = named.get("content") if isinstance(named, Mapping) else named
    found = [tokenizer.library.token_to_id(name) for name in (named, *MASK_TOKENS) if isinstance(name, str)]
    return next((number for number in found if number is not None), None)


def read_labels(config: ConfigFile) -> list[str]:
    """The labels of a classifier or tagger, by number."""
    given = config.get("id2label")
    if given is MISSING:
        number = config.get("num_labels")
        number = 2 if number is MISSING else number
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 2**16:
            raise config.error("num_labels", number, "should be a whole number from 1 to 65536")
        return [f"LABEL_{i}" for i in range(number)]
    if (
        not isinstance(given, dict)
        or not given
        or not all(isinstance(label, str) for label in given.values())
        or set(given) != {str(i) for i in range(len(given))}
    ):
        raise config.error("id2label", given, "should name the labels 0, 1, 2 …")
    return [given[str(i)] for i in range(len(given))]

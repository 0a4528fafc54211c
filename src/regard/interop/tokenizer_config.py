"""Read the tokenizer of a Hugging Face folder, the special tokens its model was trained with, and its labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.config import ConfigFile, is_integer, read_json
from regard.interop.family_rules import ModelFamily
from regard.tokens.languages import code_before_text
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens
from regard.tokens.tokenizer import Tokenizer, parse_tokenizer, tokens_around_text, tokens_between_texts

MAX_TOKENIZER_BYTES = 256 * 2**20
MASK_TOKENS = ("[MASK]", "<mask>")


def open_tokenizer(folder: Path, config: ConfigFile, family: ModelFamily, rows: int) -> Tokenizer:
    """Read tokenizer.json with its special tokens; `rows` is the size of the embedding."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no tokenizer.json; open it once with transformers' AutoTokenizer and save_pretrained, which writes one"
        )
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise UserError(f"{path} is larger than {MAX_TOKENIZER_BYTES // 2**20} MB; that is not a vocabulary")
    tokenizer = parse_tokenizer(path, rows=rows)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    token, highest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if highest >= rows:
        raise UserError(
            f"{path} does not fit the model: {token!r} is token {highest}, the embedding has {rows} rows (vocab_size)"
        )
    path_of_generation = folder / "generation_config.json"
    values = read_json(path_of_generation) if path_of_generation.is_file() else {}
    generation = ConfigFile(values, path_of_generation)
    suppressed = read_suppressed_tokens(generation, rows)
    special_tokens = read_special_tokens(tokenizer, config, family, suppressed, rows)
    if family.decoder_start is not None:
        source = generation if generation.get("forced_bos_token_id") is not None else config
        forced = read_token_id(source, "forced_bos_token_id", rows)
        special_tokens = replace(special_tokens, output_prefix=() if forced == NO_TOKEN else (forced,))
    tokenizer.special_tokens = special_tokens
    if family.language_codes == "before":
        tokenizer.special_tokens = code_before_text(tokenizer)
    if problem := family.end_problem(config, tokenizer.special_tokens, highest):
        raise UserError(f"{path} does not fit the model: {problem}")
    return tokenizer


def read_special_tokens(
    tokenizer: Tokenizer, config: ConfigFile, family: ModelFamily, suppressed: Sequence[int], rows: int
) -> SpecialTokens:
    """Return the special tokens: around a text those that the tokenizer adds, for an output those that the settings name."""
    prefix, suffix = tokens_around_text(tokenizer)
    separator, segment = tokens_between_texts(tokenizer, prefix, suffix)
    if too_large := [token for token in (*prefix, *suffix, *(separator or ())) if token >= rows]:
        raise UserError(
            f"{config.path.parent / 'tokenizer.json'} does not fit the model: it puts token "
            f"{max(too_large)} around a text, the embedding has {rows} rows (vocab_size)"
        )
    eos = read_token_id(config, "eos_token_id", rows)
    if family.decoder_start is not None:
        bos = read_token_id(config, family.decoder_start, rows)
        bos = read_token_id(config, "pad_token_id", rows) if bos == NO_TOKEN else bos
        if NO_TOKEN in (bos, eos):
            raise UserError(
                f"{config.path} does not name the first and last token of an output ({family.decoder_start}, eos_token_id)"
            )
    else:
        bos = prefix[-1] if prefix else NO_TOKEN
    never = dict.fromkeys([*(read_token_id(config, name, rows) for name in family.suppressed), *suppressed])
    return SpecialTokens(
        bos, eos, prefix, suffix, tuple(token for token in never if token not in (NO_TOKEN, eos)), separator, segment
    )


def read_token_id(config: ConfigFile, name: str, rows: int) -> int:
    """Return a token id from the settings, the first of several; NO_TOKEN where there is none."""
    value = config.get(name)
    if value is None:
        return NO_TOKEN
    value = value[0] if isinstance(value, list) and value else value
    if not is_integer(value, 0, rows - 1):
        raise config.error(name, value, f"should be one of the {rows} tokens")
    return value


def read_suppressed_tokens(generation: ConfigFile, rows: int) -> list[int]:
    """Return the tokens that are never generated: `suppress_tokens`, and `bad_words_ids` of one token."""
    tokens: list[Any] = []
    for name in ("suppress_tokens", "bad_words_ids"):
        value: Any = [] if generation.get(name) is None else generation.get(name)
        if not isinstance(value, list):
            raise generation.error(name, value, "should be a list of tokens")
        tokens += [item[0] if isinstance(item, list) and len(item) == 1 else item for item in value]
    return [token for token in tokens if is_integer(token, 0, rows - 1)]


def find_mask_token(folder: Path, tokenizer: Tokenizer) -> int | None:
    """Return the id of the mask token."""
    path = folder / "tokenizer_config.json"
    named: Any = (read_json(path) if path.is_file() else {}).get("mask_token")
    named = named.get("content") if isinstance(named, Mapping) else named
    ids = [tokenizer.library.token_to_id(name) for name in (named, *MASK_TOKENS) if isinstance(name, str)]
    return next((token for token in ids if token is not None), None)


def read_labels(config: ConfigFile) -> list[str]:
    """Return the labels of a classifier or tagger, in the order of their ids."""
    labels = config.get("id2label")
    if labels is None:
        number = 2 if config.get("num_labels") is None else config.get("num_labels")
        if not is_integer(number, 1, 2**16):
            raise config.error("num_labels", number, "should be an integer from 1 to 65536")
        return [f"LABEL_{i}" for i in range(number)]
    if (
        not isinstance(labels, dict)
        or not labels
        or not all(isinstance(label, str) for label in labels.values())
        or set(labels) != {str(i) for i in range(len(labels))}
    ):
        raise config.error("id2label", labels, "should name the labels 0, 1, 2 …")
    return [labels[str(i)] for i in range(len(labels))]

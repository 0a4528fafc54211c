"""Text to ids and back, by the `tokenizers` library; lossless but for the normaliser and unknown characters.

A space is part of the word after it ("▁") and punctuation is split off, so that decoding needs no rules. Character and byte
tokenizers take text as it is, white space included.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, overload
from unicodedata import east_asian_width

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from regard.errors import Interrupted, UserError
from regard.recipe import TokenSettings
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, NO_TOKEN, SPECIAL_TOKEN_NAMES, SpecialTokens

MAX_ALPHABET = 1000
CHECK_TEXTS = ["a word", "", "Wörter, 12 “Stück”; 漢字!\n"]
PROBES = ("a", "the", "0", ".", "word")
CONTINUATION = "·"
END_TOKEN_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", "<eos>")


class Tokenizer:
    """A tokenizer of the library with its special tokens. `rows` is the size of the model's embedding, if that is larger than the
    vocabulary."""

    def __init__(self, library: Library, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS, rows: int | None = None):
        self.library, self.special_tokens, self.rows = library, special_tokens, rows
        library.encode_special_tokens = True  # "<pad>" in a user's text is text

    @property
    def size(self) -> int:
        return self.rows or self.library.get_vocab_size()

    @overload
    def __call__(self, texts: str) -> list[int]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[str]) -> list[list[int]]: ...
    def __call__(self, texts: str | Iterable[str]) -> list[int] | list[list[int]]:
        """Return the ids of a text, or of each text of a list, with the special tokens around it, as the model reads it."""
        several = self.encode([texts] if isinstance(texts, str) else list(texts))
        found = [[*self.special_tokens.prefix, *ids, *self.special_tokens.suffix] for ids in several]
        return found[0] if isinstance(texts, str) else found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        return [encoding.ids for encoding in self.library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [text.strip() for text in self.library.decode_batch([list(row) for row in ids], skip_special_tokens=True)]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each text and, for each id, the index of the white-space separated word that it belongs to."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, _word_ids_from_spans(text, encoding.offsets)) for text, encoding in zip(texts, encodings)]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], np.ndarray]]:
        """Return the ids of each text and, for each id, its characters (from, to) in the text, without the white space around
        them; from = to for a token of white space alone."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, _trim_spans(text, encoding.offsets)) for text, encoding in zip(texts, encodings)]

    def word_ids(self, ids: Sequence[int]) -> list[int]:
        """Return for each token the index of the white-space separated word of the decoded text that it belongs to."""
        pieces = ["" if i in self.special_ids else piece for i, piece in zip(ids, self.pieces(ids))]
        starts = np.cumsum([0, *map(len, pieces)]).tolist()
        return _word_ids_from_spans("".join(pieces), list(pairwise(starts)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token as it is decoded between others."""
        return [self.piece(i) for i in ids]

    def piece(self, number: int) -> str:
        token = self.library.id_to_token(number) or ""
        return (
            self.join_tokens(["a", token, "a"])[1:-1]
            if isinstance(self.library.decoder, decoders.BPEDecoder)
            else self.join_tokens(["a", token])[1:]
        )

    def labels(self, ids: Sequence[int], before: int | None = None) -> list[str]:
        """Return adjacent tokens as words to show, where `before` is the token before them.

        A token that continues the word before it begins with "·": rabb ·it; not so where all tokens are characters. White space
        is "␣" or "↵"; a special token has its name."""
        pieces = self.pieces(ids)
        previous = ["" if before is None else self.piece(before), *pieces]
        words = [piece.strip() or white_space_sign(piece) or self.library.id_to_token(i) or "" for piece, i in zip(pieces, ids)]
        if self.is_character_level:
            return words
        return [CONTINUATION * continues_word(*pair) + word for pair, word in zip(zip(previous, pieces), words)]

    def join_tokens(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens given as strings, by the library's decoder; without one, joined by spaces, as it does."""
        decoder = self.library.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def visible_token(self, number: int) -> str | None:
        """Return a token as a string; None if decoding skips it."""
        return None if number in self.special_ids else self.library.id_to_token(number)

    @cached_property
    def byte_fallback(self) -> bool:
        """Whether a token such as <0x42> stands for a byte."""
        return self.join_tokens(["a", "<0x42>"]) == "aB"

    @cached_property
    def is_character_level(self) -> bool:
        """Whether every token that is text is one character."""
        return all(len(token) <= 1 for token, number in self.library.get_vocab().items() if number not in self.special_ids)

    @cached_property
    def special_ids(self) -> set[int]:
        """Tokens that decoding skips."""
        return {number for number, token in self.library.get_added_tokens_decoder().items() if token.special}

    def to_json(self) -> str:
        return self.library.to_str()


def continues_word(left: str, piece: str) -> bool:
    """Return whether a piece of text goes on with the word at the end of the piece before it: letters or digits meet, in a script
    that separates words by spaces."""
    return bool(left and piece) and all(char.isalnum() and east_asian_width(char) not in "WF" for char in (left[-1], piece[0]))


def white_space_sign(piece: str) -> str:
    """Return a visible sign for a piece of white space; "" for an empty one."""
    return "↵" if "\n" in piece else "␣" if piece else ""


def train_tokenizer(settings: TokenSettings, texts: Iterable[str], more: Sequence[str] = ()) -> Tokenizer:
    """Train a tokenizer on texts; `more` are special tokens besides the usual ones."""
    library = _build_tokenizer(settings)
    options: dict[str, Any] = dict(vocab_size=settings.size, special_tokens=[*SPECIAL_TOKEN_NAMES, *more], show_progress=False)
    trainer: trainers.Trainer
    match settings.kind:
        case "bpe":
            trainer = trainers.BpeTrainer(limit_alphabet=MAX_ALPHABET, min_frequency=2, **options)
        case "bytes":
            trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=2, **options)
        case "wordpiece":
            trainer = trainers.WordPieceTrainer(limit_alphabet=MAX_ALPHABET, min_frequency=2, **options)
        case "unigram":
            trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
        case "words":
            trainer = trainers.WordLevelTrainer(**options)
        case "characters":
            trainer = trainers.WordLevelTrainer(**{**options, "vocab_size": MAX_ALPHABET})
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library)


def _build_tokenizer(settings: TokenSettings) -> Library:
    build: Callable[[], models.Model] = {
        "bpe": lambda: models.BPE(unk_token="<unk>"),
        "bytes": models.BPE,
        "wordpiece": lambda: models.WordPiece(unk_token="<unk>"),
        "unigram": models.Unigram,
        "words": lambda: models.WordLevel(unk_token="<unk>"),
        "characters": lambda: models.WordLevel(unk_token="<unk>"),
    }[settings.kind]
    library = Library(build())
    keeps_spaces = settings.kind in ("characters", "bytes")
    spaces = [] if keeps_spaces else [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps = [
        *([] if settings.kind == "bytes" else [normalizers.NFC()]),
        *spaces,
        *([normalizers.Lowercase()] if settings.lowercase else []),
    ]
    library.normalizer = normalizers.Sequence(steps) if steps else None
    match settings.kind:
        case "characters":
            library.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")
            library.decoder = decoders.Fuse()
        case "bytes":
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = decoders.ByteLevel()
        case kind:
            split_punctuation = [pre_tokenizers.Split(Regex(r"[^\w\s▁]|_"), "isolated")] if settings.split_punctuation else []
            library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), *split_punctuation])
            continuation = [decoders.Replace("##", "")] if kind == "wordpiece" else []
            library.decoder = decoders.Sequence([*continuation, decoders.Metaspace()])
    return library


def _word_ids_from_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the white-space separated word that each span of a text begins in; white space belongs to the word after it."""
    owner, word, inside = [], -1, False
    for char in text:
        word, inside = (word, False) if char.isspace() else (word if inside else word + 1, True)
        owner.append(word if inside else word + 1)
    return [min(max(0, word), owner[start] if start < len(owner) else word) for start, _ in spans]


def _trim_spans(text: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return spans of a text without the white space around them (N, 2).

    Where letters were composed, a span of the library ends after the first code point ("e" of "é" in two code points): extend it
    to white space, or to where the next span begins.
    """
    trimmed = np.zeros((len(spans), 2), np.int64)
    for i, (start, end) in enumerate(spans):
        limit = spans[i + 1][0] if i + 1 < len(spans) else len(text)
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        while start < end < limit and not text[end].isspace():
            end += 1
        trimmed[i] = start, end
    return trimmed


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard standard error, also of a library that writes to it past Python."""
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json of ours."""
    tokenizer = parse_tokenizer(path)
    if not _has_default_special_tokens(tokenizer):
        raise UserError(f"{path}: the first tokens must be {' '.join(SPECIAL_TOKEN_NAMES)}")
    _require_contiguous_ids(tokenizer, path)
    return tokenizer


def load_any_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json of any origin, such as GPT-2's; its special tokens are found by encoding a few words."""
    tokenizer = parse_tokenizer(path)
    _require_contiguous_ids(tokenizer, path)
    if _has_default_special_tokens(tokenizer):
        return tokenizer
    prefix, suffix = tokens_around_text(tokenizer)
    known = [tokenizer.library.token_to_id(name) for name in END_TOKEN_NAMES]
    eos = suffix[-1] if suffix else next((number for number in known if number is not None), NO_TOKEN)
    if eos == NO_TOKEN:
        raise UserError(f"{path} has no token that ends a text; add one of {' '.join(END_TOKEN_NAMES)}")
    pair_separator, segment = tokens_between_texts(tokenizer, prefix, suffix)
    bos = prefix[-1] if prefix else NO_TOKEN
    tokenizer.special_tokens = SpecialTokens(bos, eos, prefix, suffix or (eos,), (), pair_separator, segment)
    return tokenizer


def tokens_around_text(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that the tokenizer puts before and after a text."""
    for probe in PROBES:
        plain = tokenizer.library.encode(probe, add_special_tokens=False).ids
        whole = tokenizer.library.encode(probe, add_special_tokens=True).ids
        starts = [i for i in range(len(whole)) if plain and whole[i : i + len(plain)] == plain]
        if starts:
            return tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
    return (), ()


def tokens_between_texts(
    tokenizer: Tokenizer, prefix: tuple[int, ...], suffix: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, int]:
    """Return the special tokens between the two texts of a pair, None if they are the suffix; and the second text's segment."""
    for probe in PROBES:
        plain = tuple(tokenizer.library.encode(probe, add_special_tokens=False).ids)
        pair = tokenizer.library.encode(probe, probe, add_special_tokens=True)
        start, end = (*prefix, *plain), (*plain, *suffix)
        if (
            plain
            and len(pair.ids) >= len(start) + len(end)
            and tuple(pair.ids[: len(start)]) == start
            and tuple(pair.ids[-len(end) :]) == end
        ):
            between = tuple(pair.ids[len(start) : -len(end)])
            return None if between == suffix else between, pair.type_ids[-len(end)]
    return DEFAULT_SPECIAL_TOKENS.pair_separator, DEFAULT_SPECIAL_TOKENS.second_segment


def _require_contiguous_ids(tokenizer: Tokenizer, path: Path) -> None:
    """Refuse a vocabulary in which an id from 0 on is missing or used twice."""
    known: dict[int, str] = {}
    for token, number in sorted(tokenizer.library.get_vocab(with_added_tokens=True).items()):
        if number in known:
            raise UserError(f"{path}: {known[number]!r} and {token!r} are both token {number}; give each its own id")
        known[number] = token
    missing = next((number for number in range(len(known)) if number not in known), None)
    if missing is not None:
        raise UserError(f"{path}: no token has the id {missing}; number them from 0 without a gap")


def _has_default_special_tokens(tokenizer: Tokenizer) -> bool:
    return [tokenizer.library.id_to_token(i) for i in range(len(SPECIAL_TOKEN_NAMES))] == SPECIAL_TOKEN_NAMES


def parse_tokenizer(path: Path, rows: int | None = None) -> Tokenizer:
    """Load any tokenizer.json and try it once; its own truncation and padding are switched off.

    The library panics past `except Exception` on some malformed files, hence the last clause, and writes about it to the
    terminal.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; give a tokenizer.json")
    try:
        text = path.read_text(encoding="utf-8")
        with _silence_stderr():
            tokenizer = Tokenizer(Library.from_str(text), rows=rows)
            tokenizer.library.no_truncation()
            tokenizer.library.no_padding()
            tokenizer.decode([tokenizer.library.encode(word).ids for word in CHECK_TEXTS] + tokenizer.encode(CHECK_TEXTS))
            tokenizer.library.encode(CHECK_TEXTS[0], CHECK_TEXTS[0])
    except FileNotFoundError:
        raise UserError(f"no tokenizer at {path}") from None
    except BaseException as error:
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a usable tokenizer.json: {reason}") from None
    return tokenizer

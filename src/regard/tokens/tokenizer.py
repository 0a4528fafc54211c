"""Text to ids and back, by the `tokenizers` library; lossless but for the normaliser and unknown characters.

A space travels with the word after it ("▁"), punctuation stands apart, so that decoding needs no rules. Characters and bytes are
taken as they come, white space included.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from regard.errors import Interrupted, UserError
from regard.recipe import TokenSettings
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SPECIAL_TOKEN_NAMES, SpecialTokens

MAX_ALPHABET = 1000
PROBE_TEXTS = ["a word", "", "Wörter, 12 “Stück”; 漢字!\n"]


class Tokenizer:
    """`rows` is how many ids a model has room for, where that is more than there are tokens."""

    def __init__(self, library: Library, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS, rows: int | None = None):
        self.library, self.special_tokens, self.rows = library, special_tokens, rows
        library.encode_special_tokens = True  # "<pad>" in somebody's text is text

    @property
    def size(self) -> int:
        return self.rows or self.library.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        return [encoding.ids for encoding in self.library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [text.strip() for text in self.library.decode_batch([list(row) for row in ids], skip_special_tokens=True)]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Ids of each text, and for each of them which white-space separated word of the text it belongs to."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, word_ids_from_spans(text, encoding.offsets)) for text, encoding in zip(texts, encodings)]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], np.ndarray]]:
        """Ids of each text, and for each of them where it stands in the text: (from, to) in characters, without the white space
        around it; nothing (from = to) where it is white space alone."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, trim_spans(text, encoding.offsets)) for text, encoding in zip(texts, encodings)]

    def word_ids(self, ids: Sequence[int]) -> list[int]:
        """For each token, which white-space separated word of the decoded text it belongs to."""
        pieces = ["" if i in self.special_ids else piece for i, piece in zip(ids, self.pieces(ids))]
        starts = np.cumsum([0, *map(len, pieces)]).tolist()
        return word_ids_from_spans("".join(pieces), list(pairwise(starts)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, as it stands in the sentence: what the decoder makes of it between others."""
        return [self.piece(i) for i in ids]

    def piece(self, number: int) -> str:
        token = self.library.id_to_token(number) or ""
        return (
            self.join_tokens(["a", token, "a"])[1:-1]
            if isinstance(self.library.decoder, decoders.BPEDecoder)
            else self.join_tokens(["a", token])[1:]
        )

    def join_tokens(self, tokens: Sequence[str]) -> str:
        """The text of tokens given as strings, by the library's decoder; without one, it puts a space between them."""
        decoder = self.library.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def spoken(self, number: int) -> str | None:
        """A token as a string; None where decoding leaves it out."""
        return None if number in self.special_ids else self.library.id_to_token(number)

    @cached_property
    def byte_fallback(self) -> bool:
        """Whether a token such as <0x42> stands for a byte."""
        return self.join_tokens(["a", "<0x42>"]) == "aB"

    @cached_property
    def special_ids(self) -> set[int]:
        """Tokens that decoding leaves out."""
        return {number for number, token in self.library.get_added_tokens_decoder().items() if token.special}

    def to_json(self) -> str:
        return self.library.to_str()


def train_tokenizer(settings: TokenSettings, texts: Iterable[str], more: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer trained on texts; `more` are marks besides the usual ones."""
    library = build_tokenizer(settings)
    options: dict[str, Any] = dict(vocab_size=settings.size, special_tokens=[*SPECIAL_TOKEN_NAMES, *more], show_progress=False)
    trainer: Any
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


def build_tokenizer(settings: TokenSettings) -> Library:
    model = {
        "bpe": lambda: models.BPE(unk_token="<unk>"),
        "bytes": models.BPE,
        "wordpiece": lambda: models.WordPiece(unk_token="<unk>"),
        "unigram": models.Unigram,
        "words": lambda: models.WordLevel(unk_token="<unk>"),
        "characters": lambda: models.WordLevel(unk_token="<unk>"),
    }[settings.kind]()
    library = Library(model)
    exact = settings.kind in ("characters", "bytes")
    spaces = [] if exact else [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
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
            apart = [pre_tokenizers.Split(Regex(r"[^\w\s▁]|_"), "isolated")] if settings.split_punctuation else []
            library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), *apart])
            unmark = [decoders.Replace("##", "")] if kind == "wordpiece" else []
            library.decoder = decoders.Sequence([*unmark, decoders.Metaspace()])
    return library


def word_ids_from_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Which white-space separated word each span of a text begins in; white space belongs to the word after it."""
    owner, word, inside = [], -1, False
    for char in text:
        word, inside = (word, False) if char.isspace() else (word if inside else word + 1, True)
        owner.append(word if inside else word + 1)
    return [min(max(0, word), owner[start] if start < len(owner) else word) for start, _ in spans]


def trim_spans(text: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Spans of a text without the white space around them (N, 2). Where letters were composed, a span of the library's ends after
    the first of them ("e" of "é" in two code points): it goes on to white space, or to where the next one begins."""
    found = np.zeros((len(spans), 2), np.int64)
    for i, (start, end) in enumerate(spans):
        limit = spans[i + 1][0] if i + 1 < len(spans) else len(text)
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        while start < end < limit and not text[end].isspace():
            end += 1
        found[i] = start, end
    return found


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Nothing on standard error, not even from a library that writes to it past Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json of ours."""
    tokenizer = parse_tokenizer(path)
    if not has_default_special_tokens(tokenizer):
        raise UserError(f"{path}: the first tokens must be {' '.join(SPECIAL_TOKEN_NAMES)}")
    require_contiguous_ids(tokenizer, path)
    return tokenizer


def require_contiguous_ids(tokenizer: Tokenizer, path: Path) -> None:
    """Every number from 0 on is that of one token."""
    known: dict[int, str] = {}
    for token, number in sorted(tokenizer.library.get_vocab(with_added_tokens=True).items()):
        if number in known:
            raise UserError(f"{path}: {known[number]!r} and {token!r} are both token {number}; give each its own number")
        known[number] = token
    missing = next((number for number in range(len(known)) if number not in known), None)
    if missing is not None:
        raise UserError(f"{path}: no token has the number {missing}; number them from 0 without a gap")


def has_default_special_tokens(tokenizer: Tokenizer) -> bool:
    return [tokenizer.library.id_to_token(i) for i in range(len(SPECIAL_TOKEN_NAMES))] == SPECIAL_TOKEN_NAMES


def parse_tokenizer(path: Path, rows: int | None = None) -> Tokenizer:
    """Anybody's tokenizer.json, tried once; texts are neither cut nor filled up by it. The library panics past `except Exception`
    on some malformed files, hence the last clause, and tells the terminal about it."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; give a tokenizer.json")
    try:
        text = path.read_text(encoding="utf-8")
        with silence_stderr():
            tokenizer = Tokenizer(Library.from_str(text), rows=rows)
            tokenizer.library.no_truncation()
            tokenizer.library.no_padding()
            tokenizer.decode([tokenizer.library.encode(word).ids for word in PROBE_TEXTS] + tokenizer.encode(PROBE_TEXTS))
            tokenizer.library.encode(PROBE_TEXTS[0], PROBE_TEXTS[0])
    except FileNotFoundError:
        raise UserError(f"no tokenizer at {path}") from None
    except BaseException as error:
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a usable tokenizer.json: {reason}") from None
    return tokenizer

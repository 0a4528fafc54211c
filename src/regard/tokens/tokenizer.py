"""Text to ids and back, by the `tokenizers` library; lossless but for the normaliser and unknown characters.

A space travels with the word after it ("▁"), punctuation stands apart, so that decoding needs no rules.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from regard.errors import Mistake
from regard.recipe import Tokens
from regard.tokens.special import SPECIALS

LARGEST_ALPHABET = 1000


class Tokenizer:
    def __init__(self, library: Library):
        self.library = library
        library.encode_special_tokens = True          # "<pad>" in somebody's text is text

    @property
    def size(self) -> int:
        return self.library.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        return [encoding.ids for encoding in self.library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [text.strip() for text in self.library.decode_batch([list(row) for row in ids], skip_special_tokens=True)]

    def words(self, ids: Sequence[int]) -> list[int]:
        """For each token, which white-space separated word of the decoded text it belongs to."""
        word, fresh, found = -1, True, []
        for piece in self.pieces(ids):
            fresh = fresh or piece.startswith(" ")
            begins = fresh and bool(piece.strip())
            found.append(word + 1 if fresh else word)
            word, fresh = (word + 1, False) if begins else (word, fresh)
            fresh = fresh or piece.endswith(" ")
        return found

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, as it stands in the sentence."""
        return [(self.library.id_to_token(i) or "").replace("▁", " ").removeprefix("##") for i in ids]

    def to_json(self) -> str:
        return self.library.to_str()


def train_tokenizer(settings: Tokens, texts: Iterable[str]) -> Tokenizer:
    library = untrained(settings)
    options: dict[str, Any] = dict(vocab_size=settings.size, special_tokens=SPECIALS, show_progress=False)
    trainer: Any
    match settings.kind:
        case "bpe":
            trainer = trainers.BpeTrainer(limit_alphabet=LARGEST_ALPHABET, min_frequency=2, **options)
        case "wordpiece":
            trainer = trainers.WordPieceTrainer(limit_alphabet=LARGEST_ALPHABET, min_frequency=2, **options)
        case "unigram":
            trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
        case "words":
            trainer = trainers.WordLevelTrainer(**options)
        case "characters":
            trainer = trainers.WordLevelTrainer(**{**options, "vocab_size": LARGEST_ALPHABET})
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library)


def untrained(settings: Tokens) -> Library:
    model = {"bpe": lambda: models.BPE(unk_token="<unk>"), "wordpiece": lambda: models.WordPiece(unk_token="<unk>"),
             "unigram": models.Unigram, "words": lambda: models.WordLevel(unk_token="<unk>"),
             "characters": lambda: models.WordLevel(unk_token="<unk>")}[settings.kind]()
    library = Library(model)
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    library.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if settings.lowercase else steps)
    if settings.kind == "characters":
        library.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        library.decoder = decoders.Fuse()
    else:
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(),
                                                         pre_tokenizers.Split(Regex(r"[^\w\s▁]|_"), "isolated")])
        unmark = [decoders.Replace("##", "")] if settings.kind == "wordpiece" else []
        library.decoder = decoders.Sequence([*unmark, decoders.Metaspace()])
    return library


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json. The library panics past `except Exception` on some malformed files, hence the last clause."""
    try:
        library = Library.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistake(f"no tokenizer at {path}") from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Mistake(f"{path} is not a usable tokenizer.json: {reason}") from None
    if [library.id_to_token(i) for i in range(len(SPECIALS))] != SPECIALS:
        raise Mistake(f"{path}: the first tokens must be {' '.join(SPECIALS)}")
    return Tokenizer(library)

"""Words as labels: any string a corpus may hold, made safe to draw, measured in terminal columns, shortened in the middle."""

import unicodedata

BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")


def clean(text: str, keep: str = "") -> str:
    """Replace what XML forbids or a terminal obeys (control characters, lone surrogates, direction overrides) by U+FFFD."""
    return "".join("\ufffd" if is_forbidden(char) and char not in keep else char for char in text)


def is_forbidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") or char in BIDI_CONTROLS or ord(char) & 0xFFFE == 0xFFFE


def label(word: str, limit: int = 32) -> str:
    """The word as drawn: clean, a visible sign for a blank one, and beyond `limit` characters its two ends around an ellipsis."""
    word = clean(word)
    return shorten(word, limit) if word.strip() else "␣"


def shorten(word: str, limit: int) -> str:
    """Cut out of the middle, since both ends tell a word from its neighbours (prefix and inflection)."""
    pieces = graphemes(word)
    if len(pieces) <= limit:
        return word
    tail = (limit - 1) // 2
    return "".join(pieces[: limit - 1 - tail]) + "…" + "".join(pieces[len(pieces) - tail :])


def graphemes(word: str) -> list[str]:
    """Base characters with their combining marks: near enough to UAX 29 for labels."""
    pieces: list[str] = []
    for char in word:
        joined = bool(pieces) and pieces[-1].endswith("\u200d")
        if pieces and (joined or char in JOINERS or unicodedata.category(char) in ("Mn", "Me", "Mc")):
            pieces[-1] += char
        else:
            pieces.append(char)
    return pieces


def terminal_width(text: str) -> int:
    """How many terminal columns the text takes: two for wide characters, none for combining marks."""
    return sum(2 if unicodedata.east_asian_width(piece[0]) in "WF" else 1 for piece in graphemes(text))

"""Token labels: any string of a corpus made safe to draw, measured in terminal columns, shortened in the middle."""

import unicodedata

SHADES = " ·░▒▓█"
"""Cells of a matrix in the terminal, from weight 0 to 1."""
BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")


def clean(text: str, keep: str = "") -> str:
    """Replace characters that XML forbids or a terminal interprets (controls, lone surrogates, bidi overrides) by U+FFFD."""
    return "".join("\ufffd" if is_forbidden(char) and char not in keep else char for char in text)


def is_forbidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") or char in BIDI_CONTROLS or ord(char) & 0xFFFE == 0xFFFE


def label(word: str, limit: int = 32) -> str:
    """Return the word as drawn: clean, a visible sign if it is blank, shortened to `limit` characters."""
    word = clean(word)
    return shorten(word, limit) if word.strip() else "␣"


def shorten(word: str, limit: int) -> str:
    """Cut out the middle: both ends (prefix and inflection) distinguish a word from its neighbours."""
    characters = graphemes(word)
    if len(characters) <= limit:
        return word
    tail = (limit - 1) // 2
    return "".join(characters[: limit - 1 - tail]) + "…" + "".join(characters[len(characters) - tail :])


def graphemes(word: str) -> list[str]:
    """Split into base characters with their combining marks: close enough to UAX 29 for labels."""
    found: list[str] = []
    for char in word:
        joined = bool(found) and found[-1].endswith("\u200d")
        if found and (joined or char in JOINERS or unicodedata.category(char) in ("Mn", "Me", "Mc")):
            found[-1] += char
        else:
            found.append(char)
    return found


def terminal_width(text: str) -> int:
    """Return the terminal columns of a text: two for wide characters, none for combining marks."""
    return sum(2 if unicodedata.east_asian_width(char[0]) in "WF" else 1 for char in graphemes(text))

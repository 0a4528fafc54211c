"""Find the token that a user names: the word as it is written, one of several, or its number."""

from collections.abc import Sequence
from typing import NamedTuple

from regard.errors import UserError
from regard.tokens.tokenizer import CONTINUATION, continues_word

WORD_MARKS = ("Ġ", "▁")
"""How byte-level BPE and SentencePiece mark the token that begins a word."""
CONTINUATION_MARK = "##"
"""How WordPiece marks the others."""


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """Return the tokens of any library's tokenizer as words to show (`Tokenizer.labels`): rabb ##it, or ▁rabb it, as rabb ·it."""
    marked = any(token.startswith(WORD_MARKS) for token in tokens)
    labels: list[str] = []
    for i, token in enumerate(tokens):
        piece = token.removeprefix(CONTINUATION_MARK) if token != CONTINUATION_MARK else token
        goes_on = piece != token or (marked and i > 0 and continues_word(tokens[i - 1], token))
        word = piece[1:] or "␣" if marked and piece.startswith(WORD_MARKS) else piece
        labels.append(CONTINUATION * goes_on + word.replace("Ċ", "↵"))
    return labels


class TokenChoice(NamedTuple):
    """The place of a token among those shown, from 0, and a note where the name fits several."""

    place: int
    note: str = ""


def choose_token(words: Sequence[str], token: str | int, tile: int = 1) -> TokenChoice:
    """Return the token with a name: a word ("it", not the end of "rabb ·it"), one of several ("it:2"), or a number from 1.

    A word of several sub-words is found by its first. Of tiles, a number selects the one that it is in."""
    name = str(token)
    number = int(name) - 1 if name.isdecimal() else None
    found = [] if isinstance(token, int) else word_starts(words, name)
    if found:
        return TokenChoice(found[0], ambiguity_note(words, name, found))
    word, _, which = name.rpartition(":")
    several = word_starts(words, word) if word and which.isdecimal() else []
    if several:
        if not 1 <= int(which) <= len(several):
            raise UserError(f"--token {name}: {word!r} occurs {len(several)} times; use {word}:1 to {word}:{len(several)}")
        return TokenChoice(several[int(which) - 1])
    if number is not None and 0 <= number < len(words) * tile:
        return TokenChoice(min(number // tile, len(words) - 1))
    shown = " ".join(words[:12]) + (" …" if len(words) > 12 else "")
    raise UserError(f"--token {name}: not among {shown}; use one of these, or a number from 1 to {len(words) * tile}")


def has_token(words: Sequence[str], token: str | int, tile: int = 1) -> bool:
    try:
        choose_token(words, token, tile)
    except UserError:
        return False
    return True


def word_starts(words: Sequence[str], name: str) -> list[int]:
    """Return where a word begins that is written like this; if there is none, in any case (It for it)."""
    whole = whole_words(words)
    for same in (str, str.casefold):
        found = [i for i, word in enumerate(words) if same(name) in (same(word), same(whole[i] or word))]
        if found:
            return found
    return []


def whole_words(words: Sequence[str]) -> list[str | None]:
    """Return for the first token of each word the whole word, None for its other tokens: rabb ·it -> rabbit, None."""
    whole: list[str | None] = []
    start = 0
    for i, word in enumerate(words):
        continues = i > 0 and word.startswith(CONTINUATION) and len(word) > 1
        start = start if continues else i
        whole.append(None if continues else word)
        if continues:
            whole[start] = (whole[start] or "") + word.removeprefix(CONTINUATION)
    return whole


def ambiguity_note(words: Sequence[str], name: str, found: Sequence[int]) -> str:
    """Say which token was taken, where the name may mean another."""
    if len(found) > 1:
        others = ", ".join(str(i + 1) for i in found[1:4]) + (" …" if len(found) > 4 else "")
        return (
            f"--token {name}: {len(found)} of {len(words)} tokens are {name!r}; this is the first, token {found[0] + 1} "
            f"(for the next: --token {name}:2, or by number, --token {others})"
        )
    if words[found[0]].casefold() != name.casefold():
        return f"--token {name}: a word of several tokens; this is the first, {words[found[0]]!r}, token {found[0] + 1}"
    if name.isdecimal() and int(name) - 1 != found[0] and 1 <= int(name) <= len(words):
        return f"--token {name}: this is the word {name!r}, token {found[0] + 1}; token {name} is {words[int(name) - 1]!r}"
    return ""

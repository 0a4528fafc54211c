"""Ids to text, token by token, for text that is read while it is generated.

A token alone is not yet text: it may hold a part of a character (byte-level BPE, byte fallback), and the first token of a text
is decoded differently from the same one further on. So tokens are decoded after the one before them, and held back while a later
one could change their text.
"""

import re
from collections.abc import Sequence

from regard.tokens.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What the library returns for bytes that are no character, or not yet one."""
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
PLACEHOLDER = "a"


class Detokenizer:
    """Decode the text after a prompt in pieces: joined, they are what decoding it at once gives there.

    One exception: a run of single bytes that continues the prompt's is decoded apart from it, so that the prompt does not change.
    If a token ends lines (`line_end`), each line is decoded as a text of its own.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), line_end: int | None = None):
        self.tokenizer, self.line_end = tokenizer, line_end
        lines = _split_lines(prompt, line_end)
        self.prompt = "\n".join(tokenizer.library.decode(line, skip_special_tokens=True) for line in lines)
        self._pending: list[str] = []
        visible = [token for token in map(tokenizer.visible_token, lines[-1]) if token is not None]
        self._previous = [PLACEHOLDER if self._is_byte(token) else token for token in visible[-1:]]

    def push(self, number: int) -> str:
        """Add a token; return the text that is certain with it, which may be empty."""
        if number == self.line_end:
            text = self.flush()
            self._previous, self._pending = [], []
            return text + "\n"
        token = self.tokenizer.visible_token(number)
        if token is None:
            return ""
        self._pending.append(token)
        text = self._decode_pending()
        if text.endswith(REPLACEMENT) or self._is_byte(token):
            return ""
        self._previous, self._pending = [token], []
        return text

    def flush(self) -> str:
        """Return the text held back, when no more tokens come."""
        return self._decode_pending() if self._pending else ""

    def _decode_pending(self) -> str:
        join = self.tokenizer.join_tokens
        return join([*self._previous, *self._pending])[len(join(self._previous)) :]

    def _is_byte(self, token: str) -> bool:
        """Whether a token is a single byte: the library decodes a run of these at once, and one wrong byte makes all of it
        unreadable."""
        return self.tokenizer.byte_fallback and BYTE_TOKEN.fullmatch(token) is not None


def _split_lines(ids: Sequence[int], line_end: int | None) -> list[list[int]]:
    """Return ids split at the line ends."""
    lines: list[list[int]] = [[]]
    for number in ids:
        if number == line_end:
            lines.append([])
        else:
            lines[-1].append(number)
    return lines

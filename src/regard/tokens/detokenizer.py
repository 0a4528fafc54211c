"""Ids to text, token by token, for a text that is read while it is written.

A token alone is not yet text: it may hold a part of a character (byte-level BPE, byte fallback), and the first of a text is
decoded otherwise than the same one further on. So tokens are decoded after the one before them, and kept back while a later
one could change what they say.
"""

import re
from collections.abc import Sequence

from regard.tokens.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What the library says of bytes that are no character, or not yet one."""
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
PLACEHOLDER = "a"


class Detokenizer:
    """The text after a prompt: all pieces together are what decoding it at once gives there. Only a run of single bytes that goes
    on from the prompt's is decoded apart from them: a prompt stays what it is. Where a token ends lines, each line is decoded as
    a text of its own."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), line_end: int | None = None):
        self.tokenizer, self.line_end = tokenizer, line_end
        lines = split_lines(prompt, line_end)
        self.prompt = "\n".join(tokenizer.library.decode(line, skip_special_tokens=True) for line in lines)
        self.waiting: list[str] = []
        spoken = [token for token in map(tokenizer.spoken, lines[-1]) if token is not None]
        self.before = [PLACEHOLDER if self.is_byte(token) else token for token in spoken[-1:]]

    def push(self, number: int) -> str:
        """What the next token settles; nothing where it must be waited for more."""
        if number == self.line_end:
            text = self.rest()
            self.before, self.waiting = [], []
            return text + "\n"
        token = self.tokenizer.spoken(number)
        if token is None:
            return ""
        self.waiting.append(token)
        text = self.text()
        if text.endswith(REPLACEMENT) or self.is_byte(token):
            return ""
        self.before, self.waiting = [token], []
        return text

    def rest(self) -> str:
        """What was kept back, where nothing more comes."""
        return self.text() if self.waiting else ""

    def text(self) -> str:
        return self.tokenizer.join_tokens([*self.before, *self.waiting])[len(self.tokenizer.join_tokens(self.before)) :]

    def is_byte(self, token: str) -> bool:
        """The library decodes a run of these at once: with a wrong byte, none of it is readable any more."""
        return self.tokenizer.byte_fallback and BYTE_TOKEN.fullmatch(token) is not None


def split_lines(ids: Sequence[int], line_end: int | None) -> list[list[int]]:
    """Ids cut where a line ends."""
    lines: list[list[int]] = [[]]
    for number in ids:
        if number == line_end:
            lines.append([])
        else:
            lines[-1].append(number)
    return lines

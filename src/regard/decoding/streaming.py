"""Text while it is generated: pieces that are never taken back, up to the first stop string."""

import math
from collections.abc import Generator, Iterator, Sequence

from regard.decoding.greedy import DecodingStep
from regard.decoding.protocol import NO_OUTPUT
from regard.errors import UserError
from regard.tokens.detokenizer import Detokenizer
from regard.tokens.tokenizer import Tokenizer


class TextStreamer:
    """The text of one sequence, token by token. White space at its end is held back, as decoding strips it, and so is anything
    that may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = (), line_end: int | None = None):
        self.ids, self.stops = list(ids), stops
        self.detokenizer = Detokenizer(tokenizer, ids, line_end)
        self.prompt = self.detokenizer.prompt.lstrip()
        self.tokens: list[int] = []
        self.log_probability = 0.0
        self.text, self.pending = "", ""
        self.finished = False

    def add(self, token: int) -> str:
        """Return the piece of text that is certain with this token."""
        self.tokens.append(token)
        return self._emit(self.detokenizer.push(token), more=True)

    def end(self) -> str:
        """Return the last piece, when no more tokens come."""
        return self._emit(self.detokenizer.flush(), more=False)

    @property
    def hit_stop_string(self) -> bool:
        """Whether a stop string ended the text: it is still held back."""
        return any(self.pending.startswith(stop) for stop in self.stops)

    def _emit(self, text: str, more: bool) -> str:
        self.pending += text
        if not self.prompt + self.text:
            self.pending = self.pending.lstrip()
        stop_at = min((place for stop in self.stops if (place := self.pending.find(stop)) >= 0), default=None)
        partial = len(self.pending)
        if more:
            partial = min((_partial_stop_start(self.pending, stop) for stop in self.stops), default=partial)
        if stop_at is not None and stop_at <= partial:  # else an earlier partial match may still become the first stop string
            self.finished, size = True, stop_at
        else:
            self.finished, size = not more, len(self.pending[:partial].rstrip())
        piece, self.pending = self.pending[:size], self.pending[size:]
        self.text += piece
        return piece


def _partial_stop_start(text: str, stop: str) -> int:
    """Return where the end of a text may be the start of a stop string; its length if nowhere."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(stop[:size])), 0)


def stream_texts(steps: Iterator[DecodingStep], streamers: Sequence[TextStreamer]) -> Generator[str]:
    """Decode all texts together and yield each piece as it comes; a text that has found its end is not computed any further."""
    for step in steps:
        for place, (row, token, log_p, active) in enumerate(step.items()):
            streamer = streamers[row]
            streamer.log_probability += log_p
            if math.isnan(log_p):
                raise UserError(NO_OUTPUT)
            piece = streamer.add(token) if active else streamer.end()
            if active and streamer.finished:
                step.active[place] = False
            if piece:
                yield piece

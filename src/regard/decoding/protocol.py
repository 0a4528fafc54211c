"""What a search needs of a model, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.tokens.special import NO_MARK, OURS, Marks

MOST_ROOM = 4096
"""Tokens that memory is taken for ahead, where more are allowed."""
STRIDES = 64
"""Numbers that share a maximum while the largest of a long row are looked for."""


class State(Protocol):
    def reorder(self, rows: Tensor) -> "State": ...
    def keep(self, rows: Tensor) -> "State": ...
    @staticmethod
    def join(states: "Sequence[Any]") -> "State": ...


class Decodes(Protocol):
    """Anything that writes one token after another, recurrent or not."""

    def start(self, inputs: Any, prefix: Tensor | None = None, room: int = 32) -> State: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens without the end mark, and how likely the model finds them with it."""

    tokens: list[int]
    log_probability: float
    score: float
    """The log-probability divided by the length penalty."""
    rows: list[int] = field(default_factory=list, compare=False, repr=False)
    """Where it was in each step of the search, from the one that read the last token of its prefix to the one that said its end:
    the row of the batch."""


def length_penalty(length: Tensor | float, alpha: Tensor | float) -> Tensor | float:
    """((5 + length) / 6)^α (Wu et al. 2016, eq. 14); the end mark counts."""
    return ((5 + length) / 6) ** alpha


def begin(
    model: Decodes, inputs: Any, limits: Tensor, prefix: Tensor | None, marks: Marks = OURS, longest: int | None = None
) -> tuple[Tensor, State]:
    """The token to go on from (B, 1), and the state after what comes before it. `prefix` (B, P) is what every output begins with,
    short ones filled with -1 on the left and each opened by the begin mark; `longest` the largest of the limits, where it is
    known."""
    if prefix is None:
        assert marks.begin != NO_MARK, "a vocabulary without a begin mark needs a prefix"
        prefix = torch.full((len(limits), 1), marks.begin, device=limits.device)
    longest = int(limits.max()) if longest is None else longest
    return prefix[:, -1:], model.start(inputs, prefix[:, :-1], room=prefix.size(1) + min(longest, MOST_ROOM))


def last_logits(logits: Tensor) -> Tensor:
    """Those of the last position (rows, V), in single precision at least."""
    logits = logits[:, -1]
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def end_of(logits: Tensor, marks: Marks) -> int:
    """The end mark; where a vocabulary has none, a place behind its last token."""
    return logits.size(-1) if marks.end == NO_MARK else marks.end


def next_log_probabilities(logits: Tensor, ends_now: Tensor, marks: Marks = OURS) -> Tensor:
    """log p of each next token (rows, V), from its logits (rows, V); a row at its limit may only end. A vocabulary without an
    end mark is given one (rows, V + 1), which is certain at the limit and impossible before."""
    log_p = logits.log_softmax(-1)
    if marks.end == NO_MARK:
        log_p = torch.cat([log_p, torch.where(ends_now, 0.0, -torch.inf).to(log_p)[:, None]], dim=-1)
    end = log_p[:, end_of(logits, marks)].clone()
    log_p = log_p.masked_fill(ends_now[:, None], -torch.inf)
    for mark in marks.never:
        log_p[:, mark] = -torch.inf
    log_p[:, end_of(logits, marks)] = end
    return log_p


def best_next(logits: Tensor, ends_now: Tensor, number: int, marks: Marks = OURS) -> tuple[Tensor, Tensor]:
    """The `number` best next tokens of each row and their log p: (rows, V) -> (rows, N), (rows, N), as
    `next_log_probabilities` has them, without sorting, masking and copying those of all V."""
    V, end, every = logits.size(-1), end_of(logits, marks), logits.log_softmax(-1)
    log_p, tokens = largest(every, min(V, number + len(marks.never)))
    for mark in marks.never:
        if mark != end:
            log_p = log_p.masked_fill(tokens == mark, -torch.inf)
    if marks.never:
        log_p, order = log_p.topk(min(V, number), dim=-1)
        tokens = tokens.gather(-1, order)
    certain = torch.zeros_like(log_p[:, :1]) if end == V else every[:, end : end + 1]
    only = torch.cat([certain, torch.full_like(log_p[:, 1:], -torch.inf)], dim=1)
    return torch.where(ends_now[:, None], only, log_p), torch.where(ends_now[:, None], end, tokens)


def largest(x: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, in order, and where they stand: (rows, V) -> (rows, N), (rows, N). In long rows by way of
    maxima of 64 numbers each: the N largest are among those with the N largest maxima, and maxima are taken many at a time."""
    rows, V = x.shape
    width = V // STRIDES
    if width < STRIDES or number > width:
        return x.topk(number, dim=-1)
    whole = width * STRIDES
    places = x[:, :whole].view(rows, STRIDES, width).amax(1).topk(number, dim=-1).indices  # (rows, N)
    strides = torch.arange(0, whole, width, device=x.device)
    found = (places[..., None] + strides).flatten(1)  # (rows, N · 64)
    if whole < V:
        found = torch.cat([found, torch.arange(whole, V, device=x.device).expand(rows, -1)], dim=1)
    best, which = x.gather(1, found).topk(number, dim=-1)
    return best, found.gather(1, which)

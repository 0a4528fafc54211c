"""What a search needs of a model, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.tokens.special import NO_MARK, OURS, Marks

MOST_ROOM = 4096
"""Tokens that memory is taken for ahead, where more are allowed."""


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


def begin(model: Decodes, inputs: Any, limits: Tensor, prefix: Tensor | None, marks: Marks = OURS) -> tuple[Tensor, State]:
    """The token to go on from (B, 1), and the state after what comes before it. `prefix` (B, P) is what every output begins with,
    short ones filled with -1 on the left and each opened by the begin mark."""
    if prefix is None:
        assert marks.begin != NO_MARK, "a vocabulary without a begin mark needs a prefix"
        prefix = torch.full((len(limits), 1), marks.begin, device=limits.device)
    return prefix[:, -1:], model.start(inputs, prefix[:, :-1], room=prefix.size(1) + min(int(limits.max()), MOST_ROOM))


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
    log_p[:, list(marks.never)] = -torch.inf
    log_p[:, end_of(logits, marks)] = end
    return log_p

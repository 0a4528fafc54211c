"""What a search needs of a model, and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, NO_TOKEN, SpecialTokens

MAX_CACHE_CAPACITY = 4096
"""Tokens that memory is taken for ahead, where more are allowed."""
TOPK_GROUPS = 64
"""Numbers that share a maximum while the largest of a long row are looked for."""


class DecodingState(Protocol):
    def reorder(self, rows: Tensor) -> "DecodingState": ...
    def keep(self, rows: Tensor) -> "DecodingState": ...
    @staticmethod
    def join(states: "Sequence[Any]") -> "DecodingState": ...


class Decodable(Protocol):
    """Anything that writes one token after another, recurrent or not."""

    def start(self, inputs: Any, prefix: Tensor | None = None, capacity: int = 32) -> DecodingState: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, DecodingState]: ...


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


def start_decoding(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    prefix: Tensor | None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    longest: int | None = None,
) -> tuple[Tensor, DecodingState]:
    """The token to go on from (B, 1), and the state after what comes before it. `prefix` (B, P) is what every output begins with,
    short ones filled with -1 on the left and each opened by the begin mark; `longest` the largest of the limits, where it is
    known."""
    if prefix is None:
        assert special_tokens.bos != NO_TOKEN, "a vocabulary without a begin mark needs a prefix"
        prefix = torch.full((len(limits), 1), special_tokens.bos, device=limits.device)
    longest = int(limits.max()) if longest is None else longest
    return prefix[:, -1:], model.start(inputs, prefix[:, :-1], capacity=prefix.size(1) + min(longest, MAX_CACHE_CAPACITY))


def last_logits(logits: Tensor) -> Tensor:
    """Those of the last position (rows, V), in single precision at least."""
    logits = logits[:, -1]
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def end_token(logits: Tensor, special_tokens: SpecialTokens) -> int:
    """The end mark; where a vocabulary has none, a place behind its last token."""
    return logits.size(-1) if special_tokens.eos == NO_TOKEN else special_tokens.eos


def next_log_probabilities(logits: Tensor, ends_now: Tensor, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> Tensor:
    """log p of each next token (rows, V), from its logits (rows, V); a row at its limit may only end. A vocabulary without an
    end mark is given one (rows, V + 1), which is certain at the limit and impossible before."""
    log_p = logits.log_softmax(-1)
    if special_tokens.eos == NO_TOKEN:
        log_p = torch.cat([log_p, torch.where(ends_now, 0.0, -torch.inf).to(log_p)[:, None]], dim=-1)
    end = log_p[:, end_token(logits, special_tokens)].clone()
    log_p = log_p.masked_fill(ends_now[:, None], -torch.inf)
    for mark in special_tokens.suppressed:
        log_p[:, mark] = -torch.inf
    log_p[:, end_token(logits, special_tokens)] = end
    return log_p


def best_next_tokens(
    logits: Tensor, ends_now: Tensor, number: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
) -> tuple[Tensor, Tensor]:
    """The `number` best next tokens of each row and their log p: (rows, V) -> (rows, N), (rows, N), as
    `next_log_probabilities` has them, without sorting, masking and copying those of all V."""
    V, end, every = logits.size(-1), end_token(logits, special_tokens), logits.log_softmax(-1)
    log_p, tokens = fast_topk(every, min(V, number + len(special_tokens.suppressed)))
    for mark in special_tokens.suppressed:
        if mark != end:
            log_p = log_p.masked_fill(tokens == mark, -torch.inf)
    if special_tokens.suppressed:
        log_p, order = log_p.topk(min(V, number), dim=-1)
        tokens = tokens.gather(-1, order)
    certain = torch.zeros_like(log_p[:, :1]) if end == V else every[:, end : end + 1]
    only = torch.cat([certain, torch.full_like(log_p[:, 1:], -torch.inf)], dim=1)
    return torch.where(ends_now[:, None], only, log_p), torch.where(ends_now[:, None], end, tokens)


def fast_topk(x: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, in order, and where they stand: (rows, V) -> (rows, N), (rows, N). In long rows by way of
    maxima of 64 numbers each: the N largest are among those with the N largest maxima, and maxima are taken many at a time."""
    rows, V = x.shape
    width = V // TOPK_GROUPS
    if width < TOPK_GROUPS or number > width:
        return x.topk(number, dim=-1)
    whole = width * TOPK_GROUPS
    places = x[:, :whole].view(rows, TOPK_GROUPS, width).amax(1).topk(number, dim=-1).indices  # (rows, N)
    strides = torch.arange(0, whole, width, device=x.device)
    found = (places[..., None] + strides).flatten(1)  # (rows, N · 64)
    if whole < V:
        found = torch.cat([found, torch.arange(whole, V, device=x.device).expand(rows, -1)], dim=1)
    best, which = x.gather(1, found).topk(number, dim=-1)
    return best, found.gather(1, which)

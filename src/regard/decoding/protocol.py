"""What a search needs of a model, what it returns, and the scores of the next token that all searches share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.decoding import next_token_kernel
from regard.errors import UserError
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, NO_TOKEN, SpecialTokens

MAX_CACHE_CAPACITY = 4096
"""Most tokens that the cache allocates memory for in advance; beyond that it grows."""
LIMIT_MULTIPLE = 16
"""The longest limit of a batch is rounded up to a multiple of this; sequences keep their own limits."""
NO_OUTPUT = (
    "the model's probabilities are NaN, so there is no output; try --precision fp32, or use another checkpoint or model: "
    "this one computes no finite numbers for this input"
)
TOPK_GROUPS = 64
"""Values that share a maximum in `fast_topk`."""


class DecodingState(Protocol):
    def reorder(self, rows: Tensor) -> "DecodingState": ...
    def keep(self, rows: Tensor) -> "DecodingState": ...
    @staticmethod
    def join(states: "Sequence[Any]") -> "DecodingState": ...


class Decodable(Protocol):
    """A model that generates one token after another, recurrent or not."""

    def start(self, inputs: Any, prefix: Tensor | None = None, capacity: int = 32) -> DecodingState: ...
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, DecodingState]: ...


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens without the end token, and its log-probability with the end token."""

    tokens: list[int]
    log_probability: float
    score: float
    """The log-probability divided by the length penalty."""
    rows: list[int] = field(default_factory=list, compare=False, repr=False)
    """The row of the batch that held it in each step, from the step that read the last prefix token to the one that generated the
    end token."""


def require_output(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of a source; refuse none, and those of no probability: an output is never lost silently."""
    if not hypotheses or any(math.isnan(one.score) for one in hypotheses):
        raise UserError(NO_OUTPUT)
    return hypotheses


def length_penalty(length: Tensor | float, alpha: Tensor | float) -> Tensor | float:
    """Return ((5 + length) / 6)^α (Wu et al. 2016, eq. 14); the end token counts."""
    return ((5 + length) / 6) ** alpha


def round_up_limit(limit: int) -> int:
    """Return the size that tensors get for outputs of at most this many tokens, so that shapes recur."""
    return -(-limit // LIMIT_MULTIPLE) * LIMIT_MULTIPLE


def start_decoding(
    model: Decodable,
    inputs: Any,
    limits: Tensor,
    prefix: Tensor | None,
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS,
    longest: int | None = None,
) -> tuple[Tensor, DecodingState]:
    """Return the last prefix token (B, 1) and the state after the tokens before it.

    `prefix` (B, P) holds what every output starts with, padded with -1 on the left; each row starts with the BOS token if the
    vocabulary has one. `longest` is the largest limit, if the caller knows it: reading it from `limits` waits for the device.
    """
    if prefix is None:
        assert special_tokens.bos != NO_TOKEN, "a vocabulary without a BOS token needs a prefix"
        columns = [torch.full((len(limits), 1), token, device=limits.device) for token in special_tokens.output_start]
        prefix = torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]
    longest = round_up_limit(int(limits.max())) if longest is None else longest
    return prefix[:, -1:], model.start(inputs, prefix[:, :-1], capacity=prefix.size(1) + min(longest, MAX_CACHE_CAPACITY))


def to_single_precision(logits: Tensor) -> Tensor:
    """Return the logits at least in single precision."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def end_token(logits: Tensor, special_tokens: SpecialTokens) -> int:
    """Return the id of the end token; for a vocabulary without one, the id after its last token."""
    return logits.size(-1) if special_tokens.eos == NO_TOKEN else special_tokens.eos


def next_log_probabilities(logits: Tensor, ends_now: Tensor, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS) -> Tensor:
    """Return log p of each next token (rows, V) from its logits (rows, V); a row at its limit may only end.

    A vocabulary without an end token gets one, (rows, V + 1): certain at the limit and impossible before.
    """
    log_p = to_single_precision(logits).log_softmax(-1)
    if special_tokens.eos == NO_TOKEN:
        log_p = torch.cat([log_p, torch.where(ends_now, 0.0, -torch.inf).to(log_p)[:, None]], dim=-1)
    end = end_token(logits, special_tokens)
    end_log_p = log_p[:, end].clone()
    log_p = log_p.masked_fill(ends_now[:, None], -torch.inf)
    for token in special_tokens.suppressed:
        log_p[:, token] = -torch.inf
    log_p[:, end] = end_log_p
    return log_p


def best_next_tokens(
    logits: Tensor, ends_now: Tensor, number: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
) -> tuple[Tensor, Tensor]:
    """Return log p and ids of the `number` best next tokens: (rows, V) -> (rows, N), (rows, N).

    The result is that of `next_log_probabilities` followed by `topk`, without sorting, masking and copying all V values.
    `ends_now` has an entry for each row, or for each group of adjacent rows.
    """
    V, end = logits.size(-1), end_token(logits, special_tokens)
    if next_token_kernel.can_run(logits, number, special_tokens.suppressed):
        suppressed = tuple(token for token in special_tokens.suppressed if token != end)
        return next_token_kernel.best_tokens(logits, ends_now, number, end, suppressed)
    ends_now = ends_now.repeat_interleave(len(logits) // len(ends_now)) if len(ends_now) else ends_now
    all_log_p = to_single_precision(logits).log_softmax(-1)
    log_p, tokens = fast_topk(all_log_p, min(V, number + len(special_tokens.suppressed)))
    for token in special_tokens.suppressed:
        if token != end:
            log_p = log_p.masked_fill(tokens == token, -torch.inf)
    if special_tokens.suppressed:
        log_p, order = log_p.topk(min(V, number), dim=-1)
        tokens = tokens.gather(-1, order)
    end_log_p = torch.zeros_like(log_p[:, :1]) if end == V else all_log_p[:, end : end + 1]
    only_end = torch.cat([end_log_p, torch.full_like(log_p[:, 1:], -torch.inf)], dim=1)
    return torch.where(ends_now[:, None], only_end, log_p), torch.where(ends_now[:, None], end, tokens)


def fast_topk(x: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, in order, and their indices: (rows, V) -> (rows, N), (rows, N).

    In long rows, take maxima over groups of 64 values first: the N largest values are in the groups with the N largest maxima.
    """
    rows, V = x.shape
    width = V // TOPK_GROUPS
    if width < TOPK_GROUPS or number > width:
        return x.topk(number, dim=-1)
    whole = width * TOPK_GROUPS
    groups = x[:, :whole].view(rows, TOPK_GROUPS, width).amax(1).topk(number, dim=-1).indices  # (rows, N)
    strides = torch.arange(0, whole, width, device=x.device)
    candidates = (groups[..., None] + strides).flatten(1)  # (rows, N · 64)
    if whole < V:
        candidates = torch.cat([candidates, torch.arange(whole, V, device=x.device).expand(rows, -1)], dim=1)
    best, which = x.gather(1, candidates).topk(number, dim=-1)
    return best, candidates.gather(1, which)

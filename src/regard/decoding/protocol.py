"""What a search needs of a model, and what it gives back."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.tokens.special import BOS, EOS, PAD


class State(Protocol):
    def reorder(self, rows: Tensor) -> "State": ...
    def keep(self, rows: Tensor) -> "State": ...


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


def length_penalty(length: Tensor | float, alpha: float) -> Tensor | float:
    """((5 + length) / 6)^α (Wu et al. 2016, eq. 14); the end mark counts."""
    return ((5 + length) / 6) ** alpha


def begin(model: Decodes, inputs: Any, limits: Tensor, prefix: Tensor | None) -> tuple[Tensor, State]:
    """The token to go on from (B, 1), and the state after what comes before it. `prefix` (B, P) is what every output begins with,
    short ones padded on the left and each opened by the begin mark."""
    if prefix is None:
        prefix = torch.full((len(limits), 1), BOS, device=limits.device)
    return prefix[:, -1:], model.start(inputs, prefix[:, :-1], room=prefix.size(1) + int(limits.max()))


def next_log_probabilities(logits: Tensor, ends_now: Tensor) -> Tensor:
    """log p of each next token (rows, V), from the last position's logits; a row at its limit may only end."""
    logits = logits[:, -1]
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    log_p = logits.log_softmax(-1)
    end = log_p[:, EOS].clone()
    log_p = log_p.masked_fill(ends_now[:, None], -torch.inf)
    log_p[:, [PAD, BOS]] = -torch.inf
    log_p[:, EOS] = end
    return log_p

"""Ensembles: several models of one vocabulary that predict each token together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.decoding.protocol import Decodable, DecodingState, to_single_precision


@dataclass(frozen=True)
class EnsembleState:
    """The states of all members after the same tokens."""

    states: tuple[DecodingState, ...]

    def reorder(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState(tuple(state.reorder(rows) for state in self.states))

    def keep(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState(tuple(state.keep(rows) for state in self.states))

    @staticmethod
    def join(states: "Sequence[EnsembleState]") -> "EnsembleState":
        return EnsembleState(tuple(type(member[0]).join(member) for member in zip(*(one.states for one in states))))


class Ensemble(nn.Module):
    """log p(y) = log 1/M Σ_m p_m(y): the mean of the members' probabilities, for every search and score.

    Members may differ in everything but their inputs and their vocabulary. In place of logits all methods return log p.
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return log p (B, T, V) of the token after each target position."""
        return mean_log_probabilities([member(**inputs) for member in self.members])

    def start(self, inputs: Any, prefix: Tensor | None = None, capacity: int = 32) -> EnsembleState:
        """Let each member read the inputs and a prefix (B, P), short rows padded with -1 on the left."""
        return EnsembleState(tuple(member.start(inputs, prefix, capacity=capacity) for member in self._decodable()))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Read the next tokens (hypotheses, T); return log p (hypotheses, T, V) after each."""
        steps = [member.step(tokens, own) for member, own in zip(self._decodable(), state.states)]
        return mean_log_probabilities([logits for logits, _ in steps]), EnsembleState(tuple(after for _, after in steps))

    def _decodable(self) -> list[Decodable]:
        return list(self.members)  # type: ignore[arg-type]


def mean_log_probabilities(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the probabilities (…, V) that several logits (…, V) stand for."""
    log_p = torch.stack([to_single_precision(one).log_softmax(-1) for one in logits])  # (M, …, V)
    return log_p.logsumexp(0) - math.log(len(logits))

"""How the next token is chosen: greedily or by sampling, with settings that are checked once.

A sample is a pure function of (seed, sequence, step, token): it does not depend on the batch or the machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard import rng
from regard.decoding.protocol import fast_topk
from regard.errors import UserError

MIN_TEMPERATURE = 1e-6
MAX_TEMPERATURE = 1000
MAX_REPETITION_PENALTY = 1000
MAX_MAX_TOKENS = 10**9
MAX_NUMBER = 10_000
NEEDS_TEMPERATURE = "restricts sampling, and nothing is sampled without a temperature; add one, such as 1"

ChooseToken = Callable[[Tensor, Tensor, int], Tensor]
"""log p (rows, V), the rows' numbers in the batch (rows,) and the step -> tokens (rows,)."""
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, V) and the tokens so far (rows, L), padded with -1 on the left -> logits (rows, V)."""


def greedy(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
    """Choose the most probable token of each row."""
    return log_p.argmax(-1)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Sample by the Gumbel-max trick: each token gets an exponential arrival time of rate p, and the first one is chosen.

    The random number of a token is a pure function of (seed, sequence, step, token), so a text does not depend on its batch;
    where rounding changes p slightly, it can change only the winner of a near tie. `sequence_ids` gives the sequence of each row
    if that is not its index in the batch.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sequence_ids: np.ndarray | None = None

    def __call__(self, log_p: Tensor, rows: Tensor, step: int) -> Tensor:
        return self.sample(log_p, torch.from_numpy(self.keys(rows.cpu().numpy(), step)).to(log_p.device))

    def keys(self, rows: np.ndarray, step: int | np.ndarray) -> np.ndarray:
        """Return the 64-bit random key of each row in a step."""
        return rng.hash64(self.seed, rows if self.sequence_ids is None else self.sequence_ids[rows], step).view(np.int64)

    def with_keys(self, keys: Tensor) -> ChooseToken:
        """Return this sampler with the keys of all steps (rows, L) given, for a CUDA graph, which cannot compute on the host."""
        return lambda log_p, rows, step: self.sample(log_p, keys[:, step])

    def sample(self, log_p: Tensor, keys: Tensor) -> Tensor:
        """Sample tokens (rows,) from log p (rows, V) with the key of each row (rows,)."""
        log_p, tokens = self._candidates(log_p / self.temperature)
        first = (log_p - exponential_times(keys, tokens, log_p.dtype).log()).argmax(-1, keepdim=True)
        return tokens.expand(log_p.shape).gather(-1, first)[:, 0]

    def _candidates(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p of the tokens that top-k and top-p leave, (rows, C), and their ids, (rows or 1, C)."""
        V = log_p.shape[-1]
        if not 0 < self.top_k < V and self.top_p == 1:
            return log_p, torch.arange(V, device=log_p.device)[None]
        log_p, tokens = fast_topk(log_p, min(self.top_k or V, V))
        if self.top_p < 1:
            p = log_p.softmax(-1)
            beyond = p.cumsum(-1) - p >= self.top_p  # outside the smallest set that reaches top_p
            beyond[:, 0] = False  # the best token is always in it, even if its p is rounded to 0
            log_p = log_p.masked_fill(beyond, -torch.inf)
        return log_p, tokens


def sample_index(place: int, sample: int, part: int = 0) -> int:
    """Return the index that seeds a sample of an input, or of a part of it; the first sample has the input's own index."""
    return place + (sample << 32) + (part % 2**15 << 48)


def exponential_times(keys: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exponential random times (rows, C) from keys (rows,) and tokens (rows or 1, C): one round of splitmix64, as in
    `rng.hash64`."""
    state = (keys[:, None] ^ tokens) + _to_signed64(0x9E3779B97F4A7C15)
    state = (state ^ _shift_right(state, 30)) * _to_signed64(0xBF58476D1CE4E5B9)
    state = (state ^ _shift_right(state, 27)) * _to_signed64(0x94D049BB133111EB)
    uniform = _shift_right(state ^ _shift_right(state, 31), 11).to(dtype).clamp(min=0.5) * 2.0**-53
    return -torch.log1p(-uniform.clamp(max=1 - torch.finfo(dtype).eps / 2))


def _to_signed64(number: int) -> int:
    return number - (1 << 64)


def _shift_right(state: Tensor, by: int) -> Tensor:
    """Shift right and fill with zeros: `>>` repeats the sign bit."""
    return (state >> by) & ((1 << (64 - by)) - 1)


def apply_repetition_penalty(logits: Tensor, generated: Tensor, penalty: float) -> Tensor:
    """Reduce the logits (rows, V) of tokens that occur in `generated` (rows, L; -1 is padding), each once.

    A positive logit is divided by the penalty (Keskar et al. 2019, sec. 4.1); a negative one, which division would raise, is
    multiplied, as in transformers. The reported log-probabilities are those of the unchanged logits.
    """
    V = logits.size(-1)
    seen = torch.zeros(len(logits), V + 1, dtype=torch.bool, device=logits.device)
    seen = seen.scatter(1, generated.where(generated >= 0, V), True)[:, :V]  # (rows, V)
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


@dataclass(frozen=True)
class SamplingParams:
    """The settings of text generation, checked."""

    max_tokens: int = 100
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()
    seed: int = 0
    number: int = 1
    """Texts per prompt."""

    def __post_init__(self) -> None:
        strongest = MAX_REPETITION_PENALTY
        for name, holds, cure in [
            ("max_tokens", 1 <= self.max_tokens <= MAX_MAX_TOKENS, f"must be between 1 and {MAX_MAX_TOKENS}"),
            (
                "temperature",
                self.temperature is None or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE,
                f"must be between {MIN_TEMPERATURE:f} and {MAX_TEMPERATURE}; leave it out to choose the most probable token",
            ),
            ("top_k", 0 <= self.top_k <= MAX_MAX_TOKENS, f"must be between 0, which means all tokens, and {MAX_MAX_TOKENS}"),
            ("top_p", 0 < self.top_p <= 1, "must be more than 0 and at most 1, which means all tokens"),
            ("top_k", self.temperature is not None or self.top_k == 0, NEEDS_TEMPERATURE),
            ("top_p", self.temperature is not None or self.top_p == 1, NEEDS_TEMPERATURE),
            (
                "repetition_penalty",
                1 / strongest <= self.repetition_penalty <= strongest,
                f"must be between {1 / strongest} and {strongest}; 1 is no penalty",
            ),
            ("number", 1 <= self.number <= MAX_NUMBER, f"must be between 1 and {MAX_NUMBER}"),
            (
                "number",
                self.number == 1 or self.temperature is not None,
                "all texts would be the same without a temperature; add one, such as 1",
            ),
            ("seed", -(2**63) <= self.seed < 2**63, "must have at most 18 digits"),
        ]:
            if not holds:
                raise UserError(f"{name} = {getattr(self, name)}: {cure}")
        if not all(self.stops):
            raise UserError("stop = '': an empty string is found everywhere; leave it out, or give the text that should end it")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def chooser(self, sequence_ids: np.ndarray) -> ChooseToken:
        """Return how the tokens of these sequences are chosen."""
        if self.temperature is None:
            return greedy
        return Sampler(self.seed, self.temperature, self.top_k, self.top_p, sequence_ids)

    def logits_processor(self) -> LogitsProcessor | None:
        if self.repetition_penalty == 1:
            return None
        return lambda logits, generated: apply_repetition_penalty(logits, generated, self.repetition_penalty)

"""Drawing the next token, the same one whatever the batch and the machine."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard import rng
from regard.decoding.protocol import fast_topk


@dataclass(frozen=True, eq=False)
class Sampler:
    """Let the tokens race: each arrives after an exponential time of rate p, and the first is taken (the Gumbel-max trick).

    A token's luck is a pure function of (seed, sentence, step, token), so a text does not depend on the batch it was drawn in;
    and where rounding moves p a little, it can change only who wins a dead heat. `numbers` gives each row's sentence where it is
    not its place in the batch.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sequence_ids: np.ndarray | None = None

    def __call__(self, log_p: Tensor, rows: Tensor, step: int) -> Tensor:
        return self.pick(log_p, torch.from_numpy(self.keys(rows.cpu().numpy(), step)).to(log_p.device))

    def keys(self, rows: np.ndarray, step: int | np.ndarray) -> np.ndarray:
        """What a row draws by in a step: any 64 bits."""
        return rng.hash64(self.seed, rows if self.sequence_ids is None else self.sequence_ids[rows], step).view(np.int64)

    def pick(self, log_p: Tensor, keys: Tensor) -> Tensor:
        """Of log p (rows, V) and the key of each row (rows,): tokens (rows,)."""
        log_p, tokens = self.candidates(log_p / self.temperature)
        first = (log_p - exponential_times(keys, tokens, log_p.dtype).log()).argmax(-1, keepdim=True)
        return tokens.expand(log_p.shape).gather(-1, first)[:, 0]

    def candidates(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """What is drawn from, (rows, C), and its tokens, (rows or 1, C)."""
        V = log_p.shape[-1]
        if not 0 < self.top_k < V and self.top_p == 1:
            return log_p, torch.arange(V, device=log_p.device)[None]
        log_p, tokens = fast_topk(log_p, min(self.top_k or V, V))
        if self.top_p < 1:
            p = log_p.softmax(-1)
            beyond = p.cumsum(-1) - p >= self.top_p  # the smallest set that reaches top_p,
            beyond[:, 0] = False  # the best token always in it, even if p is rounded to 0
            log_p = log_p.masked_fill(beyond, -torch.inf)
        return log_p, tokens


def exponential_times(keys: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Exponential times (rows, C) of keys (rows,) and tokens (rows or 1, C): one round of splitmix64, as in `rng.mix`."""
    state = (keys[:, None] ^ tokens) + to_signed64(0x9E3779B97F4A7C15)
    state = (state ^ logical_shift_right(state, 30)) * to_signed64(0xBF58476D1CE4E5B9)
    state = (state ^ logical_shift_right(state, 27)) * to_signed64(0x94D049BB133111EB)
    uniform = logical_shift_right(state ^ logical_shift_right(state, 31), 11).to(dtype).clamp(min=0.5) * 2.0**-53
    return -torch.log1p(-uniform.clamp(max=1 - torch.finfo(dtype).eps / 2))


def to_signed64(number: int) -> int:
    return number - (1 << 64)


def logical_shift_right(state: Tensor, by: int) -> Tensor:
    """To the right, zeros following."""
    return (state >> by) & ((1 << (64 - by)) - 1)

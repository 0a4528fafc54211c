"""One hypothesis a sentence: greedy search and sampling differ only in how the next token is chosen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import chance
from regard.decoding.protocol import Decodes, Hypothesis, begin, end_of, length_penalty, next_log_probabilities
from regard.tokens.special import FILL, OURS, Marks

Choose = Callable[[Tensor, Tensor, int], Tensor]


def greedy(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
    return log_p.argmax(-1)


def sampler(*, seed: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            numbers: np.ndarray | None = None) -> Choose:
    """Draw by inverting the cumulative distribution at one uniform number a row.

    The number is a pure function of (seed, sentence, step), so a text does not depend on the batch it was drawn in; `numbers`
    gives each row's sentence where it is not its place in the batch.
    """
    def choose(log_p: Tensor, rows: Tensor, step: int) -> Tensor:
        log_p, tokens = (log_p / temperature).sort(-1, descending=True)           # (rows, V)
        p = log_p.softmax(-1)
        if top_k:
            p[:, top_k:] = 0
        if top_p < 1:
            p[p.cumsum(-1) - p >= top_p] = 0          # the smallest set that reaches top_p, the best token always in it
        sums = p.cumsum(-1)
        sentences = rows.cpu().numpy() if numbers is None else numbers[rows.cpu().numpy()]
        where = torch.from_numpy(chance.uniform(seed, sentences, step)).to(sums) * sums[:, -1]
        rank = torch.searchsorted(sums, where[:, None], right=True).clamp(max=(p > 0).sum(-1, keepdim=True) - 1)
        return tokens.gather(-1, rank)[:, 0]
    return choose


@torch.no_grad()
def walk(model: Decodes, inputs: Any, limits: Tensor, choose: Choose = greedy, alpha: float = 0.0,
         prefix: Tensor | None = None, marks: Marks = OURS) -> list[Hypothesis]:
    """Write until every sentence has ended; sentence i has at most limits[i] tokens after its prefix, its end mark included."""
    device, longest = limits.device, int(limits.max())
    rows = torch.arange(len(limits), device=device)                               # the sentences still being written
    said = torch.full((len(limits), longest), FILL, device=device)
    total = torch.zeros(len(limits), device=device, dtype=torch.float64)
    last, state = begin(model, inputs, limits, prefix, marks)
    end = marks.end
    for step in range(longest):
        logits, state = model.step(last, state)
        end = end_of(logits, marks)
        log_p = next_log_probabilities(logits, limits[rows] == step + 1, marks)
        token = choose(log_p, rows, step)                                         # (rows,)
        said[rows, step] = token
        total[rows] += log_p.gather(-1, token[:, None])[:, 0]
        going = (token != end).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(rows):
            state, rows, token = state.keep(going), rows[going], token[going]
        last = token[:, None]
    return [hypothesis(tokens, log_probability, alpha, end)
            for tokens, log_probability in zip(said.tolist(), total.tolist())]


def hypothesis(tokens: list[int], log_probability: float, alpha: float, end: int) -> Hypothesis:
    length = tokens.index(end)
    return Hypothesis(tokens[:length], log_probability, log_probability / float(length_penalty(length + 1, alpha)))

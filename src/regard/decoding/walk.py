"""One hypothesis a sentence: greedy search and sampling differ only in how the next token is chosen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import chance
from regard.decoding.protocol import (
    Decodes,
    Hypothesis,
    begin,
    best_next,
    end_of,
    last_logits,
    length_penalty,
    next_log_probabilities,
)
from regard.tokens.special import OURS, Marks

Choose = Callable[[Tensor, Tensor, int], Tensor]
Process = Callable[[Tensor, Tensor], Tensor]
"""Logits (rows, V) and what is written so far (rows, L), filled with -1 on the left -> logits (rows, V)."""


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


@dataclass
class Step:
    """The next token of every sentence still being written."""

    rows: Tensor                                                                  # (rows,) which sentences
    tokens: Tensor                                                                # (rows,)
    log_p: Tensor                                                                 # (rows,) how likely the model found them
    going: Tensor
    """(rows,) Which go on: not the end mark. Who reads the step may let others end here too, by setting theirs to False."""

    def each(self) -> Iterator[tuple[int, int, float, bool]]:
        return zip(self.rows.tolist(), self.tokens.tolist(), self.log_p.tolist(), self.going.tolist())


@torch.no_grad()
def steps(model: Decodes, inputs: Any, limits: Tensor, choose: Choose = greedy, *, process: Process | None = None,
          prefix: Tensor | None = None, marks: Marks = OURS) -> Iterator[Step]:
    """Write until every sentence has ended; sentence i has at most limits[i] tokens after its prefix, its end mark included."""
    rows = torch.arange(len(limits), device=limits.device)
    with torch.inference_mode():
        last, state = begin(model, inputs, limits, prefix, marks)
    written = last if prefix is None else prefix                                  # (rows, L)
    for number in range(int(limits.max())):
        with torch.inference_mode():
            logits, state = model.step(last, state)
        logits, ends_now = last_logits(logits), limits[rows] == number + 1
        if choose is greedy and process is None:
            said, token = (part[:, 0] for part in best_next(logits, ends_now, 1, marks))      # (rows,) each
        else:
            log_p = wanted = next_log_probabilities(logits, ends_now, marks)
            if process is not None:
                wanted = next_log_probabilities(process(logits, written), ends_now, marks)
            token = choose(wanted, rows, number)                                  # (rows,)
            said = log_p.gather(-1, token[:, None])[:, 0]
        step = Step(rows, token, said, token != end_of(logits, marks))
        yield step
        going = step.going.nonzero()[:, 0]
        if len(going) == 0:
            return
        if len(going) < len(rows):
            state, rows, token, written = state.keep(going), rows[going], token[going], written[going]
        last = token[:, None]
        if process is not None:
            written = torch.cat([written, last], dim=1)


def walk(model: Decodes, inputs: Any, limits: Tensor, choose: Choose = greedy, alpha: float = 0.0,
         prefix: Tensor | None = None, marks: Marks = OURS) -> list[Hypothesis]:
    """What is written of each sentence in the end."""
    said: list[list[int]] = [[] for _ in range(len(limits))]
    total, way = [0.0] * len(said), [list[int]() for _ in said]
    for step in steps(model, inputs, limits, choose, prefix=prefix, marks=marks):
        for place, (row, token, log_p, going) in enumerate(step.each()):
            total[row] += log_p
            way[row].append(place)
            if going:
                said[row].append(token)
    return [Hypothesis(tokens, log_probability, log_probability / float(length_penalty(len(tokens) + 1, alpha)), rows)
            for tokens, log_probability, rows in zip(said, total, way)]

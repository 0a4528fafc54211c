"""Muon (Jordan et al. 2024): momentum, made orthogonal by Newton and Schulz's iteration, for matrices between embeddings and
output.

torch.optim.Muon, of which the numbers below are, goes matrix by matrix and asks the host for its rate; here matrices of one shape
go together, the rate lies on the device, and a step can be left out without asking, so that it can be recorded.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, STEPS, LEAST = 0.95, 5, 1e-7
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """w ← (1 − ηλ) w − η √max(1, rows / columns) · orthogonal(momentum of the gradient), unless `found_inf` is 1."""

    found_inf: Tensor

    def __init__(self, params: Iterable[nn.Parameter], lr: float | Tensor, weight_decay: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(p.shape, []).append(p)
            for shape, weights in alike.items():
                self.together(shape, weights, group["lr"], group["weight_decay"])

    def together(self, shape: torch.Size, weights: list[Tensor], rate: float | Tensor, decay: float) -> None:
        """One step of matrices of one shape."""
        apply = 1 - self.found_inf
        memories = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in weights]
        found = torch.stack([p.grad for p in weights if p.grad is not None])  # (N, rows, columns)
        gradients = found.masked_fill(self.found_inf.bool(), 0.0)
        before = torch.stack(memories)
        memory = before.lerp(gradients, (1 - MOMENTUM) * apply)
        update = orthogonalize(gradients.lerp(memory, MOMENTUM)).to(memory.dtype)
        pace = rate * apply
        torch._foreach_copy_(memories, list(memory.unbind()))
        torch._foreach_mul_(weights, as_tensor(1 - pace * decay, memory))
        torch._foreach_add_(weights, list((update * (-math.sqrt(max(1, shape[0] / shape[1])) * pace)).unbind()))


def orthogonalize(x: Tensor) -> Tensor:
    """Roughly U Vᵀ of each matrix U S Vᵀ, in bf16: (N, rows, columns)."""
    if x.size(-2) > x.size(-1):
        return orthogonalize(x.mT).mT
    x = x.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x


def as_tensor(x: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(x, dtype=like.dtype, device=like.device)

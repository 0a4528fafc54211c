"""Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), from torch.optim, Muon (Jordan et al. 2024), and learning-rate
schedules.

A step whose gradients are not finite is skipped by a flag on the device, without a host–device synchronisation. On a GPU the
learning rates are device tensors too, so that a step can be captured in a CUDA graph.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.distributed.parallel import is_sharded, shard_like
from regard.errors import UserError
from regard.recipe import OptimizerSettings, ScheduleSettings

MUON_MOMENTUM, NEWTON_SCHULZ_STEPS, MIN_NORM = 0.95, 5, 1e-7
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class CombinedOptimizer:
    """Adam for all parameters or, with `kind = "muon"`, Muon for the hidden matrices and AdamW for the rest."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings):
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = [(name, p) for name, p in named if settings.kind == "muon" and is_hidden_matrix(name, p)]
        rest = [(name, p) for name, p in named if not any(p is q for _, q in hidden)]
        fractions = rate_fractions([name for name, _ in named], settings.rates)
        self.optimizers: list[torch.optim.Optimizer] = [_build_adam(rest, settings, fractions)]
        self.peak_rates = [settings.learning_rate]
        if hidden:
            groups: dict[float, dict[str, Any]] = {}
            for name, p in hidden:
                fraction = fractions[name]
                groups.setdefault(fraction, {"params": [], "rate_factor": fraction})["params"].append(p)
            self.optimizers.append(
                Muon([groups[key] for key in sorted(groups)], lr=settings.muon_learning_rate, weight_decay=settings.weight_decay)
            )
            self.peak_rates.append(settings.muon_learning_rate)
        self.names: dict[Tensor, str] = {p: name for name, p in named}
        if named[0][1].is_cuda:
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] = torch.tensor(group["lr"], device=named[0][1].device)

    def set_learning_rate(self, factor: float) -> None:
        """Set every group's learning rate to a fraction of its peak."""
        for optimizer, peak in zip(self.optimizers, self.peak_rates):
            for group in optimizer.param_groups:
                rate = peak * factor * group.get("rate_factor", 1.0)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def step(self, skip: Tensor) -> None:
        """Apply the gradients unless `skip` (a 0-d float on the device) is 1."""
        for optimizer in self.optimizers:
            optimizer.grad_scale, optimizer.found_inf = None, skip  # type: ignore[attr-defined]
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by "parameter name/slot", for a checkpoint."""
        return {
            f"{self.names[p]}/{slot}": value
            for optimizer in self.optimizers
            for p, state in optimizer.state.items()
            for slot, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, slot = key.rpartition("/")
            by_name.setdefault(name, {})[slot] = value
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if self.names[p] in by_name:
                    optimizer.state[p] = {slot: shard_like(value, p) for slot, value in by_name[self.names[p]].items()}


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether Muon applies to a parameter: a matrix between the embeddings and the output, or a convolution of a residual
    stem after the first one, which reads pixels."""
    return ".blocks." in name if parameter.dim() == 2 else ".patches.stages." in name and parameter.dim() == 4


def rate_fractions(names: Sequence[str], rates: Mapping[str, float]) -> dict[str, float]:
    """Return the fraction of the learning rate of each weight: that of the longest prefix in `rates`, or 1."""
    for prefix in rates:
        if not any(name.startswith(prefix) for name in names):
            known = ", ".join(sorted({name.split(".")[0] for name in names}))
            problem = f"no trained weight has a name with this prefix; prefixes: {known}"
            raise UserError(f"train.optimizer.rates.{prefix} = {rates[prefix]}: {problem}")
    by_length = sorted(rates, key=len, reverse=True)
    return {name: next((rates[prefix] for prefix in by_length if name.startswith(prefix)), 1.0) for name in names}


def _build_adam(
    named: list[tuple[str, nn.Parameter]], settings: OptimizerSettings, fractions: Mapping[str, float]
) -> torch.optim.Optimizer:
    """Build Adam with weight decay on matrices only, and one group of parameters for each learning rate: of layer-wise decay, and
    of the weights with a fraction of the rate."""
    depths = layer_depths([name for name, _ in named]) if settings.layer_decay < 1 else {}
    groups: dict[tuple[bool, int, bool, float], dict[str, Any]] = {}
    for name, p in named:
        depth, fraction = depths.get(name, 0), fractions[name]
        group = groups.setdefault(
            (p.dim() < 2, depth, is_sharded(p), fraction),
            {
                "params": [],
                "weight_decay": settings.weight_decay if p.dim() >= 2 else 0.0,
                "rate_factor": settings.layer_decay**depth * fraction,
            },
        )
        group["params"].append(p)
    kind = torch.optim.Adam if settings.kind == "adam" else torch.optim.AdamW
    return kind(
        [groups[key] for key in sorted(groups)],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
        capturable=bool(named) and named[0][1].is_cuda,
    )


def layer_depths(names: Sequence[str]) -> dict[str, int]:
    """Return the distance of each parameter from the output: 0 for the head, 1 for the last layer, embeddings one below the
    first."""
    layer = {name: int(match.group(1)) for name in names if (match := re.search(r"\.(?:blocks|layers)\.(\d+)\.", name))}
    num_layers = max(layer.values(), default=-1) + 1

    def depth(name: str) -> int:
        if name in layer:
            return num_layers - layer[name]
        return num_layers + 1 if re.search(r"words|embedding|positions|segments|patches|token", name) else 0

    return {name: depth(name) for name in names}


class Muon(torch.optim.Optimizer):
    """w ← (1 − ηλ) w − η √max(1, rows / columns) · orthogonalize(momentum of the gradient), unless `found_inf` is 1.

    A convolution (out, in, height, width) is the matrix (out, in · height · width), as in Jordan's training of CIFAR-10. The
    numbers are those of torch.optim.Muon, which goes matrix by matrix and reads its learning rate on the host. Here matrices
    of one shape are updated together, the learning rate is on the device, and a step can be skipped there, so that it can be
    captured.
    """

    found_inf: Tensor

    def __init__(self, params: Iterable[nn.Parameter] | list[dict[str, Any]], lr: float | Tensor, weight_decay: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, weights in by_shape.items():
                self._update(shape, weights, group["lr"], group["weight_decay"])

    def _update(self, shape: torch.Size, weights: list[Tensor], learning_rate: float | Tensor, decay: float) -> None:
        """Update all matrices, or all convolutions, of one shape."""
        apply = 1 - self.found_inf
        buffers = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in weights]
        gradients = torch.stack([p.grad.flatten(1) for p in weights if p.grad is not None])  # (N, rows, columns)
        gradients = gradients.masked_fill(self.found_inf.bool(), 0.0)
        momentum = torch.stack([buffer.flatten(1) for buffer in buffers]).lerp(gradients, (1 - MUON_MOMENTUM) * apply)
        update = orthogonalize(gradients.lerp(momentum, MUON_MOMENTUM)).to(momentum.dtype)
        rate = learning_rate * apply
        torch._foreach_copy_(buffers, list(momentum.view(-1, *shape).unbind()))
        torch._foreach_mul_(weights, torch.as_tensor(1 - rate * decay, dtype=momentum.dtype, device=momentum.device))
        step = update * (-math.sqrt(max(1, momentum.size(1) / momentum.size(2))) * rate)
        torch._foreach_add_(weights, list(step.view(-1, *shape).unbind()))


def orthogonalize(x: Tensor) -> Tensor:
    """Return roughly U Vᵀ of each matrix U S Vᵀ, in bf16, by Newton–Schulz iteration: (N, rows, columns)."""
    if x.size(-2) > x.size(-1):
        return orthogonalize(x.mT).mT
    a, b, c = NEWTON_SCHULZ
    x = x.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=MIN_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def learning_rate_factor(step: int, steps: int, schedule: ScheduleSettings) -> float:
    """Return the fraction of the peak learning rate at a step counted from 1."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return step / warmup
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":  # Vaswani et al. 2017, sec. 5.3, eq. 3, divided by its peak
            return math.sqrt(max(1, warmup) / step)
        case "cosine":
            progress = min(1.0, (step - warmup) / max(1, steps - warmup))
            return schedule.final_fraction + (1 - schedule.final_fraction) * (1 + math.cos(math.pi * progress)) / 2
        case "trapezoid":
            remaining = min(1.0, (steps - step) / max(1, round(steps * schedule.cooldown_fraction)))
            return schedule.final_fraction + (1 - schedule.final_fraction) * max(0.0, remaining)

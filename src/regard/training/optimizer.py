"""Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), from torch.optim, and Muon (Jordan et al. 2024).

A step whose gradients are not finite is not applied: a flag on the device says so, and nothing waits for it. On a GPU the rates
lie there too, so that a step can be recorded.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.distributed.parallel import is_sharded, shard_like
from regard.training.muon import Muon

if TYPE_CHECKING:
    from regard.recipe import OptimizerSettings as Settings


class CombinedOptimizer:
    def __init__(self, model: nn.Module, settings: "Settings"):
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = [(name, p) for name, p in named if settings.kind == "muon" and p.dim() == 2 and is_hidden_matrix(name)]
        rest = [(name, p) for name, p in named if not any(p is q for _, q in hidden)]
        self.parts: list[torch.optim.Optimizer] = [build_adam(rest, settings)]
        self.peaks = [settings.learning_rate]
        if hidden:
            self.parts.append(Muon([p for _, p in hidden], lr=settings.muon_learning_rate, weight_decay=settings.weight_decay))
            self.peaks.append(settings.muon_learning_rate)
        self.names: dict[Tensor, str] = {p: name for name, p in named}
        for group in (group for part in self.parts for group in part.param_groups if named[0][1].is_cuda):
            group["lr"] = torch.tensor(group["lr"], device=named[0][1].device)

    def set_rate(self, share: float) -> None:
        for part, peak in zip(self.parts, self.peaks):
            for group in part.param_groups:
                rate = peak * share * group.get("share", 1.0)
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def step(self, skip: Tensor) -> None:
        """Apply the gradients unless `skip` (a 0-d float on the device) is 1."""
        for part in self.parts:
            part.grad_scale, part.found_inf = None, skip  # type: ignore[attr-defined]
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by parameter name, for a checkpoint."""
        return {
            f"{self.names[p]}/{key}": value
            for part in self.parts
            for p, state in part.state.items()
            for key, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, slot = key.rpartition("/")
            by_name.setdefault(name, {})[slot] = value
        for part in self.parts:
            for group in part.param_groups:
                for p in group["params"]:
                    if self.names[p] in by_name:
                        part.state[p] = {slot: shard_like(value, p) for slot, value in by_name[self.names[p]].items()}


def is_hidden_matrix(name: str) -> bool:
    """Matrices between embeddings and output, which Muon is for."""
    return ".blocks." in name


def build_adam(named: list[tuple[str, nn.Parameter]], settings: "Settings") -> torch.optim.Optimizer:
    """Matrices decay, vectors do not; and where layers learn at different rates, each has its groups."""
    below = layer_depths([name for name, _ in named]) if settings.layer_decay < 1 else {}
    groups: dict[tuple[bool, int, bool], dict[str, Any]] = {}
    for name, p in named:
        decay, depth = settings.weight_decay if p.dim() >= 2 else 0.0, below.get(name, 0)
        group = groups.setdefault(
            (p.dim() < 2, depth, is_sharded(p)), {"params": [], "weight_decay": decay, "share": settings.layer_decay**depth}
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
    """How many layers each weight is below the head: a stack's last layer 1, its embeddings one more than its first."""
    layer = {name: int(found.group(1)) for name in names if (found := re.search(r"\.(?:blocks|layers)\.(\d+)\.", name))}
    depth = max(layer.values(), default=-1) + 1

    def below(name: str) -> int:
        if name in layer:
            return depth - layer[name]
        return depth + 1 if re.search(r"words|embedding|positions|segments|patches|token", name) else 0

    return {name: below(name) for name in names}

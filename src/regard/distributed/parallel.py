"""Data parallelism: torch's DDP, or FSDP2 (Rajbhandari et al. 2020; Zhao et al. 2023).

An objective returns the sum of its losses, and the loop divides it by the number of labels of the global batch. DDP and FSDP
average the gradients, therefore the loss is multiplied by the world size: the result is the gradient of one process with all
rows.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard import distributed
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.recipe import Training

ParallelMode = Literal["none", "ddp", "fsdp"]
FSDP_VERSION = "2.13"
"""The oldest torch on which the tests of FSDP pass."""


class Parallelism:
    """A model on all ranks. `module` is called in the model's place: the model itself, or DDP around it."""

    def __init__(self, model: nn.Module, settings: "Training"):
        self.model, self.mode = model, resolve_parallel(settings)
        self.unsharded: list[nn.Parameter] = []  # scalars, which FSDP cannot shard
        if self.mode == "fsdp":
            self.empty_model = _copy_to_meta(model)
            self.unsharded = _apply_fsdp(model)
        self.module: nn.Module = model
        self._warmed_up = self.mode != "ddp"

    def warm_up_ddp(self, dummy_backward: Callable[[nn.Module], None]) -> None:
        """Wrap the model in DDP before the first step.

        DDP must know whether some weights get no gradient, such as BERT's second head without its second task. It also regroups
        its gradient buckets after the first backward pass, and sums in another order from then on: if that happened after the
        first step, a resumed run on three or more ranks would not be bit-exact.
        """
        if self._warmed_up:
            return
        self.model.eval()  # running statistics must not move
        dummy_backward(self.module)
        unused = any(p.requires_grad and p.grad is None for p in self.model.parameters())
        self.model.zero_grad()
        self.module = _TransparentDDP(
            self.module, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
        )
        dummy_backward(self.module)
        self.model.zero_grad()
        self._warmed_up = True

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        """Exchange gradients only in the last micro-batch of a step."""
        if self.mode == "fsdp":
            self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        with self.module.no_sync() if self.mode == "ddp" and not last else nullcontext():  # type: ignore[operator]
            yield
        if last and self.unsharded:
            for p in self.unsharded:
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= distributed.world_size()

    def sync_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Copy rank 0's running statistics (batch norm) to all ranks."""
        for buffer in buffers if self.mode != "none" else ():
            dist.broadcast(buffer, 0)

    def full_model(self) -> nn.Module:
        """Return the model with all weights on this rank.

        A sharded model must be called on all ranks alike; the full one may be called by each rank as often as it likes.
        """
        if self.mode != "fsdp":
            return self.model
        full = copy.deepcopy(self.empty_model, {id(buffer): buffer for buffer in self.empty_model.buffers()})
        gathered: dict[int, Tensor] = {}  # tied weights are gathered once
        for x in self.model.state_dict(keep_vars=True).values():
            gathered[id(x)] = gathered.get(id(x), x.detach().full_tensor() if is_sharded(x) else x.detach())
        full.load_state_dict({name: gathered[id(x)] for name, x in self.model.state_dict(keep_vars=True).items()}, assign=True)
        return full.requires_grad_(False)


class _TransparentDDP(nn.parallel.DistributedDataParallel):
    """DDP that passes attribute access on to the model, so that its own methods are found."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)


def resolve_parallel(settings: "Training") -> ParallelMode:
    """Return how a recipe is trained on the current number of processes."""
    if distributed.world_size() == 1:
        return "none"
    if settings.parallel == "none":
        raise UserError(
            f"train.parallel = 'none', but torchrun started {distributed.world_size()} processes; "
            "set train.parallel = 'ddp' or 'fsdp', or run without torchrun"
        )
    if settings.parallel == "fsdp" and settings.optimizer.kind == "muon":
        raise UserError(
            "train.optimizer.kind = 'muon' needs whole matrices, which train.parallel = 'fsdp' shards; "
            "use adamw, or train.parallel = 'ddp'"
        )
    if settings.parallel == "fsdp" and torch.__version__ < FSDP_VERSION:  # compared as versions, 2.8 < 2.13
        found = torch.__version__
        raise UserError(f"train.parallel = 'fsdp' needs torch {FSDP_VERSION} or later, and this is {found}; use 'ddp'")
    return "ddp" if settings.parallel == "auto" else settings.parallel


def _apply_fsdp(model: nn.Module) -> list[nn.Parameter]:
    """Shard every block of a stack by itself and the rest together; return the parameters that stay whole.

    Blocks that share their weights (Universal Transformer) are sharded with the rest.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # it is not changed in place
    scalars = [p for p in model.parameters() if p.dim() == 0]
    for module in list(model.modules()):
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.ModuleList):
            parameters = [set(block.parameters()) for block in blocks]
            if sum(map(len, parameters)) == len(set().union(*parameters)):
                for block in blocks:
                    fully_shard(block, ignored_params=set(scalars) & set(block.parameters()) or None)
                    if hasattr(block, "project_source"):  # projects a source to keys and values before the block is called
                        register_fsdp_forward_method(block, "project_source")
    fully_shard(model, ignored_params=set(scalars) or None)
    return scalars


def _copy_to_meta(model: nn.Module) -> nn.Module:
    """Copy a model with its parameters on the meta device; the buffers are shared."""
    buffers = {id(buffer): buffer for buffer in model.buffers()}
    parameters = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, {**buffers, **parameters})


def is_sharded(x: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which this rank has only some rows."""
    return hasattr(x, "to_local")


def to_local(x: Tensor) -> Tensor:
    """Return this rank's rows, in the same memory."""
    return x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor, which every rank has, as another tensor is sharded; nothing is sent."""
    if not is_sharded(like) or not full.dim():
        return full.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        full.to(like.device),
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        src_data_rank=None,
    )


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the norm of the whole gradient, sharded or not; return the norm before clipping."""
    with_grad = [p for p in parameters if p.grad is not None]
    sharded = [p for p in with_grad if is_sharded(p)]
    if not sharded:
        return nn.utils.clip_grad_norm_(with_grad, max_norm)
    parts = [sharded, [p for p in with_grad if not is_sharded(p)]]
    norms = [nn.utils.get_total_norm([p.grad for p in part if p.grad is not None]) for part in parts if part]
    norm: Tensor = torch.stack([n.full_tensor() if is_sharded(n) else n for n in norms]).norm()  # type: ignore[attr-defined]
    for part in parts:
        nn.utils.clip_grads_with_norm_(part, max_norm, norm)
    return norm

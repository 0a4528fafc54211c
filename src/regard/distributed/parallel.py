"""A model trained by several processes: torch's DDP, or FSDP2 (Rajbhandari et al. 2020; Zhao et al. 2023).

An objective gives the sum of its losses, divided by the labels of the whole batch on all ranks. DDP and FSDP take the mean of the
gradients, hence the loss is multiplied by the number of ranks: what is applied is the gradient of one process with all rows.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard import distributed
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.recipe import Training


class Parallelism:
    """A model over all ranks; with one there is nothing to spread. `run` is what is called in the model's place."""

    def __init__(self, model: nn.Module, settings: "Training"):
        self.model, self.kind = model, resolve_parallel(settings)
        self.alone: list[nn.Parameter] = []  # what FSDP cannot shard: single numbers
        if self.kind == "fsdp":
            self.empty = to_meta_parameters(model)
            self.alone = apply_fsdp(model)
        self.run: Any = model
        self.begun = self.kind != "ddp"

    def begin(self, trial: Callable[[nn.Module], None]) -> None:
        """Before the first step. DDP has to know whether there are weights that a loss does not depend on, such as BERT's second
        head without its second task; and it regroups gradients once it has seen them, and adds them up in another order from then
        on: were that after the first step, a resumed run would not have the same bits on three ranks and more."""
        if self.begun:
            return
        self.model.eval()  # no statistics move
        trial(self.run)
        idle = any(p.requires_grad and p.grad is None for p in self.model.parameters())
        self.model.zero_grad()
        self.run = TransparentDDP(self.run, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=idle)
        trial(self.run)
        self.model.zero_grad()
        self.begun = True

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        """Only after the last micro-batch of a step are gradients exchanged."""
        if self.kind == "fsdp":
            self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        with self.run.no_sync() if self.kind == "ddp" and not last else nullcontext():
            yield
        if last and self.alone:
            for p in self.alone:
                if p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= distributed.world_size()

    def level(self, statistics: Iterable[Tensor]) -> None:
        """What is counted while training, as a batch norm does, is that of the first rank's share."""
        for statistic in statistics if self.kind != "none" else ():
            dist.broadcast(statistic, 0)

    def whole(self) -> nn.Module:
        """The model with all weights on this rank, which may read and write with it what it likes, as often as it likes: what is
        called on a sharded one must be called on all ranks alike. A model that is not sharded is whole."""
        if self.kind != "fsdp":
            return self.model
        copied = copy.deepcopy(self.empty, {id(buffer): buffer for buffer in self.empty.buffers()})
        once: dict[int, Tensor] = {}
        for x in self.model.state_dict(keep_vars=True).values():
            once[id(x)] = once.get(id(x), x.detach().full_tensor() if is_sharded(x) else x.detach())
        copied.load_state_dict({name: once[id(x)] for name, x in self.model.state_dict(keep_vars=True).items()}, assign=True)
        return copied.requires_grad_(False)


class TransparentDDP(nn.parallel.DistributedDataParallel):
    """DDP, through which the model's own methods are still found."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)


def resolve_parallel(settings: "Training") -> str:
    """How a recipe is trained by as many processes as there are."""
    if distributed.world_size() == 1:
        return "none"
    if settings.parallel == "none":
        raise UserError(
            f"train.parallel = 'none', but torchrun started {distributed.world_size()} processes; "
            "set train.parallel = 'ddp' or 'fsdp', or leave out torchrun"
        )
    if settings.parallel == "fsdp" and settings.optimizer.kind == "muon":
        raise UserError(
            "train.optimizer.kind = 'muon' works on whole matrices, which train.parallel = 'fsdp' has nowhere; "
            "use adamw, or train.parallel = 'ddp'"
        )
    return "ddp" if settings.parallel == "auto" else settings.parallel


def apply_fsdp(model: nn.Module) -> list[nn.Parameter]:
    """Every block of a stack by itself, and what is left together; the parameters that stay whole. Blocks that share their
    weights (Universal Transformer) are left together too."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # nothing is done to it in place
    alone = [p for p in model.parameters() if p.dim() == 0]
    for module in list(model.modules()):
        blocks = getattr(module, "blocks", None)
        if isinstance(blocks, nn.ModuleList):
            own = [set(block.parameters()) for block in blocks]
            if sum(map(len, own)) == len(set().union(*own)):
                for block in blocks:
                    fully_shard(block, ignored_params=set(alone) & set(block.parameters()) or None)
                    if hasattr(block, "project_source"):  # keys and values of a source are made before the block is called
                        register_fsdp_forward_method(block, "project_source")
    fully_shard(model, ignored_params=set(alone) or None)
    return alone


def to_meta_parameters(model: nn.Module) -> nn.Module:
    """A copy whose parameters have only shapes; its buffers are the same."""
    kept = {id(buffer): buffer for buffer in model.buffers()}
    return copy.deepcopy(
        model, {**kept, **{id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}}
    )


def is_sharded(x: Tensor) -> bool:
    """Whether this rank has only some of its rows (a DTensor)."""
    return hasattr(x, "to_local")


def to_local(x: Tensor) -> Tensor:
    """This rank's rows, in the same memory."""
    return x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as another is; nothing is sent, each rank has it and takes its rows."""
    if not is_sharded(like) or not whole.dim():
        return whole.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        whole.to(like.device),
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        src_data_rank=None,
    )


def clip_grad_norm(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """The norm of the whole gradient; where it is above `most`, the gradient is made as long."""
    learned = [p for p in parameters if p.grad is not None]
    sharded = [p for p in learned if is_sharded(p)]
    if not sharded:
        return nn.utils.clip_grad_norm_(learned, most)
    parts = [sharded, [p for p in learned if not is_sharded(p)]]
    norms = [nn.utils.get_total_norm([p.grad for p in part if p.grad is not None]) for part in parts if part]
    norm = torch.stack([n.full_tensor() if is_sharded(n) else n for n in norms]).norm()  # type: ignore[attr-defined]
    for part in parts:
        nn.utils.clip_grads_with_norm_(part, most, norm)
    return norm

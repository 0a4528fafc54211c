"""Count the memory traffic of one training step of a recipe's shape, operation by operation, without running it.

    python benchmarks/step_bytes.py [--plain] [--tokens 8192] [--length 16] [--speed 3.5]

The model of recipes/multi30k-en-de.toml reads a batch with R-Drop as fake tensors, under autocast to bf16, with the operations of
a GPU: one kernel for dropout, those of the loss and of short attention, and, without `--plain`, what `layers/residual_kernel.py`,
`layers/activation_kernel.py` and `cast_weights` fuse. Each operation reads its inputs and writes its outputs once; views and
allocations are free. `--speed` is the memory speed in TB/s by which bytes become a time. It needs Triton, but no GPU.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard import hardware
from regard.attention.kernels import short_attention
from regard.batches.batch import Batch
from regard.layers import activation_kernel, residual_kernel
from regard.models.transformer import Transformer
from regard.recipe import OptimizerSettings
from regard.tasks import read_recipe
from regard.training import cross_entropy
from regard.training.average import MovingAverage
from regard.training.losses import CrossEntropy
from regard.training.optimizer import CombinedOptimizer
from regard.training.precision import cast_weights

RECIPE = Path(__file__).parent.parent / "recipes" / "multi30k-en-de.toml"
FREE = {"empty", "empty_like", "new_empty", "detach", "t", "view", "_unsafe_view", "transpose", "lift_fresh"}
MATRIX_PRODUCTS = {"mm", "addmm", "bmm"}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.bool: "bool", torch.int64: "int64"}


class ByteCounter(TorchDispatchMode):
    """Count calls and bytes of every operation, by its name and the types that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name in FREE or func.is_view or func.namespace not in ("aten", "regard"):
            return out
        read, written = ([x for x in tree_leaves(part) if isinstance(x, Tensor)] for part in ((args, kwargs), out))
        if not read and not written:
            return out
        written = written or read[: len(args[0])]  # in place, over lists
        if name == "_foreach_copy_":
            read = read[len(args[0]) :]
        if name == "_to_copy":
            name = "cast " + " to ".join(DTYPES.get(x.dtype, str(x.dtype)) for x in (read[0], written[0]))
        elif not name.startswith("_") and name not in MATRIX_PRODUCTS:
            name += f" {DTYPES.get(written[0].dtype, '')}"
        self.count(name, [*read, *written])
        return out

    def count(self, name: str, tensors: Iterable[Any]) -> None:
        self.calls[name] += 1
        self.bytes[name] += sum(x.numel() * x.element_size() for x in tensors if isinstance(x, Tensor))

    def kernel(self, name: str) -> Any:
        """Return a stand-in for a Triton kernel that counts its tensors."""
        launch = lambda *args, **options: self.count(name, tree_leaves(args))  # noqa: E731
        return type("Kernel", (), {"__getitem__": lambda _, grid: launch})()


def count_step(tokens: int, length: int, plain: bool) -> ByteCounter:
    """Return the counts of one step over this many source and target positions, in rows of this length."""
    recipe: Any = read_recipe(RECIPE)
    rows, counter = tokens // length, ByteCounter()
    short_attention.can_run = cross_entropy.can_run = lambda *_: True  # type: ignore[assignment]
    F.dropout = lambda x, p, training=True, inplace=False: torch.ops.aten.native_dropout(x, p, True)[0] if p else x  # type: ignore
    hardware.TRITON_INTERPRETED = not plain  # so that fake tensors, which are on the CPU, take the kernels
    for module, name in ((residual_kernel, "dropout, residual and norm"), (activation_kernel, "activation and dropout")):
        module.forward_kernel = counter.kernel(f"{name}: forward")  # type: ignore[attr-defined]
        module.backward_kernel = counter.kernel(f"{name}: backward")  # type: ignore[attr-defined]
    with FakeTensorMode():
        model = Transformer(recipe.model, recipe.tokens.size, recipe.tokens.size, recipe.train.regularize).train()
        optimizer, average = CombinedOptimizer(model, OptimizerSettings(kind="adamw")), MovingAverage(model, 0.999)
        ids = torch.ones(rows, length, dtype=torch.long)
        batch = Batch({"source": ids, "lengths": ids[:, 0], "target": ids}, ids, np.arange(rows))
        for _ in range(2):
            counter.calls.clear(), counter.bytes.clear()  # of the first step, in which the optimizer allocates its state
            with counter:
                with torch.autocast("cpu", dtype=torch.bfloat16), nullcontext() if plain else cast_weights(model, torch.bfloat16):
                    loss = CrossEntropy(recipe.train.regularize)(model, batch)
                torch.autograd.backward(loss / tokens)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                optimizer.step(skip=torch.zeros(()))
                average.update()
                optimizer.zero_grad()
    return counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--speed", type=float, default=3.5)
    args = parser.parse_args()
    counter = count_step(args.tokens, args.length, args.plain)
    print(f"{'operation':<44} {'calls':>6} {'GB':>8} {'ms':>8}")
    for name, size in [*counter.bytes.most_common(), ("all", counter.bytes.total())]:
        calls = counter.calls[name] or counter.calls.total()
        print(f"{name:<44} {calls:>6} {size / 1e9:>8.3f} {size / args.speed / 1e9:>8.3f}")


if __name__ == "__main__":
    main()

"""Training steps on one GPU in bf16, dropout 0: ours, compiled and recorded, beside those of `transformers`, compiled.

    python benchmarks/gpu_training.py gpt2|base|vit [--rounds 5] [--steps 10] [--alone]

GPT-2 124M over 32 × 1,024 tokens (of 50,304, a multiple of 64, on both sides); the base Transformer over 640 pairs of 40 + 40
tokens (of 32,000); ViT-B/16 over 256 pictures. The same random weights on both sides, AdamW, the norm of the gradient cut to 1.
The first losses have to be within 1%. `--alone` leaves the peer out.
"""

import fcntl
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peers import as_transformers
from torch import Tensor, nn
from turns import Disagreement, asked, report, take_turns

from regard.batches.batch import Batch
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.models.vit import VitClassifier
from regard.plan.step_time import ConstantShapeBatches, NullLog
from regard.recipe import DecoderModel, PositionSettings, Regularization, Training, TransformerModel, VitModel
from regard.training.cuda_graphs import side_stream
from regard.training.loop import Trainer
from regard.training.losses import CrossEntropy

NONE = Regularization(dropout=0.0, label_smoothing=0.0)
CUDA = torch.device("cuda")
TOLERANCE = 0.01


@dataclass
class Work:
    """A model, what it reads in one step, and how a peer reads the same."""

    model: nn.Module
    batch: Batch
    peer: Callable[[], nn.Module]
    asked: Callable[[nn.Module], Tensor]
    """The peer's logits, a row a label."""
    amount: int
    unit: str


def ids(rows: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(4, vocabulary, (rows, length), device=CUDA)


def gpt2(vocabulary: int = 50_304) -> Work:
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), vocabulary, NONE)
    read, said = ids(32, 1024, vocabulary), ids(32, 1024, vocabulary)
    return Work(
        model,
        Batch({"target": read}, said, None),
        lambda: as_transformers(model, "language", vocabulary),  # type: ignore[arg-type]
        lambda peer: peer(input_ids=read).logits,
        said.numel(),
        "tokens a second",
    )


def base(vocabulary: int = 32_000) -> Work:
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, vocabulary, vocabulary, NONE)
    source, read, said = (ids(640, 40, vocabulary) for _ in range(3))
    inputs = {"source": source, "lengths": torch.full((640,), 40, device=CUDA), "target": read}
    return Work(
        model,
        Batch(inputs, said, None),
        lambda: as_transformers(model, "translate", vocabulary),  # type: ignore[arg-type]
        lambda peer: peer(input_ids=source, decoder_input_ids=read).logits,
        said.numel(),
        "target tokens a second",
    )


def vit(labels: int = 1000) -> Work:
    model = VitClassifier(VitModel(kind="vit", preset="vit-base"), (224, 224), labels, NONE)
    pixels, said = torch.randn(256, 3, 224, 224, device=CUDA), torch.randint(labels, (256,), device=CUDA)
    return Work(
        model,
        Batch({"pixels": pixels}, said, None),  # type: ignore[arg-type]
        lambda: as_transformers(model, "classify", labels, num_labels=labels),
        lambda peer: peer(pixel_values=pixels).logits,
        256,
        "pictures a second",
    )


def our_step(work: Work) -> Callable[[], Tensor]:
    settings = Training(compile=True, cuda_graphs=True)
    trainer = Trainer(
        work.model, CrossEntropy(NONE), ConstantShapeBatches(), settings, seed=1, folder=Path(), log=NullLog(), evaluate=None
    )  # type: ignore[arg-type]
    count = torch.tensor(float(work.batch.labels.numel()), device=CUDA)
    work.model.train()
    return lambda: trainer.update([work.batch], count) / count


def their_step(work: Work) -> Callable[[], Tensor]:
    peer = work.peer().to(CUDA).train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-5, fused=True)
    said = work.batch.labels.flatten()

    @torch.compile
    def loss_of() -> Tensor:
        return F.cross_entropy(work.asked(peer).flatten(0, -2).float(), said)

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def several(step: Callable[[], Tensor], number: int) -> Callable[[], Any]:
    def work() -> None:
        for _ in range(number):
            step()
        torch.cuda.synchronize()

    return work


@contextmanager
def one_at_a_time():
    """Others may compile meanwhile, but nobody else is timed."""
    with Path("/tmp/regard-benchmark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    given = asked(__doc__, work=("gpt2", "base", "vit"), rounds=5, steps=10, alone=False)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with side_stream(CUDA):
        with torch.device(CUDA):
            work = {"gpt2": gpt2, "base": base, "vit": vit}[given.work]()
        steps = {} if given.alone else {"transformers compiled": their_step(work)}
        steps["regard"] = our_step(work)
        first = {name: float(step()) for name, step in steps.items()}
        if max(first.values()) > (1 + TOLERANCE) * min(first.values()):
            raise Disagreement(f"first losses {first}: more than 1% apart; nothing is reported")
        for step in steps.values():
            step()
        with one_at_a_time():
            times = take_turns({name: several(step, given.steps) for name, step in steps.items()}, given.rounds)
    report(
        given.work,
        times,
        amount=given.steps * work.amount,
        unit=work.unit,
        against=["transformers compiled"],
        agreement=f"first losses {first}",
        memory=f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
    )


if __name__ == "__main__":
    main()

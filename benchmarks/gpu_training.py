"""Time training steps on one GPU in bf16, dropout 0: regard in CUDA graphs, compiled and not, and its peers, compiled.

    python benchmarks/gpu_training.py gpt2|base|vit [--rounds 5] [--steps 10] [--alone] [--profile]

GPT-2 124M over 32 × 1,024 tokens (vocabulary 50,304, a multiple of 64, on all sides); the base Transformer over 640 pairs of
40 + 40 tokens (vocabulary 32,000); ViT-B/16 over 256 images. The peers are `transformers`, with the same random weights, and
plain PyTorch models of the same shape: GPT-2 as nanoGPT has it, with biases and without, and `nn.Transformer`. All have AdamW
and gradients clipped to norm 1. The first losses must agree within 1%. `--alone` leaves the peers out; `--profile` prints the
kernels of one step of each.
"""

import copy
import fcntl
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import MismatchError, parse_args, print_kernels, report, time_alternating
from peers import PlainGpt, PlainTransformer, to_transformers
from torch import Tensor, nn

from regard.batches.batch import Batch
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.models.vit import VitClassifier
from regard.plan.step_time import ConstantShapeBatches, NullLog
from regard.recipe import DecoderModel, PositionSettings, Regularization, Training, TransformerModel, VitModel
from regard.training.loop import TrainingLoop
from regard.training.losses import CrossEntropy

NO_REGULARIZATION = Regularization(dropout=0.0, label_smoothing=0.0)
CUDA = torch.device("cuda")
TOLERANCE = 0.01
OURS = {"regard, not compiled": False, "regard, compiled": True}
"""Our engines, and whether they are compiled."""


@dataclass
class Work:
    """A model, the batch of one step, and the same for a peer."""

    model: nn.Module
    batch: Batch
    peers: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]]
    """How to build each peer, and to get its logits, one row per label."""
    amount: int
    unit: str


def ids(rows: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(4, vocabulary, (rows, length), device=CUDA)


def gpt2(vocabulary: int = 50_304) -> Work:
    model = Gpt(DecoderModel(kind="transformer", preset="gpt2"), vocabulary, NO_REGULARIZATION)
    tokens, labels = ids(32, 1024, vocabulary), ids(32, 1024, vocabulary)
    return Work(
        model,
        Batch({"target": tokens}, labels, None),
        {
            "transformers": (lambda: to_transformers(model, "language", vocabulary), lambda peer: peer(input_ids=tokens).logits),
            "nanoGPT": (lambda: PlainGpt(vocabulary, 1024), lambda peer: peer(tokens)),
            "nanoGPT without biases": (lambda: PlainGpt(vocabulary, 1024, bias=False), lambda peer: peer(tokens)),
        },
        labels.numel(),
        "tokens per second",
    )


def base(vocabulary: int = 32_000) -> Work:
    settings = TransformerModel(preset="base", output_bias=True, max_length=128, positions=PositionSettings(sines_first=True))
    model = Transformer(settings, vocabulary, vocabulary, NO_REGULARIZATION)
    source, target, labels = (ids(640, 40, vocabulary) for _ in range(3))
    inputs = {"source": source, "lengths": torch.full((640,), 40, device=CUDA), "target": target}
    return Work(
        model,
        Batch(inputs, labels, None),
        {
            "transformers": (
                lambda: to_transformers(model, "translate", vocabulary),
                lambda peer: peer(input_ids=source, decoder_input_ids=target).logits,
            ),
            "nn.Transformer": (lambda: PlainTransformer(vocabulary, 40), lambda peer: peer(source, target)),
        },
        labels.numel(),
        "target tokens per second",
    )


def vit(classes: int = 1000) -> Work:
    model = VitClassifier(VitModel(kind="vit", preset="vit-base"), (224, 224), classes, NO_REGULARIZATION)
    pixels, labels = torch.randn(256, 3, 224, 224, device=CUDA), torch.randint(classes, (256,), device=CUDA)
    return Work(
        model,
        Batch({"pixels": pixels}, labels, None),  # type: ignore[arg-type]
        {
            "transformers": (
                lambda: to_transformers(model, "classify", classes, num_labels=classes),
                lambda peer: peer(pixel_values=pixels).logits,
            )
        },
        256,
        "images per second",
    )


def our_step(work: Work, compiled: bool) -> Callable[[], Tensor]:
    settings, model = Training(compile=compiled, cuda_graphs=True), copy.deepcopy(work.model)
    trainer = TrainingLoop(
        model,
        CrossEntropy(NO_REGULARIZATION),
        ConstantShapeBatches(work.batch),
        settings,
        seed=1,
        folder=Path(),
        log=NullLog(),
        evaluate=None,
    )  # type: ignore[arg-type]
    count = torch.tensor(float(work.batch.labels.numel()), device=CUDA)
    model.train()
    return lambda: trainer.update([work.batch], count) / count


def peer_step(work: Work, name: str) -> Callable[[], Tensor]:
    build, logits = work.peers[name]
    peer = build().to(CUDA).train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-5, fused=True)
    labels = work.batch.labels.flatten()

    @torch.compile
    def peer_loss() -> Tensor:
        return F.cross_entropy(logits(peer).flatten(0, -2).float(), labels)

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = peer_loss()
        loss.backward()
        nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def repeat(step: Callable[[], Tensor], number: int) -> Callable[[], Any]:
    def work() -> None:
        for _ in range(number):
            step()
        torch.cuda.synchronize()

    return work


@contextmanager
def exclusive_gpu():
    """Hold a lock while timing: other benchmarks may compile meanwhile."""
    with Path("/tmp/regard-benchmark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    args = parse_args(__doc__, work=("gpt2", "base", "vit"), rounds=5, steps=10, alone=False, profile=False)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with torch.device(CUDA):
        work = {"gpt2": gpt2, "base": base, "vit": vit}[args.work]()
    steps = {} if args.alone else {name: peer_step(work, name) for name in work.peers}
    steps |= {name: our_step(work, compiled) for name, compiled in OURS.items()}
    first_losses = {name: float(step()) for name, step in steps.items()}
    if max(first_losses.values()) > (1 + TOLERANCE) * min(first_losses.values()):
        raise MismatchError(f"first losses {first_losses}: more than 1% difference; no result")
    for step in steps.values():
        step()
    with exclusive_gpu():
        times = time_alternating({name: repeat(step, args.steps) for name, step in steps.items()}, args.rounds)
        if args.profile:
            for name, step in steps.items():
                print(f"one step of {name}:")
                print_kernels(repeat(step, 1))
    report(
        args.work,
        times,
        amount=args.steps * work.amount,
        unit=work.unit,
        against=[name for name in steps if name != "regard, compiled"],
        agreement=f"first losses {first_losses}",
        memory=f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
    )


if __name__ == "__main__":
    main()

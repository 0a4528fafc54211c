"""Measure what `train.deterministic = true` costs, and whether it is needed for the same bits.

    python benchmarks/deterministic.py [translation|reviews|language|gpt2|vit …] [--rounds 6] [--steps 20] [--compile] [--tiny]

Each setting trains in two processes with the same seed. All four start together, then they take turns, so that other load on the
machine affects all of them alike. A work is a recipe on random examples: translation as in recipes/multi30k-en-de.toml (8,192
tokens a step in four batch shapes, R-Drop), reviews of up to 600 tokens as in recipes/imdb-transformer.toml, language as in
recipes/ptb-gpt.toml, GPT-2 124M over 8 × 1,024 tokens, ViT-S/16 over 256 images. On a GPU the steps are
captured as CUDA graphs. Printed for each work: milliseconds a step of both settings, the median of the rounds' ratios with its
quartiles, and for each setting whether both processes end with the same bits. `--tiny` is for trying it out on a CPU.
"""

import argparse
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
import torch
from harness import quartiles
from torch import Tensor, nn

from regard.batches.batch import Batch
from regard.hardware import hardware
from regard.models.bert import EncoderClassifier
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.models.vit import VitClassifier
from regard.plan.step_time import NullLog
from regard.recipe import DecoderModel, EncoderModel, PositionSettings, Regularization, Training, TransformerModel, VitModel
from regard.training.loop import TrainingLoop
from regard.training.losses import CrossEntropy
from regard.training.precision import deterministic_algorithms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARMUP_STEPS = 4
"""Of each batch shape: some eager steps, and the capture."""


@dataclass
class Work:
    """A model, its batches and its regularisation."""

    model: nn.Module
    batches: list[Batch]
    regularize: Regularization


def translation(tiny: bool) -> Work:
    vocabulary, tokens, lengths = (50, 64, (8, 16)) if tiny else (8000, 8192, (8, 16, 24, 32))
    shape = {"width": 16, "heads": 2, "feed_forward": 32} if tiny else {"width": 512, "heads": 8, "feed_forward": 2048}
    settings = TransformerModel(preset="tiny" if tiny else "small", **shape, norm_first=True, max_length=64)
    regularize = Regularization(dropout=0.3, label_smoothing=0.1, r_drop=5.0)
    batches = []
    for length in lengths:
        source, target, labels = (ids(tokens // length, length, vocabulary) for _ in range(3))
        row_lengths = torch.randint(length // 2, length + 1, (len(source),))
        batches.append(make_batch({"source": source, "lengths": row_lengths, "target": target}, labels))
    return Work(Transformer(settings, vocabulary, vocabulary, regularize), batches, regularize)


def reviews(tiny: bool) -> Work:
    vocabulary, tokens, lengths = (50, 64, (8, 16)) if tiny else (20_000, 16_384, (152, 304, 448, 600))
    shape = {"width": 16, "heads": 2, "feed_forward": 32} if tiny else {"width": 512, "heads": 8, "feed_forward": 512}
    settings = EncoderModel(
        kind="transformer", layers=1, **shape, max_length=600, convolution=5, pool="max", positions=PositionSettings(kind="alibi")
    )
    regularize = Regularization(dropout=0.4, embedding_dropout=0.5, label_smoothing=0.1, r_drop=1.0)
    batches = []
    for length in lengths:
        source = ids(tokens // length, length, vocabulary)
        row_lengths = torch.randint(length // 2, length + 1, (len(source),))
        batches.append(make_batch({"source": source, "lengths": row_lengths}, torch.randint(2, (len(source),))))
    return Work(EncoderClassifier(settings, vocabulary, 2, regularize), batches, regularize)


def language(tiny: bool) -> Work:
    vocabulary, rows, length = (50, 2, 16) if tiny else (10_100, 32, 256)
    shape = {"layers": 1, "width": 12, "heads": 2} if tiny else {"layers": 8, "width": 384, "heads": 6, "feed_forward": 1536}
    regularize = Regularization(dropout=0.4, attention_dropout=0.2, activation_dropout=0.2, label_smoothing=0.0, r_drop=1.0)
    settings = DecoderModel(kind="transformer", **shape, max_length=256, bias=False, positions=PositionSettings(kind="rotary"))
    batch = make_batch({"target": ids(rows, length, vocabulary)}, ids(rows, length, vocabulary))
    return Work(Gpt(settings, vocabulary, regularize), [batch], regularize)


def gpt2(tiny: bool) -> Work:
    vocabulary, rows, length = (50, 2, 16) if tiny else (50_304, 8, 1024)
    regularize = Regularization(dropout=0.1, label_smoothing=0.0)
    settings = DecoderModel(kind="transformer", preset="tiny" if tiny else "gpt2")
    batch = make_batch({"target": ids(rows, length, vocabulary)}, ids(rows, length, vocabulary))
    return Work(Gpt(settings, vocabulary, regularize), [batch], regularize)


def vit(tiny: bool) -> Work:
    classes, rows, size = (5, 4, 32) if tiny else (1000, 256, 224)
    regularize = Regularization(dropout=0.1, label_smoothing=0.1)
    settings = VitModel(kind="vit", preset="vit-small", **({"layers": 1, "width": 12, "feed_forward": 24} if tiny else {}))
    batch = make_batch({"pixels": torch.randn(rows, 3, size, size)}, torch.randint(classes, (rows,)))
    return Work(VitClassifier(settings, (size, size), classes, regularize), [batch], regularize)


class FixedBatches:
    """Stands in for the batches of an epoch."""

    def __init__(self, batches: list[Batch]):
        self.batches = batches

    def has_uniform_length(self) -> bool:
        return len(self.batches) == 1

    def typical_batch(self) -> Batch:
        return self.batches[-1]


WORKS: dict[str, Callable[[bool], Work]] = {
    "translation": translation,
    "reviews": reviews,
    "language": language,
    "gpt2": gpt2,
    "vit": vit,
}


def ids(rows: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(4, vocabulary, (rows, length))


def make_batch(inputs: dict[str, Tensor], labels: Tensor) -> Batch:
    return Batch(inputs, labels, np.arange(len(labels)))


def train_on_request(name: str, deterministic: bool, compiled: bool, tiny: bool, pipe: Connection) -> None:
    """Train as many steps as the other end of a pipe asks for; answer with their seconds, and for 0 steps with a digest."""
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    with deterministic_algorithms(deterministic):
        work = WORKS[name](tiny)
        loop = TrainingLoop(
            work.model.to(DEVICE),
            CrossEntropy(work.regularize),
            FixedBatches(work.batches),  # type: ignore[arg-type]
            Training(compile=compiled, cuda_graphs=True),
            seed=1,
            folder=Path(),
            log=NullLog(),  # type: ignore[arg-type]
            evaluate=lambda _: {},
        )
        while (steps := pipe.recv()) is not None:
            start = time.perf_counter()
            for _ in range(steps):
                loop.step([(0, 0, work.batches[loop.state.step % len(work.batches)])])
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            pipe.send(time.perf_counter() - start if steps else digest(work.model))


def digest(model: nn.Module) -> str:
    """Return a hash of every bit of a model's weights."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


class Trainings:
    """Two trainings for each setting, all in processes of their own."""

    def __init__(self, name: str, compiled: bool, tiny: bool):
        context = multiprocessing.get_context("spawn")
        self.pipes: dict[bool, list[Connection]] = {False: [], True: []}
        self.processes = []
        for deterministic in (False, True) * 2:
            ours, theirs = context.Pipe()
            self.pipes[deterministic].append(ours)
            args = (name, deterministic, compiled, tiny, theirs)
            self.processes.append(context.Process(target=train_on_request, args=args, daemon=True))
            self.processes[-1].start()
            theirs.close()  # if the process fails, reading from it fails too

    def warm_up(self, steps: int) -> None:
        pipes = [pipe for pair in self.pipes.values() for pipe in pair]
        for pipe in pipes:
            pipe.send(steps)
        for pipe in pipes:
            pipe.recv()

    def round(self, number: int, steps: int) -> dict[bool, float]:
        """Let each process train once; return the seconds of both processes of a setting."""
        seconds = {False: 0.0, True: 0.0}
        for deterministic in (False, True, True, False) if number % 2 else (True, False, False, True):
            pair = self.pipes[deterministic]
            pair[0].send(steps)
            seconds[deterministic] += pair[0].recv()
            pair.reverse()
        return seconds

    def is_repeatable(self, deterministic: bool) -> bool:
        """Return whether both trainings of a setting have the same weights, to the bit."""
        for pipe in self.pipes[deterministic]:
            pipe.send(0)
        return len({pipe.recv() for pipe in self.pipes[deterministic]}) == 1


@contextmanager
def trainings(name: str, compiled: bool, tiny: bool) -> Iterator[Trainings]:
    found = Trainings(name, compiled, tiny)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}; default: all")
    parser.add_argument("--rounds", type=int, default=6, help="default 6")
    parser.add_argument("--steps", type=int, default=20, help="of each process in a round; default 20")
    parser.add_argument("--compile", action="store_true", help="compile the steps (minutes for each work)")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand weights")
    args = parser.parse_args()
    if unknown := set(args.works) - WORKS.keys():
        parser.error(f"no work {min(unknown)!r}; one of {', '.join(WORKS)}")
    for name in args.works or WORKS:
        start = time.perf_counter()
        with trainings(name, args.compile, args.tiny) as them:
            them.warm_up(WARMUP_STEPS * 4)
            rounds = [them.round(number, args.steps) for number in range(args.rounds)]
            same_bits = {deterministic: them.is_repeatable(deterministic) for deterministic in (False, True)}
        ratios = [seconds[True] / seconds[False] for seconds in rounds]
        row = {
            "work": name,
            "device": hardware(DEVICE),
            "compiled": args.compile,
            **{
                f"ms a step, deterministic = {str(key).lower()}": round(500 * median(s[key] for s in rounds) / args.steps, 2)
                for key in (False, True)
            },
            "ratio": round(median(ratios), 3),
            "ratio, quartiles": quartiles(ratios, 3),
            **{f"same bits, deterministic = {str(key).lower()}": same for key, same in same_bits.items()},
            "steps": WARMUP_STEPS * 4 + args.rounds * args.steps,
            "seconds": round(time.perf_counter() - start),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

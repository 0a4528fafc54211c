"""The training loop: learning rate, micro-steps, clip, step, log, evaluate, save."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from regard import ranks
from regard.batches.batch import Batch
from regard.batches.batches import Batches
from regard.errors import Interrupted, Mistake
from regard.recipe import Training
from regard.training import checkpoint, shards
from regard.training.average import MovingAverage, mean_weights
from regard.training.distributed import Spread, clip_norm
from regard.training.log import Log
from regard.training.optimizer import Optimizer
from regard.training.schedule import rate

Objective = Callable[[nn.Module, Batch], Tensor]
Evaluate = Callable[[nn.Module], dict[str, float]]
NOT_FINITE_IN_A_ROW = 25
BETTER = ("valid_bleu", "valid_accuracy", "valid_spearman", "valid_f1", "valid_mean", "valid_recall")
"""What the best weights are chosen by, where it is measured; else by the loss."""


@dataclass
class Progress:
    """Where a run stands; with the weights and the optimiser's state, all that resuming needs.

    Randomness needs no state: every step seeds the generators from (seed, step, rank).
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    best_step: int = 0
    not_better: int = 0
    ema_step: int = 0
    seconds: float = 0.0


class Trainer:
    """A model on its way through a recipe's `[train]`; its checkpoints lie in `folder`. Every rank has one; all go in step."""

    def __init__(self, model: nn.Module, objective: Objective, batches: Batches, settings: Training, *, seed: int, folder: Path,
                 log: Log, evaluate: Evaluate):
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.seed, self.folder, self.log, self.evaluate = seed, folder, log, evaluate
        self.device = next(model.parameters()).device
        self.spread = Spread(model, settings)
        self.optimizer = Optimizer(model, settings.optimizer)
        self.ema = MovingAverage(model, settings.ema) if settings.ema else None
        self.progress = Progress()
        self.saved_at = -1
        self.not_finite = torch.zeros((), device=self.device)                     # skipped steps, counted on the device
        self.in_a_row = torch.zeros((), device=self.device)

    def train(self) -> dict[str, Tensor]:
        """Go on to the last step; the weights to keep."""
        steps = self.settings.steps
        with catch_signals() as caught:
            self.warm_up()
            ahead = self.step_batches()
            meter = Meter(self.device)
            while self.progress.step < steps and not self.patience_is_over():
                loss, count = self.step(next(ahead))
                meter.add(loss, count)
                step = self.progress.step
                if step % self.settings.log_every == 0 or step == steps:
                    self.report(meter)
                if step % self.settings.evaluate_every == 0 or step == steps:
                    self.judge(meter)
                signalled = ranks.highest(caught[0] if caught else 0)             # on any one rank
                if step % self.settings.save_every == 0 or step == steps or signalled:
                    self.save()
                if signalled:
                    raise Interrupted(signalled)
        return self.final_weights() if ranks.first() else {}

    def warm_up(self) -> None:
        """DDP regroups the gradients after it has seen them once, and adds them up in another order from then on: let it do so
        before the first step, or a resumed run would not have the same bits on three ranks and more."""
        if self.spread.kind == "ddp":
            self.model.eval()                         # no statistics move
            with self.spread.micro_step(last=True), self.autocast():
                (self.objective(self.spread.run, self.batches.batch(0, 0).to(self.device)) * 0).backward()
            self.optimizer.zero_grad()

    def step_batches(self) -> Iterator[list[tuple[int, int, Batch]]]:
        """The micro-batches of each step, from where the run stands."""
        run = self.batches.run(self.progress.epoch, self.progress.index, workers=self.settings.workers)
        while True:
            yield [next(run) for _ in range(self.settings.gradient_accumulation_steps)]

    def step(self, micro_batches: list[tuple[int, int, Batch]]) -> tuple[Tensor, int]:
        """One update; the loss sum and the number of labels. Nothing here waits for the device."""
        progress, settings = self.progress, self.settings
        progress.step += 1
        torch.manual_seed(hash_step(self.seed, progress.step, ranks.rank()))
        self.optimizer.set_rate(rate(progress.step, settings.steps, settings.schedule))
        self.model.train()
        if hasattr(self.model, "begin_step"):         # a temperature that falls, a weight that rises
            self.model.begin_step(progress.step)  # type: ignore[operator]
        count = ranks.total(sum(batch.label_count() for _, _, batch in micro_batches))
        total = torch.zeros((), device=self.device)
        for number, (_, _, batch) in enumerate(micro_batches, start=1):
            with self.spread.micro_step(last=number == len(micro_batches)):
                with self.autocast():
                    loss = self.objective(self.spread.run, batch.to(self.device)) * batch.counts
                (loss * ranks.count() / count).backward()
            total += loss.detach()
        total = ranks.total(total)
        norm = clip_norm(self.model.parameters(), settings.clip_norm or float("inf"))
        bad = (~(norm.isfinite() & total.isfinite())).float()
        self.not_finite += bad
        self.in_a_row = (self.in_a_row + bad) * bad
        self.optimizer.step(skip=bad)
        self.optimizer.zero_grad()
        self.spread.level()
        if self.ema is not None:
            self.ema.update()
        epoch, index, _ = micro_batches[-1]
        progress.epoch, progress.index = epoch, index + 1
        return torch.where(bad.bool(), 0.0, total), count

    def autocast(self):
        precision = self.settings.precision
        bf16 = precision == "bf16" or (precision == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if bf16 else nullcontext()

    def report(self, meter: "Meter") -> None:
        loss, speed, seconds = meter.read()
        self.progress.seconds += seconds
        settings, skipped = self.settings, int(self.not_finite.item())
        learning_rate = settings.optimizer.learning_rate * rate(self.progress.step, settings.steps, settings.schedule)
        self.log.training(self.progress.step, loss, learning_rate, speed, epoch=self.progress.epoch,
                          **({"not_finite": skipped} if skipped else {}))
        if self.in_a_row.item() >= min(NOT_FINITE_IN_A_ROW, settings.log_every):
            raise Mistake(f"the loss or gradient was not finite {int(self.in_a_row.item())} times in a row "
                          f"up to step {self.progress.step} (epoch {self.progress.epoch}, batch {self.progress.index - 1}); "
                          "none of it was applied: lower train.optimizer.learning_rate "
                          "or use train.precision = 'fp32', then resume")

    def judge(self, meter: "Meter") -> None:
        """Evaluate, with the averaged weights if there are any, and remember the best."""
        paused = time.perf_counter()
        if self.ema is not None:
            self.ema.swap()
        with torch.no_grad(), self.autocast():
            scores = ranks.told({name: float(score) for name, score in self.evaluate(self.spread.whole().eval()).items()})
        if self.ema is not None:
            self.ema.swap()
        goodness = next((scores[name] for name in BETTER if name in scores), -scores["valid_loss"])
        progress = self.progress
        better = progress.best is None or goodness > progress.best
        progress.not_better = 0 if better else progress.not_better + 1
        if better:
            progress.best, progress.best_step = goodness, progress.step
            self.save()
        self.log.evaluation(progress.step, scores, better)
        meter.pause(time.perf_counter() - paused)

    def patience_is_over(self) -> bool:
        return bool(self.settings.patience) and self.progress.not_better >= self.settings.patience

    def save(self) -> None:
        if self.saved_at == self.progress.step:
            return
        tensors = {"model": checkpoint.weights_of(self.model), "optimizer": self.optimizer.tensors()}
        if self.ema is not None:
            tensors["ema"] = self.ema.tensors()
            self.progress.ema_step = self.ema.step
        shards.save(self.folder, self.progress.step, checkpoint.Checkpoint(tensors, asdict(self.progress)))
        if ranks.first():
            checkpoint.retain(self.folder, max(self.settings.keep, self.settings.average), [self.progress.best_step])
        self.saved_at = self.progress.step

    def resume(self, path: Path) -> None:
        found = checkpoint.load(path)
        with torch.no_grad():
            checkpoint.load_weights(self.model, found.tensors["model"], str(path))
            if self.ema is not None:
                self.ema.load(found.tensors["ema"], found.state["ema_step"])
        self.optimizer.load(found.tensors["optimizer"])
        self.progress = Progress(**found.state)
        self.saved_at = self.progress.step

    def final_weights(self) -> dict[str, Tensor]:
        """The mean of the last checkpoints if asked for, else the best evaluated weights."""
        if self.settings.average:
            reached = [path for path in checkpoint.all_steps(self.folder) if int(path.name[5:]) <= self.progress.step]
            chosen = reached[-self.settings.average:]
        else:
            chosen = [self.folder / f"step-{self.progress.best_step:08d}"]
        found = [checkpoint.load(path).tensors for path in chosen]
        return mean_weights([{**tensors["model"], **tensors.get("ema", {})} for tensors in found])


class Meter:
    """Loss and speed since the last reading; the device is only asked when it is read."""

    def __init__(self, device: torch.device):
        self.device = device
        self.loss, self.count, self.since = torch.zeros((), device=device), 0, time.perf_counter()

    def add(self, loss: Tensor, count: int) -> None:
        self.loss += loss
        self.count += count

    def pause(self, seconds: float) -> None:
        self.since += seconds

    def read(self) -> tuple[float, float, float]:
        loss = self.loss.item() / max(1, self.count)
        seconds = time.perf_counter() - self.since
        speed = self.count / max(seconds, 1e-9)
        self.loss.zero_()
        self.count, self.since = 0, time.perf_counter()
        return loss, speed, seconds


def hash_step(seed: int, step: int, rank: int = 0) -> int:
    return (seed * 1_000_003 + step + rank * 0x9E37_79B9_7F4A_7C15) & 0x7FFF_FFFF_FFFF_FFFF


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGUSR1 instead of dying of them; a second one leaves at once."""
    caught: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if caught:
            raise SystemExit(128 + number)
        caught.append(number)

    names = [name for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
    try:
        before = {getattr(signal, name): signal.signal(getattr(signal, name), handle) for name in names}
    except ValueError:                                # not in the main thread: whoever started us handles signals
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The training loop: learning rate, micro-steps, clip, step, log, evaluate, save."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.batches.batch import Batch
from regard.batches.batches import Batches
from regard.errors import Interrupted, Mistake
from regard.recipe import Training
from regard.training import checkpoint
from regard.training.average import MovingAverage, mean_weights
from regard.training.log import Log
from regard.training.optimizer import Optimizer
from regard.training.precision import choose_precision
from regard.training.schedule import rate

Objective = Callable[[nn.Module, Batch], Tensor]
Evaluate = Callable[[nn.Module], dict[str, float]]
NOT_FINITE_IN_A_ROW = 25
BETTER = ("valid_bleu", "valid_accuracy", "valid_spearman", "valid_f1", "valid_mean", "valid_recall")
"""What the best weights are chosen by, where it is measured; else by the loss."""


@dataclass
class Progress:
    """Where a run stands; with the weights and the optimiser's state, all that resuming needs.

    Randomness needs no state: every step seeds the generators from (seed, step).
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
    """A model on its way through a recipe's `[train]`; its checkpoints lie in `folder`."""

    def __init__(self, model: nn.Module, objective: Objective, batches: Batches, settings: Training, *, seed: int, folder: Path,
                 log: Log, evaluate: Evaluate):
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.seed, self.folder, self.log, self.evaluate = seed, folder, log, evaluate
        self.device = next(model.parameters()).device
        self.precision = choose_precision(settings.precision, model, self.device)
        self.optimizer = Optimizer(model, settings.optimizer)
        self.ema = MovingAverage(model, settings.ema) if settings.ema else None
        self.progress = Progress()
        self.saved_at = -1
        self.run_model: Any = torch.compile(model, dynamic=True) if settings.compile else model
        self.not_finite = torch.zeros((), device=self.device)                     # skipped steps, counted on the device
        self.in_a_row = torch.zeros((), device=self.device)

    def train(self) -> dict[str, Tensor]:
        """Go on to the last step; the weights to keep."""
        steps = self.settings.steps
        with catch_signals() as caught:
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
                if step % self.settings.save_every == 0 or step == steps or caught:
                    self.save()
                if caught:
                    raise Interrupted(caught[0])
        return self.final_weights()

    def step_batches(self) -> Iterator[list[tuple[int, int, Batch]]]:
        """The micro-batches of each step, from where the run stands."""
        run = self.batches.run(self.progress.epoch, self.progress.index, workers=self.settings.workers)
        while True:
            yield [next(run) for _ in range(self.settings.gradient_accumulation_steps)]

    def step(self, micro_batches: list[tuple[int, int, Batch]]) -> tuple[Tensor, int]:
        """One update; the loss sum and the number of labels. Nothing here waits for the device."""
        progress, settings = self.progress, self.settings
        progress.step += 1
        torch.manual_seed(hash_step(self.seed, progress.step))
        self.optimizer.set_rate(rate(progress.step, settings.steps, settings.schedule))
        self.model.train()
        if hasattr(self.model, "begin_step"):         # a temperature that falls, a weight that rises
            self.model.begin_step(progress.step)  # type: ignore[operator]
        count = sum(batch.label_count() for _, _, batch in micro_batches)
        total = torch.zeros((), device=self.device)
        for _, _, batch in micro_batches:
            with self.autocast():
                loss = self.objective(self.run_model, batch.to(self.device))
            (loss / count).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm or float("inf"))
        bad = (~(norm.isfinite() & total.isfinite())).float()
        self.not_finite += bad
        self.in_a_row = (self.in_a_row + bad) * bad
        self.optimizer.step(skip=bad)
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()
        epoch, index, _ = micro_batches[-1]
        progress.epoch, progress.index = epoch, index + 1
        return torch.where(bad.bool(), 0.0, total), count

    def autocast(self):
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.precision == "bf16" else nullcontext()

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
        self.model.eval()
        with torch.no_grad(), self.autocast():
            scores = self.evaluate(self.model)
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
        checkpoint.save(self.folder, self.progress.step, checkpoint.Checkpoint(tensors, asdict(self.progress)))
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


def hash_step(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step) & 0x7FFF_FFFF_FFFF_FFFF


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

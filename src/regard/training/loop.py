"""The training loop: learning rate, micro-steps, clip, step, log, evaluate, save."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from regard import distributed
from regard.batches.batch import Batch, to_device
from regard.batches.batches import Batches
from regard.distributed import sharded_checkpoint
from regard.distributed.parallel import Parallelism, clip_grad_norm
from regard.errors import Interrupted, UserError
from regard.recipe import Training
from regard.training import checkpoint
from regard.training.average import MovingAverage, average_weights
from regard.training.compile import CompiledObjective, Objective
from regard.training.cuda_graphs import CudaGraphedStep, StepFunction
from regard.training.log import Log
from regard.training.optimizer import CombinedOptimizer
from regard.training.precision import choose_precision
from regard.training.schedule import learning_rate_factor
from regard.training.signals import SignalHandler, catch_signals

Evaluate = Callable[[nn.Module], dict[str, float]]
MAX_NONFINITE_STEPS = 25


@dataclass
class TrainState:
    """Where a run stands; with the weights and the optimiser's state, all that resuming needs.

    Randomness needs no state: every step seeds the generators from (seed, step, rank).
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    best_step: int = 0
    not_better: int = 0
    evaluated: int = 0
    """The last step that was evaluated: an evaluation that a signal broke off is made up for."""
    not_finite: int = 0
    in_a_row: int = 0
    ema_step: int = 0
    seconds: float = 0.0


class Trainer:
    """A model on its way through a recipe's `[train]`; its checkpoints lie in `folder`. Every rank has one; all go in step."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        settings: Training,
        *,
        seed: int,
        folder: Path,
        log: Log,
        evaluate: Evaluate,
        metrics: Sequence[str] = (),
    ):
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.seed, self.folder, self.log, self.evaluate, self.metrics = seed, folder, log, evaluate, metrics
        self.device = next(model.parameters()).device
        self.precision = choose_precision(settings.precision, model, self.device)
        self.spread = Parallelism(model, settings)
        self.loss: Objective = CompiledObjective(objective, batches.alike()) if settings.compile else objective
        self.optimizer = CombinedOptimizer(model, settings.optimizer)
        self.ema = MovingAverage(model, settings.ema_decay) if settings.ema_decay else None
        self.state = TrainState()
        self.saved_at = -1
        self.resumed_from = 0
        self.caught = SignalHandler()
        self.not_finite = torch.zeros((), device=self.device)  # skipped steps, counted on the device
        self.in_a_row = torch.zeros((), device=self.device)
        parameters = dict(model.named_parameters())
        self.statistics = [b for name, b in checkpoint.named_weights(model).items() if name not in parameters]  # of a batch norm
        self.work: StepFunction = CudaGraphedStep(self.update) if self.is_recorded() else self.update

    def train(self) -> dict[str, Tensor]:
        """Go on to the last step; the weights to keep."""
        with catch_signals() as self.caught, side_stream(self.device):
            try:
                self.advance()
            except Interrupted:
                self.save()
                raise
        torch.manual_seed(step_seed(self.seed, self.state.step + 1))  # what follows is the same after a resume
        return self.final_weights() if distributed.is_main() else {}

    def trial(self, run: nn.Module) -> None:
        """A backward pass that leads nowhere, for DDP to see what it has to exchange."""
        with self.autocast():
            loss = self.objective(run, self.batches.batch(0, 0).to(self.device))
        (loss * 0).backward()

    def advance(self) -> None:
        settings, progress = self.settings, self.state
        meter = Meter(self.device)
        if progress.step and self.is_due(settings.evaluate_every) and progress.evaluated != progress.step:
            self.judge(meter)
            self.saved_at = -1  # its checkpoint does not know of it
            self.save()
        ahead = self.step_batches()
        while progress.step < settings.steps and not self.patience_is_over():
            with meter.waiting():
                read = next(ahead)
            meter.add(*self.step(read))
            if self.is_due(settings.log_every):
                self.report(meter)
            if self.is_due(min(MAX_NONFINITE_STEPS, settings.log_every)):
                self.require_finite()
            if self.is_due(settings.evaluate_every):
                self.judge(meter)
            if self.is_due(settings.save_every):
                self.save()
            self.leave_if_asked()
        self.leave_if_asked()

    def is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.settings.steps

    def leave_if_asked(self) -> None:
        if number := distributed.all_reduce_max(self.caught.number or 0):  # on any one rank
            raise Interrupted(number)

    def step_batches(self) -> Iterator[list[tuple[int, int, Batch]]]:
        """The micro-batches of each step, from where the run stands."""
        run = self.batches.run(self.state.epoch, self.state.index, workers=self.settings.workers)
        while True:
            yield [next(run) for _ in range(self.settings.gradient_accumulation_steps)]

    def step(self, micro_batches: list[tuple[int, int, Batch]]) -> tuple[Tensor, int]:
        """One update; the loss sum and the number of labels. Nothing here waits for the device."""
        progress, settings = self.state, self.settings
        self.spread.begin(self.trial)
        progress.step += 1
        torch.manual_seed(step_seed(self.seed, progress.step, distributed.rank()))
        self.optimizer.set_rate(learning_rate_factor(progress.step, settings.steps, settings.schedule))
        self.model.train()
        if hasattr(self.model, "begin_step"):  # a temperature that falls, a weight that rises
            self.model.begin_step(progress.step)  # type: ignore[operator]
        count = max(
            1, distributed.all_reduce_sum(sum(batch.label_count() for _, _, batch in micro_batches))
        )  # no word may have been masked
        total = self.work(
            [batch.to(self.device) for _, _, batch in micro_batches], to_device(torch.tensor(float(count)), self.device)
        )
        self.spread.level(self.statistics)
        if self.ema is not None:
            self.ema.update()
        epoch, index, _ = micro_batches[-1]
        progress.epoch, progress.index = epoch, index + 1
        return total, count

    def update(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        """What a step computes: gradients of the loss over all labels, applied if they are finite; the loss sum. It asks nothing
        of the device and decides nothing on the host."""
        total = torch.zeros((), device=self.device)
        kept = [statistic.clone() for statistic in self.statistics]
        for number, batch in enumerate(batches, start=1):
            with self.spread.micro_step(last=number == len(batches)):
                with self.autocast():
                    loss = self.loss(self.spread.run, batch) * batch.counts
                (loss * distributed.world_size() / count).backward()
            total += loss.detach()
        total = distributed.all_reduce_sum(total)
        norm = clip_grad_norm(self.model.parameters(), self.settings.clip_norm or float("inf"))
        bad = (~(norm.isfinite() & total.isfinite())).float()
        self.not_finite += bad
        self.in_a_row.add_(bad).mul_(bad)
        self.optimizer.step(skip=bad)
        self.optimizer.zero_grad()
        for statistic, before in zip(self.statistics, kept):
            statistic.copy_(torch.where(bad.bool(), before, statistic))
        return torch.where(bad.bool(), 0.0, total)

    def is_recorded(self) -> bool:
        """Where steps can be recorded: not where the host takes part in them."""
        if not self.settings.cuda_graphs or self.device.type != "cuda":
            return False
        why = (
            "several processes"
            if self.spread.kind != "none"
            else "a model that changes from step to step"
            if hasattr(self.model, "begin_step")
            else None
        )
        if why:
            self.log.note(f"train.cuda_graphs: the steps of {why} cannot be recorded; it goes on without")
        return why is None

    def autocast(self):
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def report(self, meter: "Meter") -> None:
        loss, speed, seconds, waited = meter.read()
        self.state.seconds += seconds
        settings, skipped = self.settings, int(self.not_finite.item())
        learning_rate = settings.optimizer.learning_rate * learning_rate_factor(
            self.state.step, settings.steps, settings.schedule
        )
        self.log.training(
            self.state.step,
            loss,
            learning_rate,
            speed,
            waited / max(seconds, 1e-9),
            epoch=self.state.epoch,
            **({"not_finite": skipped} if skipped else {}),
        )

    def require_finite(self) -> None:
        progress, bad = self.state, int(self.in_a_row.item())
        if bad >= MAX_NONFINITE_STEPS:
            raise UserError(
                f"the loss or gradient was not finite {bad} times in a row, from step {progress.step - bad + 1} "
                f"to step {progress.step} (epoch {progress.epoch}, batch {progress.index - 1}); none of it was "
                "applied: lower train.optimizer.learning_rate or use train.precision = 'fp32', then resume"
            )

    def judge(self, meter: "Meter") -> None:
        """Evaluate, with the averaged weights if there are any, and remember the best."""
        paused = time.perf_counter()
        if self.ema is not None:
            self.ema.swap()
        try:
            whole = self.spread.whole().eval()
            with distributed.interruptible(self.caught), torch.no_grad(), self.autocast():
                scores = distributed.broadcast({name: float(score) for name, score in self.evaluate(whole).items()})
        finally:
            if self.ema is not None:
                self.ema.swap()
        goodness = next((scores[name] for name in self.metrics if name in scores), -scores["valid_loss"])
        progress = self.state
        progress.evaluated = progress.step
        better = progress.best is None or goodness > progress.best
        progress.not_better = 0 if better else progress.not_better + 1
        self.log.evaluation(progress.step, scores, better)
        if better:
            progress.best, progress.best_step = goodness, progress.step
            self.save()
        meter.pause(time.perf_counter() - paused)

    def patience_is_over(self) -> bool:
        return bool(self.settings.patience) and self.state.not_better >= self.settings.patience

    def save(self) -> None:
        progress, settings = self.state, self.settings
        if self.saved_at == progress.step:
            return
        progress.not_finite, progress.in_a_row = int(self.not_finite.item()), int(self.in_a_row.item())
        sharded_checkpoint.save_sharded(self.folder, progress.step, checkpoint.Checkpoint(self.tensors(), asdict(progress)))
        if distributed.is_main():
            protected = [progress.best_step, self.resumed_from]
            checkpoint.prune_checkpoints(
                self.folder, max(settings.keep_checkpoints, settings.average_checkpoints), protected, self.counts
            )
        self.saved_at = progress.step

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that the next step begins from, by file and name."""
        found = {"model": checkpoint.named_weights(self.model), "optimizer": self.optimizer.tensors()}
        if self.ema is not None:
            found["ema"] = self.ema.tensors()
            self.state.ema_step = self.ema.step
        return found

    def counts(self, step: int) -> bool:
        """Whether a checkpoint would be there without any signal: only those are averaged."""
        return step % self.settings.save_every == 0 or step == self.settings.steps

    def resume(self, path: Path) -> None:
        found = checkpoint.load_checkpoint(path)
        needed = {"model", "optimizer", *(["ema"] if self.ema is not None else [])}
        if missing := needed - found.tensors.keys():
            raise UserError(
                f"{path} has no {min(missing)}.safetensors, which this recipe needs; set train as it was, or begin anew"
            )
        with torch.no_grad():
            checkpoint.load_weights(self.model, found.tensors["model"], str(path))
            if self.ema is not None:
                self.ema.load(found.tensors["ema"], found.state["ema_step"])
        self.optimizer.load(found.tensors["optimizer"])
        try:
            self.state = TrainState(**found.state)
        except TypeError:
            raise UserError(f"{path} is of another version of regard, or of something else; begin anew") from None
        self.not_finite.fill_(self.state.not_finite)
        self.in_a_row.fill_(self.state.in_a_row)
        self.saved_at = self.resumed_from = self.state.step

    def require_best(self) -> None:
        """A best that is lost is no best: the evaluations from here on find another."""
        progress = self.state
        best = self.folder / f"step-{progress.best_step:08d}"
        if progress.best is not None and distributed.broadcast(checkpoint.find_damage(best) if distributed.is_main() else None):
            self.log.note(
                f"the best so far, step {progress.best_step:,}, is damaged or gone; the best from here on is kept instead"
            )
            progress.best, progress.evaluated = None, 0

    def final_weights(self) -> dict[str, Tensor]:
        """The mean of the last checkpoints if asked for, else the best evaluated weights."""
        if self.settings.average_checkpoints:
            steps = [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(self.folder)]
            chosen = [step for step in steps if step <= self.state.step and self.counts(step)][
                -self.settings.average_checkpoints :
            ]
        else:
            chosen = []
        found = [
            checkpoint.load_checkpoint(self.folder / f"step-{step:08d}").tensors for step in chosen or [self.state.best_step]
        ]
        return average_weights([{**tensors["model"], **tensors.get("ema", {})} for tensors in found])


class Meter:
    """Loss and speed since the last reading; the device is only asked when it is read."""

    def __init__(self, device: torch.device):
        self.device = device
        self.loss, self.count, self.since, self.waited = torch.zeros((), device=device), 0, time.perf_counter(), 0.0

    def add(self, loss: Tensor, count: int) -> None:
        self.loss += loss
        self.count += count

    def pause(self, seconds: float) -> None:
        self.since += seconds

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For batches: on a GPU the loop does, which need not be the GPU, who has steps to take meanwhile."""
        begun = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begun

    def read(self) -> tuple[float, float, float, float]:
        """Loss, targets a second, seconds, and those of them that were waited."""
        loss = self.loss.item() / max(1, self.count)
        seconds = time.perf_counter() - self.since
        speed, waited = self.count / max(seconds, 1e-9), self.waited
        self.loss.zero_()
        self.count, self.since, self.waited = 0, time.perf_counter(), 0.0
        return loss, speed, seconds, waited


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, in a stream of our own: the first one cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    own = torch.cuda.Stream(device)
    own.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(own):
        yield
    torch.cuda.current_stream(device).wait_stream(own)


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    return (seed * 1_000_003 + step + rank * 0x9E37_79B9_7F4A_7C15) & 0x7FFF_FFFF_FFFF_FFFF

"""The training loop: learning rate, micro-batches, gradient clipping, optimizer step, log, evaluation, checkpoints."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from regard import distributed, rng
from regard.batches.batch import Batch, to_device
from regard.batches.batches import Batches
from regard.distributed.parallel import Parallelism, clip_grad_norm
from regard.errors import Interrupted, UserError
from regard.hardware import cudnn_attention
from regard.recipe import Training
from regard.training import checkpoint
from regard.training.average import MovingAverage, average_weights
from regard.training.callbacks import Callback, Callbacks
from regard.training.checkpoint_writer import CheckpointWriter, Files
from regard.training.cuda_graphs import CompiledObjective, CudaGraphedStep, StepFunction, batch_shape
from regard.training.log import Log, Meter
from regard.training.losses import Objective
from regard.training.optimizer import CombinedOptimizer, learning_rate_factor
from regard.training.precision import cast_weights, choose_precision
from regard.training.signals import SignalHandler, catch_signals
from regard.training.speedups import capture_obstacle
from regard.training.state import TrainState

Evaluate = Callable[[nn.Module], dict[str, float]]
MicroBatches = list[tuple[int, int, Batch]]
"""(epoch, index in the epoch, batch) of each micro-batch of a step."""
MAX_NONFINITE_STEPS = 25
"""Non-finite steps in a row that end the run."""
CALLBACK_FAILED = 1000
"""Takes the place of a signal's number where a callback failed."""


class TrainingLoop:
    """Train a model by a recipe's `[train]`; every rank has a loop, and all run in step. `folder` holds the checkpoints.

    The best weights are those of the highest score of the first metric in `maximize` that `evaluate` returns; if it returns none
    of them, those of the lowest `valid_loss`. `inputs`, what training depends on, is recorded in every checkpoint. Speed-ups are
    chosen before (training/speedups.py): here, `auto` is none.
    """

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
        maximize: Sequence[str] = (),
        inputs: Mapping[str, object] = MappingProxyType({}),
        callbacks: Sequence[Callback] = (),
    ):
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.seed, self.folder, self.log, self.evaluate, self.maximize = seed, folder, log, evaluate, maximize
        self.inputs, self.callbacks = inputs, Callbacks([log, *callbacks])
        self.device = next(model.parameters()).device
        self.precision = choose_precision(settings.precision, model, self.device)
        self.parallelism = Parallelism(model, settings)
        self._casts_together = self.device.type == "cuda" and self.precision == "bf16" and self.parallelism.mode == "none"
        self._is_uniform = batches.has_uniform_length()
        self.loss: Objective = objective
        self._uncompiled_batch: Batch | None = None
        """The batch to compile for before the first step."""
        if settings.compile is True:
            self._uncompiled_batch = batches.typical_batch()
            self.loss = CompiledObjective(objective, batch_shape([self._uncompiled_batch]) if self._is_uniform else None)
            self._casts_together = False  # the compiler fuses them
        self.optimizer = CombinedOptimizer(model, settings.optimizer)
        self.learning_rate_factor: Callable[[int], float] = lambda step: learning_rate_factor(
            step, settings.steps, settings.schedule
        )
        """The fraction of the peak rates at a step."""
        self.ema = MovingAverage(model, settings.ema_decay) if settings.ema_decay else None
        self.state = TrainState()
        self._saved_step = -1
        self._resumed_step = 0
        self._writer = CheckpointWriter()
        self._signals = SignalHandler()
        self.nonfinite_steps = torch.zeros((), device=self.device)  # counted on the device, without synchronisation
        self.nonfinite_in_a_row = torch.zeros((), device=self.device)
        parameters = dict(model.named_parameters())
        self._buffers = [b for name, b in checkpoint.named_weights(model).items() if name not in parameters]  # of a batch norm
        self.update: StepFunction = self._update
        if self._uses_cuda_graphs():
            self.update = CudaGraphedStep(self._update, log.note, self.device)

    def train(self) -> dict[str, Tensor]:
        """Train to the last step; return the final weights (on rank 0)."""
        with catch_signals() as self._signals, self._writer:
            try:
                self._run_steps()
            except Interrupted:
                self.save()
                raise
        torch.manual_seed(step_seed(self.seed, self.state.step + 1))  # what follows is the same after a resume
        return self._final_weights() if distributed.is_main() else {}

    def _run_steps(self) -> None:
        settings, state = self.settings, self.state
        meter = Meter(self.device)
        if state.step and self._is_due(settings.evaluate_every) and state.evaluated_step != state.step:
            self._evaluate(meter)
            self._saved_step = -1  # the checkpoint of this step does not have the evaluation
            self._begin_save()
        micro_batches = self.step_batches()
        timing: AbstractContextManager[object] = self.log.timed("first_step")  # kernels are compiled, libraries loaded
        while state.step < settings.steps and not self._is_out_of_patience():
            with meter.waiting_for_data():
                batches = next(micro_batches)
            with timing:
                meter.add(*self.step(batches))
            timing = nullcontext()
            if self._is_due(settings.log_every):
                self._report(meter)
            if self._is_due(min(MAX_NONFINITE_STEPS, settings.log_every)):
                self._require_finite()
            if self._is_due(settings.evaluate_every):
                self._evaluate(meter)
            if self._is_due(settings.save_every):
                self._begin_save()
            self._writer.raise_error()
            self._stop_if_signalled()
        self._stop_if_signalled()

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.settings.steps

    def _is_out_of_patience(self) -> bool:
        return bool(self.settings.patience) and self.state.evaluations_since_best >= self.settings.patience

    def _stop_if_signalled(self) -> None:
        """Stop after a signal to any rank, or a callback that failed on rank 0."""
        failed = CALLBACK_FAILED if self.callbacks.error else 0
        number = distributed.all_reduce_max(failed or self._signals.number or 0)
        if number == CALLBACK_FAILED:
            self.save()
            self.log.note(f"a callback failed; the checkpoint of step {self.state.step:,} is written")
            self.callbacks.raise_error()
        if number:
            raise Interrupted(number)

    def step_batches(self, last_step: int | None = None) -> Iterator[MicroBatches]:
        """Yield the micro-batches of each step, from the current state to `last_step` (default: `train.steps`)."""
        steps = (self.settings.steps if last_step is None else last_step) - self.state.step
        per_step = self.settings.gradient_accumulation_steps
        batches = self.batches.iterate(steps * per_step, self.state.epoch, self.state.index, workers=self.settings.workers)
        for _ in range(steps):
            yield [next(batches) for _ in range(per_step)]

    def step(self, micro_batches: MicroBatches) -> tuple[Tensor, int]:
        """Update the weights once; return the loss sum and the number of labels. No host–device synchronisation."""
        state = self.state
        self.parallelism.warm_up_ddp(self._dummy_backward)
        state.step += 1
        self.optimizer.set_learning_rate(self.learning_rate_factor(state.step))
        self.model.train()
        if hasattr(self.model, "begin_step"):  # anneals a temperature or a weight
            self.model.begin_step(state.step)  # type: ignore[operator]
        self._compile()
        torch.manual_seed(step_seed(self.seed, state.step, distributed.rank()))
        labels = distributed.all_reduce_sum(sum(batch.label_count() for _, _, batch in micro_batches))
        count = max(1, labels)  # masking may have chosen no token
        batches = [batch.to(self.device) for _, _, batch in micro_batches]
        loss = self.update(batches, to_device(torch.tensor(float(count)), self.device))
        self.parallelism.sync_buffers(self._buffers)
        if self.ema is not None:
            self.ema.update()
        epoch, index, _ = micro_batches[-1]
        state.epoch, state.index = epoch, index + 1
        return loss, count

    def _update(self, batches: Sequence[Batch], count: Tensor) -> Tensor:
        """Apply the gradient of the loss over all labels, if it is finite; return the loss sum. All decisions are made on the
        device."""
        total = torch.zeros((), device=self.device)
        saved_buffers = [buffer.clone() for buffer in self._buffers]
        for number, batch in enumerate(batches, start=1):
            with self.parallelism.micro_step(last=number == len(batches)):
                total += self._backward(batch, count)
        total = distributed.all_reduce_sum(total)
        norm = clip_grad_norm(self.model.parameters(), self.settings.clip_norm or float("inf"))
        nonfinite = (~(norm.isfinite() & total.isfinite())).float()
        self.nonfinite_steps += nonfinite
        self.nonfinite_in_a_row.add_(nonfinite).mul_(nonfinite)
        self.optimizer.step(skip=nonfinite)
        self.optimizer.zero_grad()
        for buffer, saved in zip(self._buffers, saved_buffers):
            buffer.copy_(torch.where(nonfinite.bool(), saved, buffer))
        return torch.where(nonfinite.bool(), 0.0, total)

    def _backward(self, batch: Batch, count: Tensor) -> Tensor:
        """Add the gradient of the loss, over this many labels in all, to the gradients; return the loss sum."""
        with cudnn_attention(self._is_uniform):
            with self._autocast(), cast_weights(self.model, torch.bfloat16) if self._casts_together else nullcontext():
                loss = self.loss(self.parallelism.module, batch) * batch.in_loss
            torch.autograd.backward(loss * distributed.world_size() / count)
        return loss.detach()

    def _compile(self) -> None:
        """Before the first step, compile it for a typical batch. Kernels depend on the first shape that a compiler meets: were it
        the shape of the first step, a run resumed at another one would not be bit-exact."""
        if self._uncompiled_batch is None:
            return
        saved_buffers = [buffer.clone() for buffer in self._buffers]
        with self.parallelism.micro_step(last=True):
            self._backward(self._uncompiled_batch.to(self.device), torch.ones((), device=self.device))
        self.optimizer.zero_grad()
        for buffer, saved in zip(self._buffers, saved_buffers):
            buffer.copy_(saved)
        self._uncompiled_batch = None

    def _dummy_backward(self, module: nn.Module) -> None:
        """Run a backward pass with zero gradients, for DDP to see which gradients it has to exchange."""
        with self._autocast():
            loss = self.objective(module, self.batches.batch(0, 0).to(self.device))
        torch.autograd.backward(loss * 0)

    def _uses_cuda_graphs(self) -> bool:
        """Return whether steps are captured: not where the host takes part in them."""
        if self.settings.cuda_graphs is not True or self.device.type != "cuda":
            return False
        if obstacle := capture_obstacle(self.model, self.parallelism.mode):
            self.log.note(f"train.cuda_graphs: steps of {obstacle} cannot be captured; training without CUDA graphs")
        return obstacle is None

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def _report(self, meter: Meter) -> None:
        reading, settings, step = meter.read(), self.settings, self.state.step
        self.state.seconds += reading.seconds
        learning_rate = settings.optimizer.learning_rate * self.learning_rate_factor(step)
        skipped = int(self.nonfinite_steps.item())
        values = {
            "loss": round(reading.loss, 5),
            "learning_rate": learning_rate,
            "tokens_per_second": round(reading.tokens_per_second),
            "data_wait_fraction": round(reading.data_wait_fraction, 4),
            "epoch": self.state.epoch,
        }
        self.callbacks.on_step(step, {**values, "nonfinite_steps": skipped} if skipped else values)

    def _require_finite(self) -> None:
        state, number = self.state, int(self.nonfinite_in_a_row.item())
        if number >= MAX_NONFINITE_STEPS:
            raise UserError(
                f"the loss or gradient was not finite in {number} steps in a row, from step {state.step - number + 1} "
                f"to step {state.step} (epoch {state.epoch}, batch {state.index - 1}); these steps were skipped: "
                "lower train.optimizer.learning_rate or use train.precision = 'fp32', then resume"
            )

    def _evaluate(self, meter: Meter) -> None:
        """Evaluate, with the averaged weights if there are any; save a checkpoint if the score is the best so far."""
        start = time.perf_counter()
        with self.log.timed("evaluating"), self._averaged_weights():
            model = self.parallelism.full_model().eval()
            with torch.no_grad(), self._autocast():
                with distributed.interruptible(self._signals):
                    scores = distributed.broadcast({name: float(score) for name, score in self.evaluate(model).items()})
                is_best = self.state.update_best(scores, self.maximize)
                self.callbacks.on_evaluate(self.state.step, scores, is_best)
        if is_best:
            self._begin_save()
        meter.exclude(time.perf_counter() - start)

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Put the moving average in the place of the weights, where there is one."""
        if self.ema is None:
            yield
            return
        self.ema.swap()
        try:
            yield
        finally:
            self.ema.swap()

    def save(self) -> None:
        """Write a checkpoint of the current step, unless there is one, and delete old ones; it is complete when this returns."""
        self._begin_save()
        with self.log.timed("saving"):
            self._writer.wait()

    def _begin_save(self) -> None:
        """Begin to write a checkpoint of the current step, unless there is one. On several ranks, whose threads must not exchange
        anything meanwhile, and where a callback is told of checkpoints, it is complete when this returns."""
        state = self.state
        if self._saved_step == state.step:
            return
        state.nonfinite_steps, state.nonfinite_in_a_row = int(self.nonfinite_steps.item()), int(self.nonfinite_in_a_row.item())
        tensors, step = self.tensors(), state.step
        values, protected = {**asdict(state), "inputs": dict(self.inputs)}, [state.best_step, self._resumed_step]

        def write(files: Files) -> None:
            checkpoint.save_sharded(self.folder, step, checkpoint.Checkpoint(files, values))
            self._prune(protected)

        with self.log.timed("saving"):
            if distributed.world_size() > 1:
                write(tensors)
            else:
                self._writer.submit(checkpoint.local_tensors(tensors), write)
            if self.callbacks.listen_to("on_save"):
                self._writer.wait()
        self._saved_step = step
        self.callbacks.on_save(step, checkpoint.step_path(self.folder, step))

    def _prune(self, protected: Sequence[int]) -> None:
        """Delete old checkpoints, but not those of the protected steps."""
        if distributed.is_main():
            keep = max(self.settings.keep_checkpoints, self.settings.average_checkpoints)
            checkpoint.prune_checkpoints(self.folder, keep, protected, self._is_regular)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors of a checkpoint, by file and name."""
        files = {"model": checkpoint.named_weights(self.model), "optimizer": self.optimizer.tensors()}
        if self.ema is not None:
            files["ema"] = self.ema.tensors()
            self.state.ema_step = self.ema.step
        return files

    def _is_regular(self, step: int) -> bool:
        """Return whether a checkpoint of this step exists without any signal: only those are averaged."""
        return step % self.settings.save_every == 0 or step == self.settings.steps

    def resume(self, path: Path) -> None:
        """Restore weights, optimizer, averages and state from a checkpoint."""
        loaded = checkpoint.load_checkpoint(path)
        needed = {"model", "optimizer", *(["ema"] if self.ema is not None else [])}
        if missing := needed - loaded.tensors.keys():
            raise UserError(
                f"{path} has no {min(missing)}.safetensors, which this recipe needs; "
                "restore the settings of [train], or start anew"
            )
        with torch.no_grad():
            checkpoint.load_weights(self.model, loaded.tensors["model"], str(path))
            if self.ema is not None:
                self.ema.load(loaded.tensors["ema"], loaded.state["ema_step"])
        self.optimizer.load(loaded.tensors["optimizer"])
        try:
            self.state = TrainState(**{name: value for name, value in loaded.state.items() if name != "inputs"})
        except TypeError:
            raise UserError(f"{path} was written by another version of regard; start anew") from None
        self.nonfinite_steps.fill_(self.state.nonfinite_steps)
        self.nonfinite_in_a_row.fill_(self.state.nonfinite_in_a_row)
        self._saved_step = self._resumed_step = self.state.step

    def require_best(self) -> None:
        """Forget the best checkpoint if it is damaged or gone: the evaluations from here on find another."""
        state = self.state
        best = checkpoint.step_path(self.folder, state.best_step)
        if state.best is not None and distributed.broadcast(checkpoint.find_damage(best) if distributed.is_main() else None):
            self.log.note(
                f"the best checkpoint so far, step {state.best_step:,}, is damaged or gone; the best from here on is kept instead"
            )
            state.best, state.evaluated_step = None, 0

    def _final_weights(self) -> dict[str, Tensor]:
        """Return the mean of the last regular checkpoints with `train.average_checkpoints`, else the best evaluated weights."""
        steps = []
        if self.settings.average_checkpoints:
            known = [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(self.folder)]
            steps = [step for step in known if step <= self.state.step and self._is_regular(step)][
                -self.settings.average_checkpoints :
            ]
        files = [
            checkpoint.load_checkpoint(checkpoint.step_path(self.folder, step), ("model", "ema")).tensors
            for step in steps or [self.state.best_step]
        ]
        return average_weights([{**tensors["model"], **tensors.get("ema", {})} for tensors in files])


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of the random generators for one step on one rank (63 bits)."""
    return int(rng.hash64(seed, step, rank)) >> 1

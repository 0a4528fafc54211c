"""The training loop: exact accumulation, exact resume, skipped non-finite steps, signals, logging, and a toy task learned."""

import json
import signal
import threading
import time

import pytest
import torch

from regard.errors import Interrupted, UserError
from regard.recipe import Regularization
from regard.training import checkpoint
from regard.training.loop import MAX_NONFINITE_STEPS, step_seed
from regard.training.losses import CrossEntropy


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_repeatedly_is_bit_exact(store, trainer, tmp_path, kind, workers):
    options = dict(optimizer={"kind": kind}, ema_decay=0.9, workers=workers, evaluate_every=8)
    whole = trainer(store, tmp_path / "whole", **options)
    kept = whole.train()
    for stop in (2, 4, 6):  # resume from a checkpoint, each time in a new trainer
        again = trainer(store, tmp_path / "again", **options)
        if stop > 2:
            again.resume(tmp_path / "again" / "checkpoints" / f"step-{stop - 2:08d}")
        batches = again.step_batches()
        while again.state.step < stop:
            again.step(next(batches))
        again.save()
    last = trainer(store, tmp_path / "again", **options)
    last.resume(tmp_path / "again" / "checkpoints" / "step-00000006")
    assert same(last.train(), kept)
    assert same(checkpoint.named_weights(whole.model), checkpoint.named_weights(last.model))
    assert same(whole.optimizer.tensors(), last.optimizer.tensors())
    assert (whole.state.epoch, whole.state.index) == (last.state.epoch, last.state.index)


def test_gradient_accumulation_equals_one_batch(store, trainer, tmp_path):
    """The gradient of an accumulated step is that of all its labels together, whatever the sizes of the micro-batches."""
    split = trainer(store, tmp_path / "a", dropout=0.0)
    parts = list(split.batches.iterate(2, workers=0))
    assert parts[0][2].label_count() != parts[1][2].label_count()
    split.model.train()
    count = sum(batch.label_count() for _, _, batch in parts)
    total = sum(split.objective(split.model, batch) for _, _, batch in parts) / count
    expected = torch.autograd.grad(total, list(split.model.parameters()))
    seen = []
    split.optimizer.step = lambda skip: seen.extend(p.grad.clone() for p in split.model.parameters())
    split.settings = split.settings.model_copy(update={"clip_norm": 0.0})
    split.step(parts)
    for one, other in zip(seen, expected):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


class NonfiniteLoss(CrossEntropy):
    """A loss that is not finite at some calls."""

    def __init__(self, *calls, value=float("nan")):
        super().__init__(Regularization())
        self.calls, self.number, self.value = calls, 0, value

    def __call__(self, model, batch):
        self.number += 1
        return super().__call__(model, batch) * (self.value if self.number in self.calls else 1.0)


def all_tensors(run):
    return {f"{file}/{name}": tensor.clone() for file in ("model", "optimizer") for name, tensor in run.tensors()[file].items()}


@pytest.mark.parametrize("kind, norm", [("adamw", "layer"), ("muon", "batch")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("call", [2, 5])
def test_a_nonfinite_step_is_skipped_and_counted(store, trainer, tmp_path, kind, norm, value, call):
    """No bit of weights, optimizer or statistics changes, whichever of the step's micro-batches was non-finite."""
    run = trainer(
        store, tmp_path, NonfiniteLoss(call, value=value), norm=norm, optimizer={"kind": kind}, gradient_accumulation_steps=2
    )
    batches = run.step_batches()
    bad = (call + 1) // 2
    for _ in range(bad - 1):
        run.step(next(batches))
    before = all_tensors(run)
    loss, _ = run.step(next(batches))
    after = all_tensors(run)
    assert loss == 0 and run.nonfinite_steps == 1 and run.nonfinite_in_a_row == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items() if name in before)
    assert all(not after[name].any() for name in after.keys() - before.keys())  # the first step allocates the state
    run.step(next(batches))
    assert run.nonfinite_in_a_row == 0 and not same(before, all_tensors(run))


def test_too_many_nonfinite_steps_in_a_row_end_the_run(store, trainer, tmp_path):
    first, last = 8, 7 + MAX_NONFINITE_STEPS
    run = trainer(store, tmp_path, NonfiniteLoss(*range(first, 200)), steps=200, log_every=1, evaluate_every=200, save_every=200)
    message = rf"not finite in {MAX_NONFINITE_STEPS} steps in a row, from step {first} to step {last} \(epoch \d+, batch \d+\)"
    with pytest.raises(UserError, match=message + ".*lower train.optimizer.learning_rate"):
        run.train()
    assert all(tensor.isfinite().all() for tensor in all_tensors(run).values())
    seen = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert seen[-1]["nonfinite_steps"] == MAX_NONFINITE_STEPS


def test_a_few_nonfinite_steps_are_counted_across_a_resume(store, trainer, tmp_path):
    run = trainer(store, tmp_path, NonfiniteLoss(3, 4), log_every=1)
    run.train()
    again = trainer(store, tmp_path, log_every=1)
    again.resume(tmp_path / "checkpoints" / "step-00000004")
    assert again.nonfinite_steps == 2 and again.nonfinite_in_a_row == 2


def test_a_signal_finishes_the_step_and_saves_a_checkpoint(store, trainer, tmp_path):
    class SignallingLoss(CrossEntropy):
        calls = 0

        def __call__(self, model, batch):
            self.calls += 1
            if self.calls == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().__call__(model, batch)

    with pytest.raises(Interrupted) as caught:
        trainer(store, tmp_path, SignallingLoss(Regularization()), save_every=100).train()
    assert caught.value.number == signal.SIGTERM
    path, _ = checkpoint.latest_intact(tmp_path / "checkpoints")
    assert path.name == "step-00000003"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_evaluation_interrupted_by_a_signal_is_repeated(store, trainer, tmp_path):
    """The averaged weights are swapped back first, and the run is bit-exact with an uninterrupted one."""

    def build(folder):
        run = trainer(
            store,
            tmp_path / folder,
            evaluate=lambda model: {"valid_loss": float(run.state.step)},
            ema_decay=0.9,
            evaluate_every=3,
            save_every=5,
        )  # the first is the best
        return run

    def ring(model):
        signal.raise_signal(signal.SIGUSR1)
        pytest.fail("the evaluation continued")

    whole, broken = build("whole"), build("broken")
    kept, broken.evaluate = whole.train(), ring
    with pytest.raises(Interrupted) as caught:
        broken.train()
    assert caught.value.number == signal.SIGUSR1
    path, _ = checkpoint.latest_intact(tmp_path / "broken" / "checkpoints")
    assert path.name == "step-00000003"
    again = build("broken")
    again.resume(path)
    assert again.state.evaluated_step == 0
    assert same(again.train(), kept) and again.state.best_step == 3
    assert {**vars(again.state), "seconds": 0} == {**vars(whole.state), "seconds": 0}


@pytest.mark.parametrize(
    "place, number",
    [
        ("compiling, in the first step", 1),
        ("saving", 2),
        ("verifying what was saved", 2),
        ("removing an old one", 4),
        ("logging", 2),
    ],
)
def test_a_signal_at_any_place_leaves_a_good_checkpoint(store, trainer, tmp_path, monkeypatch, place, number):
    """The step, the save, or the removal of an old checkpoint is finished first. Saves run beside the steps: the run stops after
    the step at which the signal is seen."""
    run = trainer(store, tmp_path, keep_checkpoints=1)
    where = {
        "saving": (checkpoint, "write_and_fsync"),
        "verifying what was saved": (checkpoint, "find_damage"),
        "removing an old one": (checkpoint, "remove_folder"),
        "logging": (run, "_report"),
    }.get(place, (run, "loss"))
    real, first_call = getattr(*where), threading.Lock()

    def ring(*args):
        if first_call.acquire(blocking=False):  # files are written in several threads, and a second signal would exit at once
            signal.raise_signal(signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(*where, ring)
    with pytest.raises(Interrupted):
        run.train()
    path, damaged = checkpoint.latest_intact(tmp_path / "checkpoints")
    assert path.name == f"step-{run.state.step:08d}" and not damaged and not [*tmp_path.rglob(".*ing*")]
    assert run.state.step >= number if where[0] is checkpoint else run.state.step == number


@pytest.mark.parametrize("stop", [4, 7])
def test_a_signal_does_not_change_the_averaged_checkpoints(store, trainer, tmp_path, stop):
    class SignallingLoss(CrossEntropy):
        calls = 0

        def __call__(self, model, batch):
            self.calls += 1
            if self.calls == stop:
                signal.raise_signal(signal.SIGTERM)
            return super().__call__(model, batch)

    options = dict(average_checkpoints=2, keep_checkpoints=1, evaluate_every=3)
    kept = trainer(store, tmp_path / "whole", **options).train()
    with pytest.raises(Interrupted):
        trainer(store, tmp_path / "broken", SignallingLoss(Regularization(dropout=0.2)), **options).train()
    again = trainer(store, tmp_path / "broken", **options)
    again.resume(checkpoint.latest_intact(tmp_path / "broken" / "checkpoints")[0])
    assert same(again.train(), kept)


@pytest.mark.parametrize("stop", [2, 3, 4, 6, 7])
def test_patience_and_best_step_survive_a_resume(store, trainer, tmp_path, stop):
    """Interrupted anywhere, the run stops early at the same step, and keeps the same weights."""
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5, 10: 0.5}
    options = dict(steps=100, evaluate_every=2, save_every=5, keep_checkpoints=1, patience=2)

    def build(folder):
        run = trainer(store, tmp_path / folder, evaluate=lambda model: {"valid_loss": losses[run.state.step]}, **options)
        return run

    whole = build("whole")
    kept = whole.train()
    first = build("broken")
    step = first.step

    def ring(batches):
        if first.state.step + 1 == stop:
            signal.raise_signal(signal.SIGTERM)
        return step(batches)

    first.step = ring
    with pytest.raises(Interrupted):
        first.train()
    again = build("broken")
    again.resume(checkpoint.latest_intact(tmp_path / "broken" / "checkpoints")[0])
    assert same(again.train(), kept) and again.state.step == whole.state.step == 8
    assert (again.state.best_step, again.state.evaluations_since_best) == (4, 2)


def test_the_resumed_and_the_best_checkpoint_are_kept(store, trainer, tmp_path):
    folder = tmp_path / "checkpoints"
    trainer(store, tmp_path, steps=4, save_every=1, evaluate_every=1, keep_checkpoints=2).train()  # the first is the best
    assert [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(folder)] == [1, 3, 4]
    again = trainer(store, tmp_path, steps=8, save_every=1, evaluate_every=1, keep_checkpoints=2)
    again.resume(folder / "step-00000003")
    checkpoint.archive_newer(folder, 3)
    again.train()
    assert [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(folder)] == [1, 3, 7, 8]
    assert [path.name for path in (folder / "archive").iterdir()] == ["step-00000004"]


def test_a_lost_best_checkpoint_is_replaced(store, trainer, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    trainer(store, tmp_path, evaluate_every=2).train()
    checkpoint.remove_folder(folder / "step-00000002")
    again = trainer(store, tmp_path, evaluate_every=2)
    again.resume(folder / "step-00000008")
    again.require_best()
    assert "the best checkpoint so far, step 2, is damaged or gone" in capsys.readouterr().err
    assert same(again.train(), checkpoint.load_checkpoint(folder / "step-00000008").tensors["model"])


def test_random_numbers_after_training_are_the_same_after_a_resume(store, trainer, tmp_path):
    """Such as samples drawn for an evaluation."""
    trainer(store, tmp_path).train()
    drawn = torch.rand(3)
    again = trainer(store, tmp_path)
    again.resume(tmp_path / "checkpoints" / "step-00000008")
    again.train()
    assert torch.equal(torch.rand(3), drawn)


def test_the_best_weights_are_kept_and_patience_ends_the_run(store, trainer, tmp_path):
    losses = iter([3.0, 1.0, 2.0, 2.5, 0.5])
    seen = []

    def evaluate(model):
        seen.append({name: p.clone() for name, p in checkpoint.named_weights(model).items()})
        return {"valid_loss": next(losses)}

    run = trainer(store, tmp_path, evaluate=evaluate, steps=100, evaluate_every=2, save_every=2, keep_checkpoints=1, patience=2)
    final = run.train()
    assert run.state.step == 8 and run.state.best_step == 4
    assert same(final, seen[1]) and not same(final, seen[3])


def test_of_equal_scores_the_lower_loss_is_the_best(store, trainer, tmp_path):
    scores = iter([(50.0, 3.0), (50.0, 2.0), (50.0, 2.5), (40.0, 1.0)])

    def evaluate(model):
        bleu, loss = next(scores)
        return {"valid_bleu": bleu, "valid_loss": loss}

    run = trainer(store, tmp_path / "run", evaluate=evaluate, evaluate_every=2)
    run.maximize = ("valid_bleu",)
    run.train()
    assert (run.state.best, run.state.best_loss, run.state.best_step) == (50.0, 2.0, 4)


def test_final_weights_are_the_mean_of_the_last_checkpoints(store, trainer, tmp_path):
    run = trainer(store, tmp_path, average_checkpoints=3, keep_checkpoints=1)
    final = run.train()
    several = [
        checkpoint.load_checkpoint(path).tensors["model"] for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")[-3:]
    ]
    for name, mean in final.items():
        torch.testing.assert_close(mean, sum(weights[name] for weights in several) / 3)


def test_a_partial_last_line_of_the_log_is_dropped(store, trainer, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    trainer(store, tmp_path).log.write(step=3)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 3]


def test_the_log_has_loss_speed_and_scores(store, trainer, tmp_path):
    trainer(store, tmp_path).train()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    training = [record for record in records if "loss" in record]
    assert [record["step"] for record in training] == [2, 4, 6, 8]
    assert all(record["tokens_per_second"] > 0 and record["learning_rate"] > 0 for record in training)
    assert [record["valid_loss"] for record in records if "valid_loss" in record] == [1.0, 1.0]


def test_the_log_has_the_data_wait_fraction(store, trainer, tmp_path):
    def data_wait_fractions(name, seconds):
        run = trainer(store, tmp_path / name)
        ready = run.step_batches()
        run.step_batches = lambda: (time.sleep(seconds) or batches for batches in ready)
        run.train()
        records = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        return [record["data_wait_fraction"] for record in records if "loss" in record]

    late, ready = data_wait_fractions("late", 0.3), data_wait_fractions("ready", 0)
    assert min(late) > 0.5 and sum(ready) < sum(late) and all(0 <= fraction <= 1 for fraction in late + ready)


def test_a_toy_task_is_learned(store, trainer, tmp_path):
    """The loss of 300 sentences falls far below that of their word frequencies."""
    run = trainer(
        store,
        tmp_path,
        CrossEntropy(Regularization(label_smoothing=0.0)),
        dropout=0.0,
        width=64,
        steps=120,
        evaluate_every=120,
        save_every=120,
        log_every=10,
        tokens_per_batch=1024,
        optimizer={"learning_rate": 0.006},
        schedule={"warmup_steps": 20},
    )
    run.train()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[0] > 3 and losses[-1] < 2.5


def test_step_seeds_do_not_collide():
    """Neighbouring seeds, steps and ranks, and those a million apart: seed 1, step 1,000,004 is not seed 2, step 1."""
    steps = [*range(1, 300), *range(1_000_000, 1_000_300)]
    keys = {(seed, step, rank) for seed in range(20) for step in steps for rank in range(4)}
    seeds = {step_seed(*key) for key in keys}
    assert len(seeds) == len(keys) and all(0 <= seed < 2**63 for seed in seeds)

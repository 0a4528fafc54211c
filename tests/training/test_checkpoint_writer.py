"""Checkpoints written beside the steps: they hold the state they were begun with, and no error of theirs is lost."""

import signal
import threading
import time

import pytest
import torch

from regard.errors import Interrupted, UserError
from regard.recipe import Regularization
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.checkpoint_writer import CheckpointWriter
from regard.training.losses import CrossEntropy

WAIT = 20
"""Seconds after which a test that waits for another thread fails."""


class AtStep(CrossEntropy):
    """Call a function in the forward pass of one step."""

    def __init__(self, step, function):
        super().__init__(Regularization(dropout=0.2))
        self.left, self.function = step, function

    def __call__(self, model, batch):
        self.left -= 1
        if self.left == 0:
            self.function()
        return super().__call__(model, batch)


def hold_writes(monkeypatch, until):
    """Make every write of a checkpoint wait for an event; return what each wait said, True if the event came in time."""
    real, waits = checkpoint.save_checkpoint, []

    def save(*args):
        waits.append(until.wait(WAIT))
        return real(*args)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    return waits


def test_steps_go_on_while_a_checkpoint_is_written_and_it_holds_the_state_it_was_begun_with(
    store, trainer, tmp_path, monkeypatch
):
    plain = trainer(store, tmp_path / "plain", ema_decay=0.9)
    plain.train()
    written = threading.Event()
    waits = hold_writes(monkeypatch, written)  # the checkpoint of step 2 waits for step 4, which changes all tensors in place
    held = trainer(store, tmp_path / "held", AtStep(4, written.set), ema_decay=0.9)
    held.train()
    assert waits and all(waits)
    for path in checkpoint.list_checkpoints(plain.folder):
        expected, found = (checkpoint.read_hashes(folder / path.name) for folder in (plain.folder, held.folder))
        assert {name: expected[name] for name in expected if name != "state.json"} == {
            name: found[name] for name in found if name != "state.json"
        }
        states = [checkpoint.read_state(folder / path.name) for folder in (plain.folder, held.folder)]
        assert {**states[0], "seconds": 0} == {**states[1], "seconds": 0}


@pytest.mark.parametrize("failing", [1, 4])
def test_an_error_of_a_write_ends_the_run_and_leaves_the_checkpoint_before_it(store, trainer, tmp_path, monkeypatch, failing):
    run = trainer(store, tmp_path)
    real, calls = checkpoint.save_checkpoint, []

    def save(*args):
        calls.append(args)
        if len(calls) == failing:
            raise UserError("the disk is full")
        return real(*args)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    with pytest.raises(UserError, match="the disk is full"):
        run.train()
    steps = [checkpoint.checkpoint_step(path) for path in checkpoint.list_checkpoints(run.folder)]
    assert steps[: failing - 1] == [2 * number for number in range(1, failing)] and 2 * failing not in steps
    assert len(calls) == failing  # nothing is written after the error


def test_an_error_of_a_write_ends_the_run_before_the_next_checkpoint_is_due(store, trainer, tmp_path, monkeypatch):
    failed = threading.Event()

    def fail(*_):
        failed.set()
        raise UserError("the disk is full")

    def wait():
        assert failed.wait(WAIT)
        time.sleep(0.1)  # until the thread has passed the error on

    monkeypatch.setattr(checkpoint, "save_checkpoint", fail)
    run = trainer(store, tmp_path, AtStep(6, wait), save_every=4, evaluate_every=100)
    with pytest.raises(UserError, match="the disk is full"):
        run.train()
    assert 4 <= run.state.step <= 6


def test_training_ends_with_its_last_checkpoint_complete(store, trainer, tmp_path, monkeypatch):
    real = checkpoint.save_checkpoint

    def save(*args):
        time.sleep(0.2)
        return real(*args)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    run = trainer(store, tmp_path)
    run.train()
    last = checkpoint.list_checkpoints(run.folder)[-1]
    assert checkpoint.checkpoint_step(last) == run.state.step and checkpoint.find_damage(last) is None


def test_a_signal_waits_for_the_write_before_its_own(store, trainer, tmp_path, monkeypatch):
    release = threading.Event()
    hold_writes(monkeypatch, release)

    def ring():
        signal.raise_signal(signal.SIGTERM)
        threading.Timer(0.2, release.set).start()

    run = trainer(store, tmp_path, AtStep(3, ring))
    with pytest.raises(Interrupted):
        run.train()
    names = [path.name for path in checkpoint.list_checkpoints(run.folder) if checkpoint.find_damage(path) is None]
    assert names == ["step-00000002", "step-00000003"]


def test_an_error_of_a_write_is_raised_in_place_of_the_signal_that_says_everything_is_saved(
    store, trainer, tmp_path, monkeypatch
):
    def fail(*_):
        raise UserError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", fail)
    run = trainer(store, tmp_path, AtStep(2, lambda: signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(UserError, match="the disk is full"):
        run.train()


def test_an_error_of_a_step_waits_for_the_write_and_is_the_one_raised(store, trainer, tmp_path, monkeypatch):
    release = threading.Event()
    hold_writes(monkeypatch, release)

    def fail():
        threading.Timer(0.2, release.set).start()
        raise ZeroDivisionError

    run = trainer(store, tmp_path, AtStep(3, fail))
    with pytest.raises(ZeroDivisionError):
        run.train()
    assert [path.name for path in checkpoint.list_checkpoints(run.folder)] == ["step-00000002"]


def test_training_waits_for_checkpoints_only_if_a_callback_is_told_of_them(store, trainer, tmp_path):
    steps = []

    class Listener(Callback):
        def on_save(self, step, path):
            assert checkpoint.find_damage(path) is None
            steps.append((step, run.state.step))

    run = trainer(store, tmp_path, callbacks=[Listener()])
    assert run.callbacks.listen_to("on_save") and not trainer(store, tmp_path / "other").callbacks.listen_to("on_save")
    run.train()
    assert steps == [(step, step) for step in (2, 4, 6, 8)]


def test_a_writer_copies_what_it_is_given_and_raises_each_error_once():
    writer, seen, release = CheckpointWriter(), [], threading.Event()
    x = torch.arange(4.0)

    def write(files):
        assert release.wait(WAIT)
        seen.append(files["model"]["x"].tolist())
        raise UserError("once")

    writer.submit({"model": {"x": x}}, write)
    x += 1
    writer.raise_error()  # does not wait
    release.set()
    with pytest.raises(UserError, match="once"):
        writer.wait()
    writer.wait()
    assert seen == [[0, 1, 2, 3]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_writer_copies_from_a_gpu_into_pinned_memory_that_it_uses_again():
    writer, seen = CheckpointWriter(), []
    tensors = {
        "model": {"x": torch.randn(4, 6, device="cuda").T, "step": torch.ones((), device="cuda")},
        "ema": {"y": torch.ones(3)},
    }

    def write(files):
        seen.append({name: (x.clone(), x.is_pinned(), x.data_ptr()) for name, x in files["model"].items()})

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), writer:
        for _ in range(2):
            torch.cuda._sleep(10**8)  # the copy waits for what the stream still has to do
            tensors["model"]["x"] += 1
            expected = tensors["model"]["x"].clone()
            writer.submit(tensors, write)
            tensors["model"]["x"].zero_()
            writer.wait()
            assert torch.equal(seen[-1]["x"][0], expected.cpu()) and seen[-1]["x"][1] and not seen[-1]["step"][0].is_cuda
            tensors["model"]["x"].copy_(expected)
    assert seen[0]["x"][2] == seen[1]["x"][2]

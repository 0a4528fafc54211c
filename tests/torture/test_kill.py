"""kill -9 at any moment, above all while saving: the resumed run is bit-exact with an uninterrupted one."""

import os
import signal
import time

import pytest
import torch

from regard import files
from regard.training import checkpoint

RECIPES = ["translation", "GPT", "BERT", "ViT", "CLIP"]
CALLS = {
    (checkpoint, "write_and_fsync"): 4,
    (files, "fsync_folder"): 2,
    (checkpoint, "find_damage"): 1,
    (checkpoint, "remove_folder"): 1,
}
"""The functions that a save calls, and how many times."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"))]
FAST_STEPS = {
    "captured": ("translation", {"cuda_graphs": True}),
    "compiled": ("ViT", {"cuda_graphs": True, "compile": True, "images_per_batch": 20}),
}
"""A recipe for each way to train fast. Both have several batch shapes: by length, and in each epoch's last batch."""


def kill_while_saving(chance):
    """Make a child kill itself somewhere inside a save: with half a file written, between files, between the two fsyncs around
    the rename, while verifying, or while the old checkpoint is removed."""
    module, function = chance.choice(list(CALLS))
    calls_left = chance.randrange(5 * CALLS[module, function])
    real, save = getattr(module, function), checkpoint.save_checkpoint
    fraction, before = chance.random(), chance.random() < 0.5
    saving = function == "remove_folder"  # which is called only after a save

    def save_checkpoint(*args):
        nonlocal saving
        saving = True
        path = save(*args)
        saving = function == "remove_folder"
        return path

    def call_or_die(path, *rest):
        nonlocal calls_left
        calls_left -= saving
        if calls_left >= 0 or not saving:
            return real(path, *rest)
        if function == "write_and_fsync":
            path.write_bytes(rest[0][: int(fraction * len(rest[0]))])
        elif not before:
            real(path, *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save_checkpoint = save_checkpoint
    setattr(module, function, call_or_die)


def kill_repeatedly(runs, chance, count, *, at_any_moment, in_saving, while_training=False):
    """Kill a run so many times, then let it finish; return its folder. `while_training`: not before its first step, since a GPU
    takes most of a short run to start."""
    out, kills = runs.fresh(), ["saving"] * in_saving + ["any"] * at_any_moment
    chance.shuffle(kills)
    while kills:
        if kills[-1] == "saving":
            child = runs.start(out, before=lambda: kill_while_saving(chance))
            chance.random()  # the child has a copy of the generator: the next one must not die at the same place
            chance.random()
        else:
            child = runs.start(out)
            if while_training:
                runs.wait_until_it_trains(child, out)
            time.sleep(chance.uniform(0, runs.seconds - while_training * runs.start_seconds))
            child.send(signal.SIGKILL)
        status = child.wait()
        assert status in (0, -signal.SIGKILL), child.said()
        if status == 0:  # it finished first: start a new run for the remaining kills
            out = runs.fresh()
            continue
        count(f"killed, {'inside saving' if kills.pop() == 'saving' else 'at any moment'}")
    last = runs.start(out)
    assert last.wait() == 0, last.said()
    return out


@pytest.mark.torture
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_killed_five_times_is_bit_exact(runs, chance, count, state_of, name, number):
    out = kill_repeatedly(runs(name), chance, count, at_any_moment=3, in_saving=2)
    assert state_of(out) == runs(name).expected
    assert not [*out.rglob(".writing*"), *out.rglob(".removing*")]
    count("runs killed five times, bit-exact")


@pytest.mark.system
@pytest.mark.parametrize("name", ["translation", "CLIP"])
def test_a_run_killed_three_times_is_bit_exact(runs, chance, count, state_of, name):
    assert state_of(kill_repeatedly(runs(name), chance, count, at_any_moment=1, in_saving=2)) == runs(name).expected


@pytest.mark.torture
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps, kills", [("captured", 10), ("compiled", 3)])
def test_fast_steps_killed_many_times_are_bit_exact(runs, chance, count, state_of, steps, kills, device):
    """On a GPU with CUDA graphs and torch.compile; on the CPU, which captures nothing, the same runs without graphs."""
    name, changes = FAST_STEPS[steps]
    these = runs(name, device, **changes, steps=120, save_every=10, evaluate_every=30, deterministic=True)
    out = kill_repeatedly(these, chance, count, at_any_moment=kills // 3, in_saving=kills - kills // 3, while_training=True)
    assert state_of(out) == these.expected
    count(f"runs with {steps} steps on {device} killed {kills} times, bit-exact")


@pytest.mark.torture
@pytest.mark.parametrize("name", RECIPES)
def test_training_is_bit_exact_with_any_number_of_workers(runs, count, state_of, name):
    for workers in (0, 3):
        out = runs(name).fresh()
        child = runs(name).start(out, "--set", f"train.workers={workers}")
        assert child.wait() == 0, child.said()
        assert state_of(out) == runs(name).expected
        count("other numbers of workers, bit-exact")

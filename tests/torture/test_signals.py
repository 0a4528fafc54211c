"""A signal at any moment of training gives a good checkpoint within seconds, and resuming from it is bit-exact."""

import signal
import time

import pytest

from regard.training import checkpoint

LIMIT = 10.0
"""Seconds until exit."""
LATEST = 0.6
LONG = {"steps": 300, "evaluate_every": 30, "save_every": 50}
"""A run that takes a few times as long."""


def interrupt(runs, out, chance, number):
    """Send a signal at a random moment of training; return whether it was sent, the exit status, the seconds until exit, and
    stderr."""
    child = runs.start(out)
    runs.wait_until_it_trains(child, out)
    time.sleep(chance.uniform(0, LATEST))
    sent = time.monotonic()
    came = child.send(number)
    return came, child.wait(), time.monotonic() - sent, child.said()


def interrupt_repeatedly(runs, chance, count, state_of, times):
    out, slowest = runs.fresh(), 0.0
    while times:
        number = chance.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
        came, status, seconds, said = interrupt(runs, out, chance, number)
        if status == 0:  # it finished first
            assert state_of(out) == runs.expected
            out = runs.fresh()
            continue
        assert came and status == 128 + number, said
        assert "Traceback" not in said and said.splitlines()[-1].startswith("regard: interrupted; everything is saved")
        path, damaged = checkpoint.latest_intact(out / "checkpoints")
        assert not damaged and seconds < LIMIT
        if path is None:  # before the first step there is nothing to save; not counted
            continue
        times, slowest = times - 1, max(slowest, seconds)
        count("interrupted by a signal, a good checkpoint within 10 s")
    last = runs.start(out)
    assert last.wait() == 0, last.said()
    assert state_of(out) == runs.expected
    return slowest


@pytest.mark.torture
@pytest.mark.parametrize("name", ["translation", "GPT", "BERT", "ViT", "CLIP"])
def test_ten_signals_leave_good_checkpoints_and_bit_exact_runs(runs, chance, count, state_of, name):
    slowest = interrupt_repeatedly(runs(name, **LONG), chance, count, state_of, 10)
    print(f"{name}: the slowest exited after {slowest:.2f} s")


@pytest.mark.system
def test_two_signals_leave_good_checkpoints_and_a_bit_exact_run(runs, chance, count, state_of):
    interrupt_repeatedly(runs("GPT", **LONG), chance, count, state_of, 2)

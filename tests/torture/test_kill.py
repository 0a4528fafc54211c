"""kill -9 at any moment, in saving above all: the run goes on to the bits of the run that nobody killed."""

import os
import signal
import time

import pytest

from regard.training import checkpoint

RECIPES = ["translation", "GPT", "BERT", "ViT", "CLIP"]
CALLS = {"write_durably": 4, "sync_folder": 2, "damage": 1, "remove_folder": 1}
"""What a save does, and how many times."""


def die_in_saving(chance):
    """Arrange, in a child, for its death somewhere inside a save: with half a file written, between files, between the two fsyncs
    around the rename, while verifying, or while the old checkpoint is removed."""
    place = chance.choice(list(CALLS))
    left = chance.randrange(5 * CALLS[place])
    real, save, share, before = getattr(checkpoint, place), checkpoint.save_checkpoint, chance.random(), chance.random() < 0.5
    saving = place == "remove_folder"  # which happens nowhere else

    def saved(*args):
        nonlocal saving
        saving = True
        found = save(*args)
        saving = place == "remove_folder"
        return found

    def then_die(path, *rest):
        nonlocal left
        left -= saving
        if left >= 0 or not saving:
            return real(path, *rest)
        if place == "write_durably":
            path.write_bytes(rest[0][: int(share * len(rest[0]))])
        elif not before:
            real(path, *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save_checkpoint = saved
    setattr(checkpoint, place, then_die)


def torment(runs, chance, count, *, at_any_moment, in_saving):
    """One run, killed so many times, then left alone."""
    out, kills = runs.fresh(), ["saving"] * in_saving + ["any"] * at_any_moment
    chance.shuffle(kills)
    while kills:
        if kills[-1] == "saving":
            child = runs.start(out, before=lambda: die_in_saving(chance))
            chance.random()  # the child has a copy: the next one must not die at the same place
            chance.random()
        else:
            child = runs.start(out)
            time.sleep(chance.uniform(0, runs.seconds))
            child.send(signal.SIGKILL)
        status = child.wait()
        assert status in (0, -signal.SIGKILL), child.said()
        if status == 0:  # it was faster: from the beginning, the other kills are still owed
            out = runs.fresh()
            continue
        count(f"killed, {'inside saving' if kills.pop() == 'saving' else 'at any moment'}")
    last = runs.start(out)
    assert last.wait() == 0, last.said()
    return out


@pytest.mark.torture
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("name", RECIPES)
def test_a_killed_run_ends_in_the_same_bits(runs, chance, count, state_of, name, number):
    out = torment(runs(name), chance, count, at_any_moment=3, in_saving=2)
    assert state_of(out) == runs(name).expected
    assert not [*out.rglob(".writing*"), *out.rglob(".removing*")]
    count("runs killed five times, to the same bits")


@pytest.mark.system
@pytest.mark.parametrize("name", ["translation", "CLIP"])
def test_a_run_killed_three_times_ends_in_the_same_bits(runs, chance, count, state_of, name):
    assert state_of(torment(runs(name), chance, count, at_any_moment=1, in_saving=2)) == runs(name).expected


@pytest.mark.torture
@pytest.mark.parametrize("name", RECIPES)
def test_any_number_of_workers_gives_the_same_bits(runs, count, state_of, name):
    for workers in (0, 3):
        out = runs(name).fresh()
        child = runs(name).start(out, "--set", f"train.workers={workers}")
        assert child.wait() == 0, child.said()
        assert state_of(out) == runs(name).expected
        count("other numbers of workers, the same bits")

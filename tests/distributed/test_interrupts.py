"""A signal to any rank interrupts the work of all ranks, and leaves them in step."""

import random
import signal
import threading
import time
from contextlib import contextmanager

from regard import distributed
from regard.errors import Interrupted
from regard.training.signals import catch_signals

RANKS, COLLECTIVES, TRIALS = 3, 8, 80


def signal_time(trial, rank):
    """Return when a rank gets a signal: never, before a collective, or after so many seconds, maybe during one or after the
    last."""
    chance = random.Random(f"{trial} {rank}")
    return chance.choice([None, None, ("before", chance.randrange(COLLECTIVES)), ("after", 0.03 * chance.random())])


@contextmanager
def send_signal(when):
    """Send a signal from another thread; it has arrived when the block ends."""
    me = threading.get_ident()
    timer = threading.Timer(when[1], lambda: signal.pthread_kill(me, signal.SIGTERM)) if when and when[0] == "after" else None
    if timer:
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.join()


def run_trial(trial):
    """Return whether the trial ran to its end, and what the ranks gather afterwards."""
    when, pace, ended = signal_time(trial, distributed.rank()), random.Random(f"pace {trial} {distributed.rank()}"), False
    with catch_signals() as caught, send_signal(when):
        try:
            with distributed.interruptible(caught):
                for number in range(COLLECTIVES):
                    if when == ("before", number):
                        signal.raise_signal(signal.SIGTERM)
                    time.sleep(0.002 * pace.random())
                    assert (
                        distributed.all_reduce_sum(1) == RANKS
                        if number % 2
                        else distributed.all_gather(number) == [number] * RANKS
                    )
                time.sleep(0.01 * pace.random())
            ended = True
        except Interrupted as interruption:
            assert interruption.number == signal.SIGTERM
    return [ended, distributed.all_gather([trial, distributed.rank(), ended])]


def run_trials():
    return [run_trial(trial) for trial in range(TRIALS)]


def test_all_ranks_are_interrupted_at_the_same_collective(on_ranks):
    found = on_ranks(RANKS, run_trials)
    for trial, outcomes in enumerate(zip(*found)):
        ended, _ = outcomes[0]
        assert all(one == [ended, [[trial, rank, ended] for rank in range(RANKS)]] for one in outcomes)
        times = [signal_time(trial, rank) for rank in range(RANKS)]
        assert ended or any(times)
        assert not (ended and any(one and one[0] == "before" for one in times))

"""A signal to any rank breaks off what all of them do, wherever it meets them, and leaves them in step."""

import random
import signal
import threading
import time
from contextlib import contextmanager

from regard import distributed
from regard.errors import Interrupted
from regard.training.signals import catch_signals

NUMBER, MEETINGS, TRIALS = 3, 8, 80


def moment(trial, rank):
    """When a rank is sent a signal: never, before a meeting, or after so many seconds, which may be in one or after the last."""
    chance = random.Random(f"{trial} {rank}")
    return chance.choice([None, None, ("before", chance.randrange(MEETINGS)), ("after", 0.03 * chance.random())])


@contextmanager
def sent(when):
    """A signal that comes from outside, and has come when this is over."""
    me = threading.get_ident()
    timer = threading.Timer(when[1], lambda: signal.pthread_kill(me, signal.SIGTERM)) if when and when[0] == "after" else None
    if timer:
        timer.start()
    try:
        yield
    finally:
        if timer:
            timer.join()


def go_through(trial):
    """Whether it was gone through to the end, and what the ranks tell one another afterwards."""
    when, pace, ended = moment(trial, distributed.rank()), random.Random(f"pace {trial} {distributed.rank()}"), False
    with catch_signals() as caught, sent(when):
        try:
            with distributed.interruptible(caught):
                for number in range(MEETINGS):
                    if when == ("before", number):
                        signal.raise_signal(signal.SIGTERM)
                    time.sleep(0.002 * pace.random())
                    assert (
                        distributed.all_reduce_sum(1) == NUMBER
                        if number % 2
                        else distributed.all_gather(number) == [number] * NUMBER
                    )
                time.sleep(0.01 * pace.random())
            ended = True
        except Interrupted as interruption:
            assert interruption.number == signal.SIGTERM
    return [ended, distributed.all_gather([trial, distributed.rank(), ended])]


def go_through_all():
    return [go_through(trial) for trial in range(TRIALS)]


def test_all_hear_of_it_in_the_same_meeting(on_ranks):
    found = on_ranks(NUMBER, go_through_all)
    for trial, told in enumerate(zip(*found)):
        ended, _ = told[0]
        assert all(one == [ended, [[trial, rank, ended] for rank in range(NUMBER)]] for one in told)
        moments = [moment(trial, rank) for rank in range(NUMBER)]
        assert ended or any(moments)
        assert not (ended and any(one and one[0] == "before" for one in moments))

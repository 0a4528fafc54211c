"""Signals are deferred where something would be lost and raised elsewhere; a second signal exits at once."""

import os
import signal
import time

import pytest

from regard.errors import Interrupted
from regard.training.signals import catch_signals

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_kept_until_the_loop_asks(number):
    before = signal.getsignal(number)
    with catch_signals() as caught:
        signal.raise_signal(number)
        assert caught and caught.number == number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_raises_at_once_inside_raising(number):
    with catch_signals() as caught, pytest.raises(Interrupted) as interruption, caught.raising():
        signal.raise_signal(number)
        pytest.fail("the block continued")
    assert interruption.value.number == number and not caught.immediate
    with catch_signals() as caught:
        signal.raise_signal(number)
        with pytest.raises(Interrupted), caught.raising():
            pytest.fail("the block started")
    with pytest.raises(Interrupted), catch_signals(immediate=True):
        signal.raise_signal(number)


def test_a_second_signal_exits_at_once():
    pid = os.fork()
    if pid == 0:
        try:
            with catch_signals():
                signal.raise_signal(signal.SIGTERM)
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    time.sleep(60)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130

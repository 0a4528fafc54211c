"""Signals wait where something would be lost, and nowhere else; a second one waits nowhere."""

import os
import signal
import time

import pytest

from regard.errors import Interrupted
from regard.training.signals import catch_signals

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_waits_until_it_is_asked_for(number):
    before = signal.getsignal(number)
    with catch_signals() as caught:
        signal.raise_signal(number)
        assert caught and caught.number == number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", NUMBERS)
def test_what_may_be_broken_off_is(number):
    with catch_signals() as caught, pytest.raises(Interrupted) as interruption, caught.raising():
        signal.raise_signal(number)
        pytest.fail("it went on")
    assert interruption.value.number == number and not caught.immediate
    with catch_signals() as caught:
        signal.raise_signal(number)
        with pytest.raises(Interrupted), caught.raising():
            pytest.fail("it began what is to be broken off")
    with pytest.raises(Interrupted), catch_signals(immediate=True):
        signal.raise_signal(number)


def test_a_second_signal_leaves_at_once_whatever_is_in_the_way():
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

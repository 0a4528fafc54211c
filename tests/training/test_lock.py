"""One run per folder, as long as its process lives and no longer."""

import os
import signal
import time

import pytest

from regard.errors import Mistake
from regard.training import lock
from regard.training.lock import only_run


def in_child(act):
    """The exit status of an act in another process; 2 for a mistake."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        except Mistake as mistake:
            status = 2 if "is being trained in by process" in str(mistake) else 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def hold(folder, seconds=0.0):
    with only_run(folder):
        time.sleep(seconds)


def test_a_second_process_is_told_who_was_first(tmp_path):
    with only_run(tmp_path):
        assert in_child(lambda: (lock.HELD.clear(), hold(tmp_path))) == 2
        with pytest.raises(Mistake, match="by this process already"):
            hold(tmp_path)
    assert in_child(lambda: hold(tmp_path)) == 0


def test_a_killed_process_holds_nothing_though_its_workers_live_on(tmp_path):
    pid = os.fork()
    if pid == 0:
        with only_run(tmp_path):
            if os.fork() == 0:                        # a worker, which has the file open too
                time.sleep(2)
                os._exit(0)
            (tmp_path / "held").touch()
            time.sleep(60)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    assert in_child(lambda: hold(tmp_path)) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    hold(tmp_path)


def test_where_there_are_no_locks_that_is_said_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "fcntl", None)
    hold(tmp_path)
    assert "no file locks on this system" in capsys.readouterr().err


def test_only_the_first_process_of_many_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with only_run(tmp_path), only_run(tmp_path):
        assert not (tmp_path / lock.LOCK).exists()

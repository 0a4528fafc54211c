"""One run per folder, as long as its process lives and no longer."""

import os
import signal
import time

import pytest

from regard import files
from regard.errors import UserError
from regard.files import lock_folder


def hold(folder, seconds=0.0):
    with lock_folder(folder):
        time.sleep(seconds)


def refused(said):
    """Whether that is how a process is told of another one."""
    return said.startswith("UserError(") and "is being trained in by process" in said


def test_a_second_process_is_told_who_was_first(tmp_path, in_child):
    with lock_folder(tmp_path):
        assert refused(in_child(lambda: (files.LOCKED_FOLDERS.clear(), hold(tmp_path))))
        with pytest.raises(UserError, match="by this process already"):
            hold(tmp_path)
    assert in_child(lambda: hold(tmp_path)) == ""


def test_a_killed_process_holds_nothing_though_its_workers_live_on(tmp_path, in_child):
    pid = os.fork()
    if pid == 0:
        try:
            with lock_folder(tmp_path):
                if os.fork() == 0:  # a worker, which has the file open too
                    time.sleep(2)
                    os._exit(0)
                (tmp_path / "held").touch()
                time.sleep(60)
        finally:
            os._exit(1)
    while not (tmp_path / "held").exists():
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, "the one that was to hold it is gone"
        time.sleep(0.01)
    assert refused(in_child(lambda: hold(tmp_path)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    hold(tmp_path)


def test_where_there_are_no_locks_that_is_said_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "fcntl", None)
    hold(tmp_path)
    assert "this system has no file locks" in capsys.readouterr().err


def test_only_the_first_process_of_many_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with lock_folder(tmp_path), lock_folder(tmp_path):
        assert not (tmp_path / files.LOCK_FILE).exists()

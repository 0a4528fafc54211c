"""Folder locks: one process per folder, for as long as it lives."""

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


def is_refused(error):
    """Return whether a process was refused because of another one."""
    return error.startswith("UserError(") and "is being trained in by process" in error


def test_a_second_process_is_refused_with_the_holders_pid(tmp_path, in_child):
    with lock_folder(tmp_path):
        assert is_refused(in_child(lambda: (files.LOCKED_FOLDERS.clear(), hold(tmp_path))))
        with pytest.raises(UserError, match="by this process already"):
            hold(tmp_path)
    assert in_child(lambda: hold(tmp_path)) == ""


def test_a_killed_process_releases_the_lock_while_its_workers_live(tmp_path, in_child):
    pid = os.fork()
    if pid == 0:
        try:
            with lock_folder(tmp_path):
                if os.fork() == 0:  # a worker process, which inherits the open file
                    time.sleep(2)
                    os._exit(0)
                (tmp_path / "held").touch()
                time.sleep(60)
        finally:
            os._exit(1)
    while not (tmp_path / "held").exists():
        assert os.waitpid(pid, os.WNOHANG)[0] == 0, "the process that holds the lock is gone"
        time.sleep(0.01)
    assert is_refused(in_child(lambda: hold(tmp_path)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    hold(tmp_path)


def test_a_system_without_file_locks_prints_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "fcntl", None)
    hold(tmp_path)
    assert "this system has no file locks" in capsys.readouterr().err


def test_only_rank_0_takes_the_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with lock_folder(tmp_path), lock_folder(tmp_path):
        assert not (tmp_path / files.LOCK_FILE).exists()

"""Atomic files and folders, folder locks, the cache."""

import errno
import os
import signal
import time

import pytest

from regard import files
from regard.errors import UserError
from regard.files import atomic_folder, atomic_write, cache_root, cached_folder, lock_folder, require_new_folder


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


def test_atomic_write_replaces_the_file_or_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "recipe.toml"
    atomic_write(path, "old")
    atomic_write(path, "new")
    assert path.read_text() == "new"

    def full(target, data):
        target.write_bytes(data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_and_fsync", full)
    with pytest.raises(UserError, match="disk is full"):
        atomic_write(path, "newer")
    assert path.read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["recipe.toml"]


def test_atomic_folder_replaces_the_folder_or_leaves_it(tmp_path):
    path = tmp_path / "run"
    for text in ("old", "new"):
        with atomic_folder(path) as temporary:
            (temporary / "a.txt").write_text(text)
    with pytest.raises(RuntimeError), atomic_folder(path) as temporary:
        (temporary / "a.txt").write_text("half")
        raise RuntimeError
    with pytest.raises(UserError, match=r"cannot write .*run: No such file"), atomic_folder(path) as temporary:
        (temporary / "missing" / "a.txt").write_text("")
    assert (path / "a.txt").read_text() == "new" and [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_new_folder_must_be_empty_or_absent(tmp_path):
    assert require_new_folder(tmp_path / "absent") == tmp_path / "absent" and require_new_folder(tmp_path) == tmp_path
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="already exists; choose another folder"):
            require_new_folder(path)


def test_a_cached_folder_is_built_once_and_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []

    def build(folder):
        built.append(folder)
        (folder / "data").touch()
        return {"rows": 1}

    assert cached_folder("digest", build) == cached_folder("digest", build) == cache_root() / "digest"
    assert len(built) == 1 and (cache_root() / "digest" / "data").exists()

    def fail(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write the cache .*XDG_CACHE_HOME"):
        cached_folder("other", fail)
    assert [path.name for path in cache_root().iterdir()] == ["digest"]

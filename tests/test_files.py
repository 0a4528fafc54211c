"""Atomic files and folders, folder locks, the cache."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import files
from regard.errors import UserError
from regard.files import (
    atomic_folder,
    atomic_write,
    cache_root,
    cached_folder,
    file_name,
    lock_folder,
    path_exists,
    require_new_folder,
    writing_into,
)


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


@pytest.mark.parametrize(
    "damage", ["zeroed", "cut", "missing file", "missing layout", "layout is no JSON", "layout without hashes"]
)
def test_a_damaged_cached_folder_is_built_again_and_said_so(tmp_path, monkeypatch, capsys, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []

    def build(folder):
        built.append(folder)
        (folder / "ids.npy").write_bytes(bytes(range(256)) * 16)
        return {"layout": 1}

    folder = cached_folder("digest", build)
    ids, layout = folder / "ids.npy", folder / "layout.json"
    {
        "zeroed": lambda: ids.write_bytes(bytes(2048) + ids.read_bytes()[2048:]),
        "cut": lambda: ids.write_bytes(ids.read_bytes()[:100]),
        "missing file": ids.unlink,
        "missing layout": layout.unlink,
        "layout is no JSON": lambda: layout.write_bytes(b"{"),
        "layout without hashes": lambda: layout.write_text('{"layout": 1}'),
    }[damage]()
    assert cached_folder("digest", build) == folder and len(built) == 2
    assert ids.read_bytes() == bytes(range(256)) * 16
    assert "is damaged" in (said := capsys.readouterr().err) and "building it again" in said
    assert cached_folder("digest", build) == folder and len(built) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["digest"]


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path, kind in [("pipe", "no regular file"), ("link", "a device"), (".", "a folder")]:
        with pytest.raises(UserError, match=f"it is {kind}"):
            atomic_write(tmp_path / path, b"x")
    with pytest.raises(UserError, match="/dev/null: it is a device"):
        atomic_write(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()


@given(st.text(max_size=300) | st.sampled_from(["x/../../../escaped", "..", ".", "", "/etc/passwd", "a\0b", "a" * 300]))
def test_a_file_name_made_of_any_name_stays_in_its_folder(name):
    made = file_name(name)
    path = Path("/a/b") / f"{made}.svg"
    assert Path(os.path.normpath(path)).parent == Path("/a/b") and "\0" not in made and made.isprintable()
    assert 0 < len(made.encode()) <= 120


def test_different_names_give_different_file_names():
    names = ["a b", "a:b", "a|b", "a\tb", "test", "test/2016", "x" * 200, "x" * 201]
    assert len({file_name(name) for name in names}) == len(names)
    assert file_name("test") == "test" and file_name("sst2/valid") == "sst2-valid"


@pytest.mark.parametrize("text", ["a" * 300, "a/" * 3000, "a\0b", "", "\ud800"])
def test_a_text_that_cannot_be_a_path_does_not_exist(text):
    assert path_exists(text) == (text == "")  # the empty path is the current folder


def test_a_read_only_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write"), writing_into(tmp_path / "file" / "folder"):
        pass
    with pytest.raises(UserError, match="cannot write"):
        atomic_write(tmp_path / "file" / "a.txt", b"x")

"""The last resort: whatever happens, one line and an exit status; full disks, closed streams, too little memory, bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard import cli
from regard.cli import failure
from regard.cli.options import READ_BYTES, read_batches
from regard.errors import UserError
from regard.recipe.parse import apply_override, parse_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_main(monkeypatch, capsys, tmp_path):
    """Run `main` with a verb that raises; return the status and what was printed."""
    monkeypatch.setattr(failure.tempfile, "tempdir", str(tmp_path))

    def run(error, *options):
        def raise_it():
            raise error

        monkeypatch.setattr(cli, "app", raise_it)
        monkeypatch.setattr(sys, "argv", ["regard", "verb", *options])
        try:
            cli.main()
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        raise AssertionError("main returned")

    return run


def test_a_bug_is_one_line_with_a_report_and_status_1(run_main, tmp_path):
    status, err = run_main(KeyError("attention"))
    (report,) = tmp_path.glob("regard-report-*.txt")
    assert status == 1 and err.count("\n") == 1 and str(report) in err
    assert "bug in regard, not your mistake" in err and "Traceback" not in err
    assert "Traceback" in report.read_text() and "KeyError: 'attention'" in report.read_text()


def test_debug_shows_the_traceback_of_a_bug(run_main):
    with pytest.raises(KeyError):
        run_main(KeyError("attention"), "--debug")


def test_a_report_that_cannot_be_written_is_said_so(run_main, monkeypatch):
    monkeypatch.setattr(failure.tempfile, "mkstemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    status, err = run_main(ValueError("x"))
    assert status == 1 and "no report could be written (No space left on device)" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:127] not enough memory: you tried to allocate 400 bytes.")],
)
def test_too_little_memory_is_the_users_to_cure(run_main, error):
    status, err = run_main(error)
    assert status == 2 and "there is not enough memory" in err


def test_an_unforeseen_error_of_the_system_is_one_line(run_main):
    status, err = run_main(OSError(36, "File name too long", "x" * 5000))
    assert status == 2 and "File name too long" in err and len(err) < 300


def test_debug_is_taken_from_the_options_but_not_from_the_texts():
    arguments = ["regard", "translate", "run", "--debug", "text"]
    assert failure.take_debug_flag(arguments) and arguments == ["regard", "translate", "run", "text"]
    arguments = ["regard", "translate", "run", "--", "--debug"]
    assert not failure.take_debug_flag(arguments) and arguments[-1] == "--debug"


def shell(command):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COMMAND": f"{sys.executable} -m regard"}
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line():
    done = shell("$COMMAND --help > /dev/full")
    assert done.returncode == 2 and done.stderr.splitlines() == [
        "regard: cannot write standard output: No space left on device; the output is not complete"
    ]


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_traceback(streams):
    done = shell(f"$COMMAND --version {streams}")
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_closed_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed"):
        list(read_batches(None))


def test_a_line_of_standard_input_is_bounded_and_read_no_further(monkeypatch):
    class Endless:
        """A stream of one line that never ends."""

        buffer = property(lambda self: self)
        read = 0

        def fileno(self):
            raise OSError("no file")

        def read1(self, size):
            self.read += size
            return b"a" * size

    stream = Endless()
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(UserError, match="line 1 is longer than 4,194,304 bytes"):
        list(read_batches(None))
    assert stream.read <= 4 * 2**20 + READ_BYTES


@pytest.mark.parametrize("text", ["a" + ".a" * 50_000 + "=1", "[" + "a." * 30_000 + "a]", "x={" + '"a" . ' * 9_000 + "a=1}"])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(text):
    with pytest.raises(UserError, match="a key of more than 64 parts"):
        parse_settings(text)
    with pytest.raises(UserError, match="not of the form"):
        apply_override({}, "a." * 100 + "a=1")


def test_long_words_without_dots_are_searched_in_linear_time():
    parse_settings(f"# {'a' * 10**6}\nx = '{'b-' * 10**5}'")

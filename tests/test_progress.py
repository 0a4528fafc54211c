"""Progress lines: the remaining time, lines in a pipe, and one line on a narrow terminal."""

import io
import re
import shutil
import sys

import pytest
from rich.console import Console

from regard import cli, progress
from regard.progress import ProgressLine, show_progress, track


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_every_so_often_with_the_remaining_time(clock, capsys):
    with ProgressLine(1000) as line:
        for step in range(10, 1001, 10):
            clock[0] = step / 5  # 5 steps a second
            line.update(step, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 150  15%  ETA 0:02:50" and len(lines) == 6


def test_a_resumed_run_does_not_count_the_steps_before(clock, capsys):
    with ProgressLine(1000) as line:
        line.begin_at(900)
        clock[0] = 100.0
        line.update(950, "step 950")
    assert capsys.readouterr().err.splitlines() == ["step 950  95%  ETA 0:01:40"]


def test_live_line_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=60, color_system=None)
    with ProgressLine(100, console=console) as line:
        line.update(10, "step 10/100  loss 3.123  12.3k tokens/s  lr 1.0e-03  waiting for data 10% of the time")
        line._live.refresh()
    drawn = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue()))
    assert any("ETA" in row and "…" in row for row in drawn) and max(map(len, drawn)) <= 60


def test_tracking_shows_nothing_unless_asked(clock, capsys):
    def work():
        for item in track([1, 2, 3], 6, lambda item: item):
            clock[0] += 40
            yield item

    assert list(work()) == [1, 2, 3] and not capsys.readouterr().err
    with show_progress("scoring test"):
        assert list(work()) == [1, 2, 3]
    assert capsys.readouterr().err.splitlines()[0] == "scoring test  1/6  17%  ETA 0:03:20"


def test_a_total_counts_everything_that_is_tracked_inside(clock, capsys):
    with show_progress("translating", 8):
        for _ in range(2):
            for _ in track([1, 3], 4, lambda size: size):
                clock[0] += 40
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["1/8", "4/8", "5/8", "8/8"]
    assert lines[1] == "translating  4/8  50%  ETA 0:01:20"


@pytest.mark.parametrize("verb", ["translate", "world", "convert"])
def test_commands_show_progress_in_a_pipe(verb, tiny_run, tmp_path, monkeypatch, capfd):
    """A line every so often: here after every piece of work."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    (tmp_path / "in.txt").write_text("The dog sleeps.\n\nA cat sees the dog.\n" * 3, encoding="utf-8")
    shutil.copytree(tiny_run.folder, tmp_path / "tiny")
    arguments = {
        "translate": ["translate", tiny_run.folder, "--device", "cpu", "--greedy"],
        "world": ["world", "bilingual", "--number", 30, "--out", tmp_path / "world"],
        "convert": ["convert", tmp_path / "tiny", tmp_path / "hf", "--verify", "--device", "cpu"],
    }[verb]
    shown = {"translate": "translating  ", "world": "writing sentences  30/30", "convert": "converting tiny  "}[verb]
    monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
    with (tmp_path / "in.txt").open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code
    output = capfd.readouterr()
    assert shown in output.err and "ETA" in output.err and shown not in output.out
    if verb == "translate":
        assert "6/9  67%" in output.err and len(output.out.splitlines()) == 9  # empty lines are not decoded

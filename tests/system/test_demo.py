"""The demonstration as a newcomer sees it: trained from nothing, scored, pictured; and its report in a real browser."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system


def test_it_translates_resolves_it_and_aligns(demo):
    scores = json.loads((demo.folder / "scores.json").read_text())["test"]
    print(f"{demo.seconds:.0f} s", {name: score["score"] for name, score in scores.items()})
    assert scores["bleu"]["score"] >= 85
    assert scores["pronouns"]["score"] >= 80
    assert scores["alignment_error"]["score"] < 0.25
    guesses = [float(share) for share in re.findall(r"([\d.]+)%", re.search(r"pronouns: guessing by (.*)", demo.said).group(1))]
    assert len(guesses) == 3 and max(guesses) <= 45
    assert demo.said.count("\n  ") >= 10 and "report.html" in demo.said


def test_one_head_resolves_it_and_without_it_the_pronouns_suffer(demo):
    """Chosen by where it looks on validation sentences, reported on test sentences. Another head may stand in for it, as after
    training with one thread: then little is lost without the one, and most without both."""
    done = subprocess.run(
        [sys.executable, "-m", "regard", "explain", str(demo.folder), "--heads", "--number", "310", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    found, all_heads = told["antecedent_head"], [head["antecedent_accuracy"]["score"] for head in told["heads"]]
    print(found)
    assert (found["selected_on"], found["set"]) == ("valid", "test") and found["selection_accuracy"]["score"] == max(all_heads)
    assert found["number"] > 250 and found["accuracy"]["low"] > max(found["baselines"].values()) + 10
    without, whole = found["ablations"], found["pronouns"]["score"]
    assert without["head"]["score"] < whole and without["head"]["p_value"] < 0.05 and found["excess"]["score"] > 0
    assert without["both"]["score"] < whole - 15 and without["both"]["high"] < without["controls"]["low"]
    assert found["unchanged"]["score"] > 90


def test_it_takes_minutes(demo):
    """Within four on an idle machine with two cores; a busy one gets twice that here, and the figure is printed."""
    print(f"the demo took {demo.seconds:.0f} s on {os.cpu_count()} cores")
    assert demo.seconds < 480


def test_the_folder_holds_report_and_pictures(demo):
    for name in (
        "report.html",
        "pictures/attention.svg",
        "pictures/training.svg",
        "pictures/length.svg",
        "pictures/bleu-by-length-test.svg",
        "README.md",
        "outputs/test.txt",
    ):
        assert (demo.folder / name).stat().st_size > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_opens_in_a_browser_without_errors_or_requests(demo, window, scheme, width):
    report = (demo.folder / "report.html").as_uri()
    with window(width, 900, color_scheme=scheme) as (page, wrong, asked):
        page.goto(report)
        assert page.locator("svg").count() == 3 and page.locator("h1").inner_text()
        assert "it" in page.locator("svg").first.locator("text").all_text_contents()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself never scrolls sideways"
    assert not wrong and asked == [report]


def test_the_commands_it_ends_with_work(demo, tmp_path):
    commands = [line.strip() for line in demo.said.splitlines() if line.strip().startswith("regard ") and "your." not in line]
    assert len(commands) >= 3
    for command in commands:
        words = shlex.split(command)[1:]
        done = subprocess.run([sys.executable, "-m", "regard", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.strip(), (command, done.stderr)

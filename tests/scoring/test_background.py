"""Metrics computed in processes: the same to the last digit, whether or not the processes live."""

import signal
import sys

import pytest

from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.scoring import background, score_by_length, translation_scores
from regard.scoring.background import MIN_SENTENCES, background_metrics, in_background
from regard.worlds import bilingual

PAIRS = bilingual.generate(60, 3, level=1)
SOURCES, REFERENCES = [pair.source for pair in PAIRS], [pair.target for pair in PAIRS]
OUTPUTS = [" ".join(reversed(text.split())) if i % 3 else text + " \u2028 ☃" for i, text in enumerate(REFERENCES)]
FAILING = (sys.executable, "-c", "pass")


@pytest.fixture
def started(monkeypatch):
    """Return the commands of all processes that are started, on a machine with four cores."""
    commands, popen = [], background.subprocess.Popen

    def start(command, **options):
        commands.append(command)
        return popen(command, **options)

    monkeypatch.setattr(background.subprocess, "Popen", start)
    monkeypatch.setattr(background.os, "cpu_count", lambda: 4)
    return commands


@pytest.fixture
def sigpipe_ends():
    """Let SIGPIPE end this process, as in a command, whose output may go to `head`."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGPIPE, before)


@pytest.mark.usefixtures("sigpipe_ends")
@pytest.mark.parametrize("failing", [False, True])
def test_metrics_of_a_process_equal_those_computed_here_to_the_last_digit(started, monkeypatch, failing):
    monkeypatch.setattr(background, "COMMAND", FAILING if failing else background.COMMAND)
    with background_metrics(MIN_SENTENCES):
        begun = [in_background(translation_scores, OUTPUTS, REFERENCES, metrics=[name]) for name in ("bleu", "chrf", "ter")]
        by_length = in_background(score_by_length, SOURCES, OUTPUTS, REFERENCES, min_count=5)
        scores = {name: score for found in begun for name, score in found().items()}
        assert scores == translation_scores(OUTPUTS, REFERENCES)  # scores are equal if all their fields are
        assert by_length() == score_by_length(SOURCES, OUTPUTS, REFERENCES, min_count=5)
    assert len(started) == 3


def test_an_error_of_a_metric_is_raised_as_without_processes(started):
    with background_metrics(MIN_SENTENCES):
        result = in_background(translation_scores, OUTPUTS[1:], REFERENCES)
        with pytest.raises(UserError, match="59 hypotheses but 60 references"):
            result()
    assert started


def test_a_few_sentences_are_scored_here(started):
    with background_metrics(MIN_SENTENCES - 1):
        assert in_background(translation_scores, OUTPUTS, REFERENCES)()["bleu"].score > 0
    in_background(translation_scores, OUTPUTS, REFERENCES, metrics=["bleu"])
    assert not started


def test_an_evaluation_has_the_same_scores_with_and_without_processes(tiny_run, started, monkeypatch):
    plain = evaluate(tiny_run, save=False)
    assert not started
    monkeypatch.setattr(background, "MIN_SENTENCES", 1)
    found = evaluate(tiny_run, save=False)
    assert started and [(one.scores, one.by_length) for one in found] == [(one.scores, one.by_length) for one in plain]

"""The training view: it changes no weight, shows outputs and attention of every evaluation, and survives a resume."""

import json
import re

import numpy as np
import pytest

from regard.errors import Interrupted
from regard.run.train import train
from regard.show.figures.training_page import curves, thin_out, training_page
from regard.show.training_view import PAGE, SNAPSHOTS, TrainingView

STACK = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 64}
SHORT = {"steps": 6, "tokens_per_batch": 512, "evaluate_every": 2, "save_every": 2, "log_every": 1}
WORLD = {"world": {"number": 200, "held_out": 10}}
DROPOUT = {"regularize": {"dropout": 0.2}}
TRANSLATE = {
    "data": WORLD,
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "train": {**SHORT, **DROPOUT},
}
RECIPES = {
    "translate": TRANSLATE,
    "language": {"task": "language", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": {**SHORT, **DROPOUT}},
    "masked": {"task": "masked", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": {**SHORT, **DROPOUT}},
    "classify": {"task": "classify", "data": WORLD, "tokens": {"kind": "words"}, "model": STACK, "train": {**SHORT, **DROPOUT}},
    "tag": {"task": "tag", "data": WORLD, "tokens": {"size": 300}, "model": STACK, "train": {**SHORT, **DROPOUT}},
}


def page_data(folder):
    text = (folder / PAGE).read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1]), text


@pytest.mark.parametrize("task", RECIPES)
def test_weights_are_the_same_with_and_without_the_view(task, tmp_path):
    plain = train(RECIPES[task], tmp_path / "plain", device="cpu")
    seen = train(RECIPES[task], tmp_path / "seen", device="cpu", callbacks=[TrainingView()])
    weights = [(run.folder / "model.safetensors").read_bytes() for run in (plain, seen)]
    assert weights[0] == weights[1]
    assert not (plain.folder / PAGE).exists()
    data, text = page_data(seen.folder)
    assert [shot["step"] for shot in data["snapshots"]] == [2, 4, 6] and data["finished"] and "http-equiv" not in text
    samples = data["snapshots"][-1]["samples"]
    assert len(samples) == 3 and all(sample["given"] and sample["target"] for sample in samples)
    attention = data["snapshots"][-1]["attention"]
    assert attention["shape"][2:] == [len(attention["queries"]), len(attention["keys"])]


def test_attention_of_a_translator_keeps_its_words_while_it_learns(tmp_path):
    run = train(TRANSLATE, tmp_path / "run", device="cpu", callbacks=[TrainingView()])
    shots = page_data(run.folder)[0]["snapshots"]
    words = [(shot["attention"]["queries"], shot["attention"]["keys"]) for shot in shots]
    assert all(pair == words[0] for pair in words)
    assert len({shot["attention"]["weights"] for shot in shots}) == len(shots)


def test_a_resumed_view_continues_the_one_that_was_interrupted(tmp_path):
    class Interrupting(TrainingView):
        def on_evaluate(self, step, scores, best):
            super().on_evaluate(step, scores, best)
            if step == 4:
                raise Interrupted(15)

    with pytest.raises(Interrupted):
        train(TRANSLATE, tmp_path / "run", device="cpu", callbacks=[Interrupting()])
    data, text = page_data(tmp_path / "run")
    assert not data["finished"] and "http-equiv" in text
    train(tmp_path / "run", device="cpu", resume=True, callbacks=[TrainingView()])
    data, _ = page_data(tmp_path / "run")
    assert [shot["step"] for shot in data["snapshots"]] == [2, 4, 6]
    losses = data["curves"][0]["lines"][0]["points"]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "run" / SNAPSHOTS).read_text().count("\n") == 3


def test_pages_between_evaluations_are_rare(tmp_path, monkeypatch):
    view = TrainingView(tmp_path)
    clock = iter(np.arange(0, 1e6, 0.5).tolist())
    monkeypatch.setattr("regard.show.training_view.time.perf_counter", lambda: next(clock))
    written = []
    monkeypatch.setattr("regard.show.training_view.atomic_write", lambda path, text: written.append(path))
    for step in range(1, 1001):
        view.on_step(step, {"loss": 1.0})
    assert len(written) <= 11  # half a second each: at most one in fifty seconds of the 500


def test_curves_hold_the_log_and_long_ones_are_thinned_out():
    records = [{"step": step, "loss": 1 / step, "learning_rate": 1e-3} for step in range(1, 5001)]
    records.append({"step": 5000, "valid_loss": 0.5, "valid_bleu": 30.0})
    loss, bleu, rate = curves(records, ["valid_bleu", "valid_accuracy"])
    assert (loss["title"], bleu["title"], rate["title"]) == ("loss", "BLEU", "learning rate")
    points = loss["lines"][0]["points"]
    assert points[0] == [1, 1.0] and points[-1][0] == 5000 and len(points) == 1200
    assert bleu["lines"][0]["points"] == [[5000, 30.0]] and thin_out([1, 2], 5) == [1, 2]
    assert "<img" not in training_page({"name": "<img src=x>", "steps": 1, "task": "x"}, [], [])

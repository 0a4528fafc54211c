"""`evaluate --metric`: COMET through a stand-in for its package, whose weights the tests do not have, and sacreBLEU's metrics."""

import builtins
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.scoring import translation_scores
from regard.scoring.comet import COMET_MODEL


class StubModel:
    """Scores an output by the fraction of its reference's words that it has, halved if the source is not there."""

    def predict(self, samples, batch_size, gpus, progress_bar):
        assert gpus == 0 and not progress_bar
        scores = []
        for sample in samples:
            words, theirs = set(sample["mt"].split()), set(sample["ref"].split())
            scores.append(len(words & theirs) / len(theirs) if sample["src"] else 0.0)
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def stub(monkeypatch):
    """Put a stand-in for the package `comet` where it is imported; return what it was asked to open."""
    asked = []
    module = ModuleType("comet")

    def download_model(name):
        if name == "no/model":
            raise KeyError("Model 'no/model' not supported by COMET.")
        return f"/cache/{name}/model.ckpt"

    module.download_model = download_model
    module.load_from_checkpoint = lambda path: asked.append(path) or StubModel()
    monkeypatch.setitem(sys.modules, "comet", module)
    return asked


def test_comet_is_a_hundred_times_the_mean_sentence_score_with_an_interval(stub, tiny_run):
    (plain,), (result,) = evaluate(tiny_run, save=False), evaluate(tiny_run, metrics=["comet"], save=False)
    pairs = result.examples
    samples = [{"src": s, "mt": o, "ref": r} for s, o, r in zip(pairs.source, result.outputs, pairs.target)]
    expected = StubModel().predict(samples, 1, 0, False).system_score
    found = result.scores["comet"]
    assert found.score == pytest.approx(100 * expected) and found.low < found.score < found.high
    assert f"model:{COMET_MODEL}|" in found.signature and "recipe:" in found.signature
    assert stub == [f"/cache/{COMET_MODEL}/model.ckpt"]
    assert {name: score for name, score in result.scores.items() if name != "comet"} == plain.scores


def test_comet_takes_a_checkpoint_file_or_another_model(stub, tiny_run, tmp_path):
    (tmp_path / "mine.ckpt").write_bytes(b"")
    for model, opened in ((tmp_path / "mine.ckpt", str(tmp_path / "mine.ckpt")), ("a/b", "/cache/a/b/model.ckpt")):
        done = CliRunner().invoke(
            app,
            ["evaluate", str(tiny_run.folder), "--metric", f"comet:{model}", "--metric", "chrf++", "--json", "--device", "cpu"],
        )
        assert done.exit_code == 0, done.output
        rows = {row["metric"]: row for row in map(json.loads, done.stdout.splitlines())}
        assert f"model:{model}|" in rows[f"comet:{model}"]["signature"] and stub.pop() == opened
    (result,) = evaluate(tiny_run, save=False)
    expected = translation_scores(result.outputs, result.examples.target, metrics=["chrf++"])["chrf++"].score
    assert rows["chrf++"]["score"] == pytest.approx(expected, abs=1e-3)
    with pytest.raises(
        UserError, match=r"no/model is neither a checkpoint file nor to be had from the hub; give --metric comet:FILE"
    ):
        evaluate(tiny_run, metrics=["comet:no/model"], save=False)


def test_comet_that_is_not_installed_is_refused_before_anything_is_decoded(monkeypatch, tiny_run):
    imported = builtins.__import__

    def without_comet(name, *more, **options):
        if name == "comet":
            raise ImportError(name)
        return imported(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without_comet)
    monkeypatch.setattr(type(tiny_run), "_score", lambda *_: pytest.fail("decoded"))
    with pytest.raises(UserError, match=r"^--metric comet: COMET is not installed; pip install 'regard\[comet\]'$"):
        evaluate(tiny_run, metrics=["comet"], save=False)


def test_unknown_metrics_and_other_tasks_are_refused(tiny_run, image_runs):
    with pytest.raises(UserError, match="no metric 'commet'; did you mean 'comet'"):
        evaluate(tiny_run, metrics=["commet"], save=False)
    with pytest.raises(UserError, match=r"--metric comet scores translations; .* classifies images"):
        evaluate(image_runs["classify"], metrics=["comet"], save=False)

"""What a run folder says of its data, and the warning when runs are compared on training data."""

import json

import pytest

from regard.corpus.dataset import read_dataset
from regard.corpus.fingerprint import fingerprint
from regard.errors import UserError
from regard.run.card import card
from regard.run.evaluate import compare_runs
from regard.run.train import train

SHAPE = {"kind": "transformer", "layers": 1, "width": 16, "heads": 2, "feed_forward": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two classifiers: the second was trained on the test set of the first."""
    folder = tmp_path_factory.mktemp("data")
    lines = [f"text number {i}\t{'ab'[i % 2]}\n" for i in range(60)]
    for name, part in {"all": lines, "some": lines[:40], "valid": lines[40:45], "rest": lines[45:]}.items():
        (folder / f"{name}.tsv").write_text("".join(part))

    def run(name):
        data = {"root": str(folder), "train": [f"{name}.tsv"], "valid": ["valid.tsv"], "test": {"rest": ["rest.tsv"]}}
        settings = {"task": "classify", "data": data, "model": SHAPE, "train": {"steps": 2, "evaluate_every": 2, "save_every": 2}}
        return train(settings, folder / f"run-{name}", device="cpu")

    return run("some"), run("all")


def test_comparison_on_training_data_warns(runs, capsys):
    compare_runs(runs)
    error = " ".join(capsys.readouterr().err.split())
    assert "run-all was trained on 15 of the 15 distinct examples of rest" in error and "run-some was trained" not in error
    compare_runs([runs[0], runs[0]])
    assert "was trained on" not in capsys.readouterr().err


def test_damaged_hashes_are_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(runs[0], "folder", tmp_path)
    (tmp_path / "training_hashes.bin").write_bytes(b"123")
    with pytest.raises(UserError, match=r"training_hashes\.bin is damaged"):
        compare_runs(runs)


def test_data_json_has_schema_and_fingerprint(runs):
    run = runs[0]
    record = json.loads((run.folder / "data.json").read_text())
    assert record["schema"] == {"kind": "LabelledTexts", "fields": ["text", "label"], "labels": ["a", "b"]}
    assert record["settings"] == {"text": 0, "label": 1}
    data = read_dataset(run.recipe.data)
    assert record["sets"]["training"] == {"examples": 40, "sha256": fingerprint(data.train)}
    assert f"40 examples, SHA-256 `{fingerprint(data.train)[:16]}…`" in card(run)

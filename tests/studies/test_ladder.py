"""The ladder: every variant is trained and reported, and an ablation changes one thing."""

import json

import pytest

from regard.run.train import to_recipe
from regard.studies.ladder import ablation_variants, ladder_variants, merge_settings, run_ladder
from regard.tasks import build_recipe


@pytest.fixture
def short(tiny_settings):
    tiny_settings["train"].update(steps=6, evaluate_every=3, save_every=3, log_every=2, evaluate_sentences=4)
    tiny_settings["data"]["world"].update(number=300, held_out=20)
    return tiny_settings


def longest(result):
    return max(result.results[0].examples.source[:50], key=lambda text: len(text.split()))


def test_ladder_trains_and_reports_every_variant(short, tmp_path):
    report, results = run_ladder(short, tmp_path / "ladder", device="cpu")
    assert [result.row()[0] for result in results] == [result.variant.name for result in results]
    rows = json.loads((tmp_path / "ladder" / "ladder.json").read_text())
    assert [row["name"] for row in rows] == [
        "RNN",
        "RNN with attention",
        "RNN with attention, CoVe",
        "Transformer",
        "Universal Transformer",
    ]
    assert all(row["scores"]["bleu"]["low"] <= row["scores"]["bleu"]["high"] and row["seconds"] > 0 for row in rows)
    text = report.read_text()
    drawn = [result for result in results if result.run._attends and result.run._best([longest(result)])[0].tokens]
    assert text.count("<svg") == 1 + len(drawn) and drawn  # the curve, and the models that attend and translate at all
    assert "RNN with attention, CoVe" in text


def test_ablation_changes_one_setting(short):
    base = to_recipe(short)
    settings = base.model_dump(mode="json", exclude_none=True)
    for variant in ablation_variants(base)[1:]:
        changed = build_recipe(merge_settings(settings, variant.change))
        different = {
            key
            for section in ("model", "train", "decode")
            for key, value in changed.model_dump()[section].items()
            if value != base.model_dump()[section][key]
        }
        assert 1 <= len(different) <= 2 and variant.claim, (variant.name, different)
    assert len(ladder_variants(base)) == 5

"""Reproduction of reported scores: within, outside, not reported; resumed after a kill; the verb's exit status."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.recipe import ReportedScore
from regard.studies import reproduce as module
from regard.studies.reproduce import Reproduction, reproduce
from regard.studies.sweep import SeedScores
from regard.tasks import parse_recipe, read_recipe

REPORTED = ReportedScore(mean=42.5, spread=0.3, seeds=[1, 2, 3])


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([42.5], "within"),
        ([42.2, 43.6], "within"),
        ([41.9, 41.9], "within"),
        ([41.0, 42.0], "0.40 below"),
        ([43.4, 43.0, 43.5], "0.20 above"),
    ],
)
def test_a_mean_within_two_standard_deviations_is_within(scores, verdict):
    found = Reproduction("flickr2016", "bleu", SeedScores({str(seed): score for seed, score in enumerate(scores)}), REPORTED)
    assert found.verdict == verdict and found.is_within == (verdict == "within")


def test_the_line_for_the_recipe_reads_back_as_the_score():
    found = Reproduction("length 3", "bleu", SeedScores({"1": 41.0, "2": 42.0}), None)
    (score,) = tomllib.loads(found.to_toml())["score"]["length 3"].values()
    assert score == {"mean": 41.5, "spread": 0.71, "seeds": [1, 2]}
    recipe = parse_recipe(f"{found.to_toml()}\n[data.world]")
    assert recipe.score["length 3"]["bleu"].interval == pytest.approx((40.08, 42.92))


def test_a_reported_score_changes_neither_the_digest_nor_the_trained_inputs():
    recipe = parse_recipe("score.test.bleu = { mean = 1.0, spread = 0.1, seeds = [1, 2] }\n[data.world]")
    assert recipe.digest() == parse_recipe("[data.world]").digest()
    with pytest.raises(UserError, match=r"score.test.bleu.spread is missing"):
        parse_recipe("score.test.bleu = { mean = 1.0, seeds = [1, 2] }\n[data.world]")


def report(recipe, text, score, metric="exact"):
    recipe.write_text(f'score."length 3".{metric} = {{ mean = {score}, spread = 0.5, seeds = [1, 2] }}\n{text}')


def test_a_recipe_without_a_reported_score_says_so_before_it_is_trained(recipe, tmp_path):
    with pytest.raises(UserError, match=r"reports no score.*--measure"):
        reproduce(recipe, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_the_verb_measures_then_confirms_and_fails_outside_the_interval(recipe, tmp_path, monkeypatch):
    """Finished runs are kept: a killed call that is repeated trains only what is missing."""
    out, options = str(tmp_path / "out"), ["--device", "cpu", "--out", str(tmp_path / "out")]
    runner, text = CliRunner(), recipe.read_text()
    reproduce(recipe, out, [1], device="cpu", measure=True)  # a call that was ended after its first seed
    first = tmp_path / "out" / "seed=1" / "model.safetensors"
    before = first.stat().st_mtime_ns
    measured = runner.invoke(app, ["reproduce", str(recipe), "--measure", "--seeds", "1 2", *options])
    assert measured.exit_code == 0, measured.output
    assert first.stat().st_mtime_ns == before
    recipe.write_text("\n".join(line for line in measured.stdout.splitlines() if line.startswith("score.")) + text)
    assert read_recipe(recipe).score["length 3"]["perplexity"].seeds == [1, 2]
    monkeypatch.setattr(module, "run_sweep", lambda *_, **__: None)  # the runs are there
    confirmed = runner.invoke(app, ["reproduce", str(recipe), "--json", *options])
    assert confirmed.exit_code == 0 and {one["verdict"] for one in json.loads(confirmed.stdout)["scores"]} == {"within"}
    report(recipe, text, 77)
    failed = runner.invoke(app, ["reproduce", str(recipe), *options])
    assert failed.exit_code == 1 and "77.0" in failed.stdout and "below" in failed.stdout and "0.00" in failed.stdout
    report(recipe, text, 77, "exat")
    with pytest.raises(UserError, match=r"score.length 3.exat is not measured; there are: score.length 3.exact"):
        reproduce(recipe, out, device="cpu")


def test_seeds_are_numbers(recipe):
    result = CliRunner().invoke(app, ["reproduce", str(recipe), "--seeds", "1,two"])
    assert isinstance(result.exception, UserError) and "'two' is not a seed" in str(result.exception)

"""Runs that predict together: what `regard.load(…, ensemble=…)` and `--ensemble` do and refuse."""

import json

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.run.train import train


@pytest.fixture(scope="module")
def other_run(tiny_run, tmp_path_factory):
    """Train `tiny_run` once more with another seed; the tokenizer is the same, as the data are."""
    return train(tiny_run.recipe.model_copy(update={"seed": 7}), tmp_path_factory.mktemp("runs") / "other", device="cpu")


def test_members_translate_together(tiny_run, other_run):
    text = "The goat finds the cake."
    together = regard.load(tiny_run.folder, ensemble=[other_run.folder]).translate(text)
    reversed_order = regard.load(other_run.folder, ensemble=[tiny_run.folder]).translate(text)
    assert together.text == reversed_order.text
    assert together.score == pytest.approx(reversed_order.score, abs=1e-5)
    assert together.score != pytest.approx(tiny_run.translate(text).score, abs=1e-3)


def test_perplexity_of_an_ensemble_is_at_most_the_geometric_mean_of_its_members(tiny_run, other_run):
    """log of a mean is at least the mean of logs (Jensen's inequality)."""

    def perplexity(run):
        return evaluate(run, save=False)[0].scores["perplexity"].score

    together = perplexity(regard.load(tiny_run.folder, ensemble=[other_run.folder]))
    assert together < (perplexity(tiny_run) * perplexity(other_run)) ** 0.5


def test_captioners_of_different_kinds_caption_together(image_runs, image_path):
    one, other = image_runs["caption"], image_runs["lstm"]
    together = regard.load(one.folder, ensemble=[other.folder])
    assert together.caption(image_path).text
    scores = {run.folder: evaluate(run, save=False)[0].scores["perplexity"].score for run in (one, other)}
    assert evaluate(together, save=False)[0].scores["perplexity"].score < (scores[one.folder] * scores[other.folder]) ** 0.5


def test_scores_of_an_ensemble_name_every_recipe_and_are_not_saved(tiny_run, other_run):
    before = (tiny_run.folder / "scores.json").read_bytes(), (tiny_run.folder / "README.md").exists()
    done = CliRunner().invoke(app, ["evaluate", str(tiny_run.folder), "--ensemble", str(other_run.folder), "--json"])
    lines = done.stdout.splitlines()
    signature = f"recipe:{tiny_run.recipe.digest()}+{other_run.recipe.digest()}|"
    assert lines and all(signature in json.loads(line)["signature"] for line in lines)
    assert before == ((tiny_run.folder / "scores.json").read_bytes(), (tiny_run.folder / "README.md").exists())
    with pytest.raises(UserError, match="cannot be saved"):
        regard.load(tiny_run.folder, ensemble=[other_run.folder]).evaluate(save=True)


def test_ctranslate2_does_not_decode_an_ensemble(tiny_run, other_run):
    run = regard.load(tiny_run.folder, ensemble=[other_run.folder], device="cpu")
    with pytest.raises(UserError, match="ensemble"):
        run.use_engine("ctranslate2")
    run.use_engine("auto")
    assert run._engine is None


def test_ensembles_that_cannot_be_are_refused(tiny_run, image_runs, tmp_path):
    settings = tiny_run.recipe.model_dump(exclude_none=True)
    smaller = train(
        {**settings, "tokens": {**settings["tokens"], "size": settings["tokens"]["size"] - 20}},
        tmp_path / "smaller",
        device="cpu",
    )
    for first, other, message in [
        (tiny_run, image_runs["caption"], "captions images, but .* translates"),
        (image_runs["classify"], image_runs["classify"], "for runs that write text"),
        (tiny_run, smaller, "train both with the same tokens.file"),
    ]:
        with pytest.raises(UserError, match=message):
            regard.load(first.folder, ensemble=[other.folder])

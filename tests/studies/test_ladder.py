"""The ladder: every variant is trained and reported, and an ablation changes one thing."""

import json
from types import SimpleNamespace

import pytest

from regard.errors import UserError
from regard.plan.planner import build_on_meta
from regard.run.train import to_recipe
from regard.studies.ladder import results_table, run_ladder
from regard.studies.ladder_plan import build_rung, with_minutes
from regard.studies.report import count_parameters
from regard.studies.variants import ablation_variants, ladder_variants, merge_settings
from regard.tasks import build_recipe, read_recipe


@pytest.fixture
def short(tiny_settings):
    tiny_settings["train"].update(steps=6, evaluate_every=3, save_every=3, log_every=2, evaluate_sentences=4)
    tiny_settings["data"]["world"].update(number=300, held_out=20)
    return tiny_settings


def longest(result):
    return max(result.first.results[0].examples.source[:50], key=lambda text: len(text.split()))


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
    drawn = [result for result in results if result.first.run._attends and result.first.run._best([longest(result)])[0].tokens]
    assert text.count("<svg") == 1 + len(drawn) and drawn  # the curve, and the models that attend and translate at all
    assert "RNN with attention, CoVe" in text


def test_table_leaves_out_metrics_that_no_model_has():
    rows = [["RNN", "1.0", "–", "–", "2.0", "10", "6 steps"], ["Transformer", "2.0", "1.0", "–", "1.0", "10", "6 steps"]]
    header, kept = results_table([SimpleNamespace(row=lambda row=row: row) for row in rows])
    assert header == ["", "BLEU", "longest third", "perplexity", "parameters", "training"]
    assert kept == [row[:3] + row[4:] for row in rows]


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


RUNGS = {
    "rnn-with-attention": {"model": {"width": 24}, "train": {"optimizer": {"learning_rate": 5e-3}}},
    "transformer": {"model": {"width": 16, "heads": 2}},
}


def test_rungs_have_their_own_settings_and_share_the_rest(short):
    base = to_recipe({**short, "ladder": {"rungs": RUNGS}})
    recipes = {variant.folder: build_rung(base, variant, base.ladder) for variant in ladder_variants(base)}
    attention, rnn, transformer = (recipes[name] for name in ("rnn-with-attention", "rnn", "transformer"))
    assert (attention.model.width, attention.train.optimizer.learning_rate) == (24, 5e-3)
    assert (transformer.model.width, transformer.model.heads) == (16, 2)
    assert rnn.train.optimizer == transformer.train.optimizer == base.train.optimizer
    assert rnn.model.width == 2 * base.model.width
    assert all(recipe.data == base.data and recipe.ladder is None for recipe in recipes.values())


def test_widths_are_fitted_to_a_number_of_parameters(short):
    base = to_recipe({**short, "ladder": {"parameters": 400_000}})
    for variant in ladder_variants(base):
        recipe = build_rung(base, variant, base.ladder)
        size = recipe.tokens.size
        parameters = count_parameters(build_on_meta(recipe, (size, size)))
        assert parameters == pytest.approx(400_000, rel=0.15), variant.name
        if variant.pretrain is not None:
            assert build_rung(base, variant.pretrain, base.ladder).model == recipe.model, "its weights fit"


def test_steps_follow_from_the_time_and_keep_their_proportions(short):
    base = to_recipe(short)
    longer = with_minutes(base, minutes=0.5, seconds_per_step=0.25)
    assert longer.train.steps == 120 and longer.train.evaluate_every == 60 == longer.train.save_every
    assert longer.train.schedule.warmup_steps == round(base.train.schedule.warmup_steps * 120 / base.train.steps)


def test_a_ladder_of_minutes_and_seeds_times_each_model_once_and_reports_means(short, tmp_path, capsys):
    models = ["transformer"]
    short["ladder"] = {"minutes": 0.002, "seeds": [1, 2], "models": models, "rungs": {"transformer": RUNGS["transformer"]}}
    report, results = run_ladder(short, tmp_path, device="cpu")
    assert [result.variant.folder for result in results] == models
    timings = json.loads((tmp_path / "timings.json").read_text())
    assert len(timings) == 1
    rows = json.loads((tmp_path / "ladder.json").read_text())
    for result, row, seconds in zip(results, rows, timings.values()):
        steps = max(10, round(0.12 / seconds))
        for seed in (1, 2):
            recipe = read_recipe(tmp_path / f"{result.variant.folder}-seed-{seed}" / "recipe.toml")
            assert (recipe.seed, recipe.train.steps) == (seed, steps)
        assert row["steps"] == steps and row["seconds"] == pytest.approx(steps * seconds, abs=0.1)
        scores = [result.seeds[seed].results[0].scores["perplexity"].score for seed in (1, 2)]
        assert row["by_seed"]["perplexity"]["mean"] == pytest.approx(sum(scores) / 2) and "±" in result.row()[4]
    assert "Transformer: " in capsys.readouterr().err
    again = (tmp_path / "timings.json").read_bytes(), (tmp_path / "transformer-seed-1" / "model.safetensors").stat().st_mtime_ns
    assert run_ladder(short, tmp_path, device="cpu")[0] == report
    assert again == (
        (tmp_path / "timings.json").read_bytes(),
        (tmp_path / "transformer-seed-1" / "model.safetensors").stat().st_mtime_ns,
    )


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ({"rungs": {"transformr": {}}}, r"ladder has no model 'transformr'; did you mean 'transformer'\?"),
        ({"models": ["lstm"]}, "there are: rnn, rnn-with-attention"),
        ({"rungs": {"rnn": {"model": {"widht": 4}}}}, r"ladder.rungs.rnn: no setting 'widht' in model; did you mean 'width'\?"),
    ],
)
def test_unknown_models_and_settings_of_a_ladder_are_refused_before_training(short, tmp_path, ladder, message):
    with pytest.raises(UserError, match=message):
        run_ladder({**short, "ladder": ladder}, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()

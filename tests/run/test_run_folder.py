"""Run folders: contents, loading, resuming, evaluation and model cards."""

import json
import shutil

import pytest
import torch

import regard
from regard.errors import UserError
from regard.run.card import card, write_card
from regard.run.evaluate import compare_runs, evaluate, score_set, write_scores
from regard.run.train import train


def test_run_folder_holds_recipe_tokenizer_weights_logs_and_environment(tiny_run):
    names = {path.name for path in tiny_run.folder.iterdir()}
    assert {
        "recipe.toml",
        "tokenizer.json",
        "config.json",
        "model.safetensors",
        "checkpoints",
        "log.jsonl",
        "scores.json",
        "environment.json",
    } <= names
    config = json.loads((tiny_run.folder / "config.json").read_text())
    assert config["parameters"] == sum(p.numel() for p in tiny_run.model.parameters())
    environment = json.loads((tiny_run.folder / "environment.json").read_text())
    assert environment["packages"]["torch"] in (torch.__version__.split("+")[0], torch.__version__)


def test_loaded_run_translates_like_the_trained_run(tiny_run):
    again = regard.load(tiny_run.folder, device="cpu")
    texts = tiny_run.data.valid.source[:8]
    assert again._best(texts) == tiny_run._best(texts)


def test_scores_have_confidence_intervals_and_signatures(tiny_run):
    scores = json.loads((tiny_run.folder / "scores.json").read_text())["test"]
    assert {"bleu", "chrf", "ter", "perplexity", "pronouns", "alignment_error"} == set(scores)
    for score in scores.values():
        assert score["low"] <= score["score"] <= score["high"]
        assert f"recipe:{tiny_run.recipe.digest()}" in score["signature"] and "engine:regard" in score["signature"]
    assert "case:mixed" in scores["bleu"]["signature"]


def test_evaluate_scores_given_source_and_reference_files(tiny_run, tmp_path):
    valid = tiny_run.data.valid
    (tmp_path / "mine.en").write_text("\n".join(valid.source) + "\n")
    (tmp_path / "mine.de").write_text("\n".join(valid.target) + "\n")
    (result,) = evaluate(tiny_run, source=tmp_path / "mine.en", reference=tmp_path / "mine.de", save=False)
    assert result.name == "mine" and result.scores["chrf"].score > 0


def test_compare_runs_finds_no_difference_between_a_run_and_itself(tiny_run):
    for rows in compare_runs([tiny_run, tiny_run]).values():
        assert all(row["p_value"] is None or row["p_value"] > 0.5 for row in rows)


def test_model_card_states_scores_intended_use_misuse_and_limits(tiny_run):
    write_card(tiny_run)
    text = card(tiny_run)
    assert (tiny_run.folder / "README.md").read_text() == text
    for heading in ("Scores", "Intended use", "Misuse", "Limits"):
        assert f"## {heading}" in text
    assert "bilingual world" in text and "| test | bleu |" in text


def test_resumed_training_equals_uninterrupted_training_bit_for_bit(tiny_run, tiny_settings, tmp_path):
    """Compare 60 steps at once with 30 + 30 steps through `regard.run.train`."""
    half = train(tiny_settings, tmp_path / "half", device="cpu")
    for name in ("model.safetensors", "checkpoints/step-00000060"):
        path = half.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = train(half.folder, resume=True, device="cpu")
    log = [json.loads(line) for line in (half.folder / "log.jsonl").read_text().splitlines()]
    assert any(record.get("event") == "resume" and record["step"] == 30 for record in log)
    assert (again.folder / "model.safetensors").read_bytes() == (tiny_run.folder / "model.safetensors").read_bytes()


def test_the_log_says_how_long_each_part_of_the_command_took(tiny_run):
    records = [json.loads(line) for line in (tiny_run.folder / "log.jsonl").read_text().splitlines()]
    begin, end = (next(record for record in records if record.get("event") == event) for event in ("begin", "end"))
    start = sum(begin[f"seconds_{part}"] for part in ("tokenizer", "device", "model", "tokens", "batches", "optimizer"))
    assert 0 < start < begin["seconds_process"] < end["seconds_process"]
    scored = next(record for record in records if record.get("event") == "scored")
    assert {"seconds_scoring_test", "seconds_score_files"} < scored.keys()
    assert end["seconds_process"] < scored["seconds_process"]
    assert 0 < end["seconds_first_step"] < end["seconds_training"]
    assert end["seconds_process"] - begin["seconds_process"] == pytest.approx(end["time"] - begin["time"], abs=0.1)
    assert 0 < end["seconds_evaluating"] + end["seconds_saving"] < end["seconds_training"] < end["time"] - begin["time"] + 0.01


def test_train_refuses_to_overwrite_a_run_folder(tiny_run, tiny_settings):
    before = (tiny_run.folder / "recipe.toml").read_bytes()
    with pytest.raises(UserError, match="already holds a run"):
        train(tiny_settings, tiny_run.folder)
    assert (tiny_run.folder / "recipe.toml").read_bytes() == before


def test_train_reuses_the_folder_of_a_run_that_failed_before_its_first_step(tiny_settings, tmp_path):
    tiny_settings["train"].update(steps=2, evaluate_every=2)
    with pytest.raises(UserError, match="tokens long"):
        train({**tiny_settings, "model": {**tiny_settings["model"], "max_length": 8}}, tmp_path / "run", device="cpu")
    assert train(tiny_settings, tmp_path / "run", device="cpu")._best(["The dog sleeps."])


def test_a_test_set_of_any_name_is_written_inside_the_run_folder(tiny_run, tmp_path):
    folder = tmp_path / "a" / "b" / "run"
    shutil.copytree(tiny_run.folder, folder, ignore=shutil.ignore_patterns("checkpoints", "outputs", "figures"))
    run = regard.load(folder, device="cpu")
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    (result,) = [score_set(run, "x/../../../escaped", run.data.valid)]
    write_scores(run, [result])
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before
    assert len(list((folder / "figures").iterdir())) == len(list((folder / "outputs").iterdir())) == 1


def test_a_run_that_does_not_exist_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.run.load.download", lambda *_: pytest.fail("asked the hub"))
    for name in ("runs/typo", "./typo", "x" * 300, "runs/" + "x" * 300):
        with pytest.raises(UserError, match="does not exist"):
            regard.load(name)

"""Starter recipes: which columns they choose, what they say they understood, and what fits in a time budget."""

import json

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.plan import budget
from regard.plan.budget import fit_to_budget
from regard.run.train import train
from regard.tasks import parse_recipe, starter_recipe
from regard.tasks.starters.starter import Starter, StarterOptions

WORDS = ["a", "film", "with", "good", "actors", "and", "a", "story", "that", "no", "one", "will", "forget"]


def text(i, number=8):
    return " ".join(WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(number)) + f" {i}"


TABLES = {
    "label first": ("", lambda i: f"{['pos', 'neg'][i % 2]}\t{text(i)}", {"text": 1, "label": 0}),
    "text first": ("", lambda i: f"{text(i)}\t{['pos', 'neg'][i % 2]}", {"text": 0, "label": 1}),
    "SST-2": ("sentence\tlabel", lambda i: f"{text(i)}\t{i % 2}", {"text": "sentence", "label": "label"}),
    "CoLA": ("", lambda i: f"gj0{i % 4}\t{i % 2}\t{'*' if i % 3 else ''}\t{text(i)}", {"text": 3, "label": 1}),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        lambda i: f"{i % 2}\t{i}\t{i + 1}\t{text(i)}\t{text(i + 1)}",
        {"text": "#1 String", "text_pair": "#2 String", "label": "Quality"},
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel",
        lambda i: f"{i}\t{text(i)}\t{text(i + 1)}\t{['entailment', 'not_entailment'][i % 2]}",
        {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        lambda i: f"{i}\t{text(i)}?\t{text(i + 1)}\t{['entailment', 'not_entailment'][i % 2]}",
        {"text": "question", "text_pair": "sentence", "label": "label"},
    ),
    "unknown names": ("opinion\tnumber", lambda i: f"{text(i)}\t{i % 3}", {"text": "opinion", "label": "number"}),
}


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines if line))
    return path


def run_new(*words):
    result = CliRunner().invoke(app, ["new", "--minutes", "0", *map(str, words)], catch_exceptions=False)
    return parse_recipe(result.stdout), result.stderr


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_labelled_texts_are_found(tmp_path, name):
    header, row, columns = TABLES[name]
    path = write(tmp_path / "a.tsv", header, *map(row, range(80)))
    recipe, understood = run_new("classify", "--data", path)
    assert {role: getattr(recipe.data, role) for role in columns} == columns
    assert (recipe.data.text_pair is not None) == ("text_pair" in columns) and recipe.model.segments == 2
    assert "80 examples" in understood and f"{3 if name == 'unknown names' else 2} labels" in understood
    assert "--text" in understood and "--label" in understood


def test_numbers_of_sts_b_are_regressed(tmp_path):
    header = "index\tgenre\told_index\tsentence1\tsentence2\tscore"
    path = write(tmp_path / "a.tsv", header, *(f"{i}\tnews\t{i}\t{text(i)}\t{text(i + 1)}\t{i % 50 / 10:.3f}" for i in range(80)))
    recipe, understood = run_new("regress", "--data", path)
    assert (recipe.task, recipe.data.text, recipe.data.text_pair, recipe.data.label) == (
        "regress",
        "sentence1",
        "sentence2",
        "score",
    )
    assert "'score' is the number, from 0 to 4.9" in understood
    assert "regard new regress" in run_new("classify", "--data", path)[1]


def test_columns_can_be_named_or_counted(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\ttopic", *(f"{text(i)}\t{i % 2}\t{'abc'[i % 3]}" for i in range(80)))
    assert run_new("classify", "--data", path)[0].data.label == "label"
    assert run_new("classify", "--data", path, "--label", "topic")[0].data.label == "topic"
    assert run_new("classify", "--data", path, "--label", "2")[0].data.label == "topic"
    result = CliRunner().invoke(app, ["new", "classify", "--data", str(path), "--label", "no"])
    assert "--label no: " in str(result.exception) and "it has sentence, label, topic" in str(result.exception)


@pytest.mark.parametrize("task", ["language", "masked", "span-corruption"])
def test_text_field_of_jsonl_is_trained_on_not_the_json(tmp_path, task):
    path = write(tmp_path / "a.jsonl", *(json.dumps({"id": i, "text": text(i)}) for i in range(80)))
    recipe, _ = run_new(task, "--data", path)
    assert recipe.data.column == "text"
    shape = ["model.width=16", "model.feed_forward=16"]
    layers = ["model.encoder_layers=1", "model.decoder_layers=1"] if task == "span-corruption" else ["model.layers=1"]
    short = ["train.steps=2", "train.evaluate_every=2", "train.save_every=2", *shape, *layers]
    run = train(recipe, tmp_path / "run", overrides=short, device="cpu")
    assert run.task.name == task


PLAIN = {
    "paragraphs": ("\n\n".join(f"{text(i, 30)}." for i in range(60)), True),
    "wrapped lines": ("\n".join(text(i, 9).removesuffix(f" {i}") for i in range(200)), True),
    "sentences": ("\n".join(f"{text(i).capitalize()}." for i in range(200)), False),
}


@pytest.mark.parametrize("name", PLAIN)
def test_running_text_is_read_as_a_stream(tmp_path, name):
    content, stream = PLAIN[name]
    write(tmp_path / "a.txt", content)
    recipe, understood = run_new("language", "--data", tmp_path / "a.txt")
    assert recipe.data.stream == stream and ("--lines" if stream else "--stream") in understood
    assert run_new("language", "--data", tmp_path / "a.txt", "--lines" if stream else "--stream")[0].data.stream != stream


def test_columns_of_parallel_tables_are_found(tmp_path):
    opus = write(tmp_path / "a.jsonl", *(json.dumps({"id": i, "translation": {"en": text(i), "de": text(i)}}) for i in range(80)))
    recipe, understood = run_new("translate", "--pairs", opus)
    assert recipe.data.fields == ("translation.en", "translation.de") and "'translation.en' is the source" in understood
    assert (
        run_new("translate", "--pairs", opus, "--columns", "translation.de,translation.en")[0].data.fields[0] == "translation.de"
    )
    table = write(tmp_path / "a.tsv", "id\ten\tde\tscore", *(f"{i}\t{text(i)}\t{text(i)}\t{i / 80:.4f}" for i in range(80)))
    assert run_new("translate", "--pairs", table)[0].data.columns == ("en", "de")


def test_one_very_long_line_does_not_lengthen_every_batch(tmp_path):
    lines = [*(text(i) for i in range(300)), text(0, 20_000)]
    files = [write(tmp_path / name, *lines) for name in ("a.en", "a.de")]
    recipe = parse_recipe(starter_recipe("translate", files).to_toml())
    assert recipe.model.max_length <= 96 and recipe.data.too_long == "drop"


def test_steps_follow_the_amount_of_data(tmp_path):
    few, many = (
        [write(tmp_path / f"{number}.{side}", *(text(i) for i in range(number))) for side in ("en", "de")]
        for number in (6000, 12_000)
    )
    steps = [starter_recipe("translate", files).steps for files in (few, many)]
    assert 1.5 * steps[0] < steps[1]


SIZES = [{"preset": "small"}, {"preset": "tiny"}]


def starter(tmp_path):
    files = [write(tmp_path / name, *(text(i) for i in range(300))) for name in ("a.en", "a.de")]
    found = starter_recipe("translate", files)
    return Starter(found.template, found.values, 1000, 10, sizes=[{**found.sizes[-1], **size} for size in SIZES])


@pytest.mark.parametrize(
    "minutes, preset, steps",
    [(0, "small", 1000), (1000, "small", 1000), (15, "small", 760), (8, "tiny", 1000), (1, "tiny", 510)],
)
def test_largest_size_that_trains_long_enough_in_the_budget_is_chosen(tmp_path, monkeypatch, minutes, preset, steps):
    monkeypatch.setattr(budget, "_step_seconds", lambda starter, size, device: ([1.0, 0.1][size], "a machine"))
    recipe = parse_recipe(fit_to_budget(starter(tmp_path), minutes).toml)
    assert (recipe.model.preset, recipe.train.steps) == (preset, steps)
    assert recipe.train.steps * [1.0, 0.1][preset == "tiny"] <= 60 * minutes or minutes == 0


def test_recipe_says_what_it_costs_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_step_seconds", lambda starter, size, device: (1.0, "a machine"))
    fitted = fit_to_budget(starter(tmp_path), 10)
    assert "51 epochs; about 10 minutes on a machine" in fitted.toml
    assert "510 steps of 1 s: about 10 minutes on a machine; another budget: --minutes N (now 10)" in fitted.notes
    assert "20 minutes" in fitted.notes[1] and "1,000 steps" in fitted.notes[1]


def test_a_step_is_timed_on_this_machine(tmp_path):
    files = [write(tmp_path / name, *(text(i) for i in range(300))) for name in ("a.en", "a.de")]
    seconds, machine = budget._step_seconds(starter_recipe("translate", files), 0, "cpu")
    assert 0 < seconds < 60 and "this machine" in machine


def test_options_name_what_is_not_looked_for(tmp_path):
    path = write(tmp_path / "a.tsv", *(f"{text(i)}\t{'ab'[i % 2]}" for i in range(80)))
    found = starter_recipe("classify", [path], StarterOptions(text="1", label="0"))
    assert "text = 1 " in found.to_toml() and "label = 0 " in found.to_toml()

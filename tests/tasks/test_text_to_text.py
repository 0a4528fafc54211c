"""Text-to-text: one model of several tasks selected by a prefix, trained, scored and used per task."""

import copy
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.corpus.examples import TaskMixture
from regard.errors import UserError
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.tasks import build_recipe, parse_recipe

WORDS = ["haus", "hund", "katze", "baum", "stein", "wald"]
TRANSLATIONS = dict(zip(WORDS, ["house", "dog", "cat", "tree", "stone", "wood"]))
TRAIN = {
    "steps": 250,
    "tokens_per_batch": 1500,
    "evaluate_every": 125,
    "evaluate_sentences": 8,
    "save_every": 125,
    "optimizer": {"learning_rate": 5e-3},
    "schedule": {"warmup_steps": 20},
    "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
}
MODEL = {"preset": "tiny", "width": 48, "heads": 4, "feed_forward": 96, "norm_first": True, "max_length": 24}


def task_tables():
    return {
        "english": {"prefix": "say in English: ", "train": ["train.de", "train.en"], "valid": ["valid.de", "valid.en"]},
        "german": {"prefix": "say in German: ", "train": ["train.de", "train.en"], "held_out": 30, "reverse": True},
        "mood": {
            "prefix": "mood: ",
            "kind": "classify",
            "train": ["mood.tsv"],
            "valid": ["mood.valid.tsv"],
            "test": {"more": ["mood.valid.tsv"]},
            "columns": ["sentence", "label"],
            "labels": {"0": "sad news", "1": "glad news"},
        },
        "gist": {
            "prefix": "summarise: ",
            "kind": "summarise",
            "train": ["gist.jsonl"],
            "valid": ["gist.jsonl"],
            "weight": 2.0,
            "fields": ["text", "gist"],
        },
        "rate": {
            "root": "more",
            "prefix": ["first: ", " second: "],
            "kind": "regress",
            "train": ["rate.tsv"],
            "valid": ["rate.tsv"],
            "columns": [1, 2, 0],
            "step": 0.5,
        },
    }


def write_task_files(folder):
    """Write word-by-word translations, labelled texts, long texts with their summary as beginning, and rated text pairs."""
    rng = random.Random(1)
    for name, number in (("train", 400), ("valid", 30)):
        texts = [[rng.choice(WORDS) for _ in range(rng.randint(1, 3))] for _ in range(number)]
        (folder / f"{name}.de").write_text("".join(" ".join(text) + "\n" for text in texts))
        (folder / f"{name}.en").write_text("".join(" ".join(TRANSLATIONS[word] for word in text) + "\n" for text in texts))
        rows = [f"{i % 2}\t{rng.choice(WORDS)} {('bad', 'good')[i % 2]} {rng.choice(WORDS)}\n" for i in range(number)]
        (folder / ("mood.tsv" if name == "train" else "mood.valid.tsv")).write_text("label\tsentence\n" + "".join(rows))
    gists = [[rng.choice(WORDS) for _ in range(2)] for _ in range(200)]
    long = [{"text": " ".join(gist + ["und so"] * 30), "gist": " ".join(gist)} for gist in gists]
    (folder / "gist.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    (folder / "more").mkdir()
    (folder / "more" / "rate.tsv").write_text(
        "".join(f"{i % 3 + 0.1 * (i % 2)}\t{'sehr ' * (i % 3)}gut\t{rng.choice(WORDS)}\n" for i in range(200))
    )


def task_settings(folder, **changes):
    config = {
        "task": "text-to-text",
        "data": {"root": str(folder), "tasks": task_tables()},
        "tokens": {"kind": "words", "size": 200},
        "model": copy.deepcopy(MODEL),
        "train": copy.deepcopy(TRAIN),
        "decode": {"beam": 2},
    }
    for part, change in changes.items():
        config[part] = {**config[part], **change}
    return config


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_task_files(folder)
    return folder


@pytest.fixture(scope="module")
def run(data_folder, tmp_path_factory):
    return train(task_settings(data_folder), tmp_path_factory.mktemp("run") / "run", device="cpu")


def test_every_task_of_the_mixture_learns_and_has_scores_of_its_kind(run):
    results = {result.name: result.scores for result in evaluate(run)}
    assert set(results) == {"english/valid", "german/held_out", "mood/more", "gist/valid", "rate/valid"}
    assert results["english/valid"]["chrf"].score > 50 and results["german/held_out"]["chrf"].score > 50
    assert results["mood/more"]["accuracy"].low > 80 and results["mood/more"]["f1"].low > 80
    assert results["gist/valid"]["rougel"].low > 80 and results["rate/valid"]["spearman"].low > 70
    written = json.loads((run.folder / "scores.json").read_text())
    assert set(written) == set(results) and {"score", "low", "high", "signature"} == set(written["gist/valid"]["rouge2"])
    assert (run.folder / "outputs" / "mood-more.txt").read_text().splitlines()[:2] == ["sad news", "glad news"]


def test_validation_logs_every_task_and_their_mean(run):
    records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    record = [one for one in records if "valid_loss" in one][-1]
    losses = [record[f"{name}/valid_loss"] for name in task_tables()]
    firsts = [
        record[f"{name}/valid_{metric}"]
        for name, metric in zip(task_tables(), ["bleu", "bleu", "accuracy", "rougel", "spearman"])
    ]
    assert record["valid_loss"] == pytest.approx(np.mean(losses)) and record["valid_mean"] == pytest.approx(np.mean(firsts))


def test_prefix_or_task_option_selects_the_task(run, run_cli):
    text = "hund katze"
    one, other = (run_cli("translate", run.folder, text, "--task", name)[0] for name in ("english", "mood"))
    assert run_cli("translate", run.folder, f"say in English: {text}", "mood: " + text, "") == [one, other, ""]
    assert set(one.split()) <= set(TRANSLATIONS.values()) and other in ("sad news", "glad news")
    lines = run_cli("translate", run.folder, "--task", "english", stdin=f"{text}\n\nbaum\n")
    assert lines[0] == one and lines[1] == "" and len(lines) == 3
    assert float(run_cli("translate", run.folder, "sehr gut\thund", "--task", "rate")[0]) in (0, 1, 2)
    assert set(json.loads(run_cli("translate", run.folder, text, "--task", "english", "--json")[0])) == {"text", "score"}


def test_summarise_truncates_a_long_input(run):
    assert run._best(run._prefixed(["wald stein " + "und so " * 500], "gist"))[0].text == "wald stein"


def test_label_probabilities_are_normalized_sequence_probabilities(run, run_cli):
    texts = ["hund good baum", "stein bad wald", "good"]
    predictions = run.classify(texts, "mood")
    assert [found.label for found in predictions] == ["glad news", "sad news", "glad news"] and predictions == run.classify(texts)
    assert [found.text for found in run._best(run._prefixed(texts, "mood"))] == [found.label for found in predictions]
    (source,), (alone,) = run._ids(run._prefixed(texts[:1], "mood")), run.classify(texts[:1])
    special_tokens, log_p = run._special_tokens, {}
    for label in run._labels["mood"]:
        ids = run.tokenizers[1].encode([label])[0]
        with torch.no_grad():
            logits = run.model(
                torch.tensor([[*source, special_tokens.eos]]),
                torch.tensor([len(source) + 1]),
                torch.tensor([[special_tokens.bos, *ids]]),
            )[0].log_softmax(-1)
        log_p[label] = sum(float(logits[i, token]) for i, token in enumerate([*ids, special_tokens.eos]))
    total = sum(np.exp(value) for value in log_p.values())
    for one, other in zip(alone, predictions[0]):
        assert one.probability == pytest.approx(np.exp(log_p[one.label]) / total, abs=1e-5)
        assert (one.label, one.probability) == (other.label, pytest.approx(other.probability, abs=1e-5)), "as in the batch"
    found = json.loads(run_cli("classify", run.folder, texts[0], "--task", "mood", "--json")[0])
    assert found["label"] == "glad news" and 0.5 < found["probability"] <= 1


def test_evaluate_scores_given_files_as_a_task(run, tmp_path):
    (tmp_path / "own.de").write_text("hund\nkatze baum\n")
    (tmp_path / "own.en").write_text("dog\ncat tree\n")
    given = {"source": tmp_path / "own.de", "reference": tmp_path / "own.en"}
    (result,) = evaluate(run, **given, task="english", save=False)
    assert result.name == "english/own" and result.examples.source[0] == "say in English: hund" and "bleu" in result.scores
    (tmp_path / "own.en").write_text("1\n0\n")
    (result,) = evaluate(run, **given, task="mood", save=False)
    assert result.examples.target == ["glad news", "sad news"]
    assert [result.name for result in evaluate(run, task="gist", save=False)] == ["gist/valid"]
    with pytest.raises(UserError, match="name the task of these files: --task english or german or mood"):
        evaluate(run, **given)


@pytest.mark.parametrize(
    "words, message",
    [
        (["translate", "x", "--task", "nose"], "--task nose: .* has the tasks english, german, mood, gist, rate; name one"),
        (["classify", "x", "--task", "english"], "--task english has no labels .kind = 'translate'.; use: regard translate"),
        (["translate", "x", "--task", "rate"], "line 1 has 1 texts; the task rate reads 2, separated by tabs"),
        (["tag", "x"], "maps texts to texts .task = 'text-to-text'.; it cannot tag"),
        (["evaluate", "--task", "nose"], "--task nose"),
    ],
)
def test_commands_refuse_unknown_tasks_and_unsupported_input(run, words, message, run_cli):
    with pytest.raises(UserError, match=message):
        run_cli(words[0], run.folder, *words[1:])


def test_task_option_is_refused_by_single_task_runs(tiny_run, run_cli):
    for verb in ("translate", "evaluate"):
        with pytest.raises(UserError, match=r"--task mood: .* translates, and has no other task; leave it out"):
            run_cli(verb, tiny_run.folder, *([] if verb == "evaluate" else ["a text"]), "--task", "mood")


def test_compare_runs_per_task(run):
    found = compare_runs([run, run])
    assert {name: {row["metric"] for row in rows} for name, rows in found.items()} == {
        "english/valid": {"bleu", "chrf"},
        "german/held_out": {"bleu", "chrf"},
        "mood/more": {"accuracy"},
        "gist/valid": {"rouge1", "rouge2", "rougel"},
        "rate/valid": {"accuracy"},
    }
    assert all(row["p_value"] in (None, 1.0) for rows in found.values() for row in rows)


def test_card_and_show_command_of_a_task(run, tmp_path, run_cli):
    from regard.run.card import card

    assert "| task mood | classify: `mood: …` |" in card(run) and "--task" in card(run)
    lines = run_cli("show", run.folder, "hund katze", "--task", "english", "--out", tmp_path / "a.svg")
    assert lines == run_cli("translate", run.folder, "hund katze", "--task", "english")
    assert "English:" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    "kind, more",
    [
        ("transformer", {}),
        ("recurrent", {}),
        ("universal", {"heads": 2, "feed_forward": 32, "encoder_layers": 2, "decoder_layers": 2}),
    ],
    ids=["transformer", "recurrent", "universal"],
)
def test_loaded_and_resumed_text_to_text_runs_equal_uninterrupted_bit_for_bit(data_folder, tmp_path, kind, more):
    short = {**TRAIN, "steps": 16, "evaluate_every": 8, "save_every": 8, "evaluate_sentences": 0, "regularize": {"dropout": 0.2}}
    config = task_settings(data_folder, train=short)
    if kind != "transformer":
        config["model"] = {"kind": kind, "width": 16, "max_length": 24, **more}
    whole = train(config, tmp_path / "whole", device="cpu")
    part = shutil.copytree(whole.folder, tmp_path / "part")
    shutil.rmtree(part / "checkpoints" / "step-00000016")
    (part / "model.safetensors").unlink()
    again = train(part, resume=True, device="cpu")
    assert (again.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    texts = ["mood: good", "say in English: hund"]
    assert regard.load(whole.folder, device="cpu")._best(texts) == whole._best(texts)


WORLD = {"number": 300, "held_out": 30}
WORLD_TASKS = {
    "german": {"prefix": "to German: ", "world": WORLD},
    "english": {"prefix": "to English: ", "world": WORLD, "reverse": True},
    "it": {"prefix": "it: ", "kind": "classify", "labels": {"m": "er", "f": "sie", "n": "es"}, "world": WORLD},
}


def test_tasks_of_the_bilingual_world(tmp_path):
    config = task_settings(
        tmp_path,
        data={"tasks": WORLD_TASKS, "mixing": "equal"},
        tokens={"kind": "bpe", "size": 400},
        model={"max_length": 64},
        train={**TRAIN, "steps": 100, "evaluate_every": 100, "evaluate_sentences": 0},
        decode={"beam": 1, "max_tokens": 8},
    )
    run = train(config, tmp_path / "run", device="cpu")
    assert isinstance(run.data.valid, TaskMixture) and list(run.data.tests) == ["german/test", "english/test", "it/test"]
    german, english, it = run.data.valid.parts.values()
    assert german.source[0].removeprefix("to German: ") == english.target[0]
    assert english.source[0].removeprefix("to English: ") == german.target[0]
    assert set(it.target) == {"er", "sie", "es"} and run._labels["it"] == ["er", "es", "sie"]
    assert all({"it", "it."} & set(text.removeprefix("it: ").lower().split()) for text in it.source)
    scores = {result.name: result.scores for result in evaluate(run)}
    assert scores["german/test"]["perplexity"].high < 100 and scores["english/test"]["perplexity"].high < 100, "of 400 tokens"
    assert scores["it/test"]["perplexity"].high < 3 and "accuracy" in scores["it/test"]


def test_addition_world_as_a_task(tmp_path):
    world = {"kind": "addition", "number": 50, "held_out": 10, "longest": 2, "tests": [2, 3]}
    data = build_recipe(
        task_settings(tmp_path, data={"tasks": {"add": {"prefix": "add: ", "kind": "translate", "world": world}}})
    ).data
    from regard.corpus.dataset import read_dataset

    assert list(read_dataset(data, train=False).tests) == ["add/length 2", "add/length 3"]


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("mood", {"labels": {"0": "sad"}}, r"mood.valid.tsv:3 has the label '1', for which `labels` has no word \(0\); add it"),
        (
            "mood",
            {"labels": {"0": "news", "1": "News"}},
            r"data.tasks.mood: the vocabulary cannot tell the label .* from another",
        ),
        ("english", {"train": ["train.de", "nowhere"]}, r"no file .*nowhere; relative paths start at data.root"),
        ("rate", {"columns": [0, 1, 2]}, r"rate.tsv:1 has '\w+' where a number should be"),
        ("gist", {"too_long": "error"}, r"gist.jsonl:1 is 6\d tokens long, more than model.max_length = 24"),
        ("gist", {"fields": ["text", "nose"]}, r"gist.jsonl:1 lacks a text field 'nose'"),
    ],
)
def test_errors_in_task_files_name_the_file_and_line(data_folder, tmp_path, name, change, message):
    config = task_settings(data_folder, tokens={"lowercase": True})
    config["data"]["tasks"][name] |= change
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("mood", {"prefix": "say in German: "}, "data.tasks.mood.prefix = 'say in German: ' is also that of german; give each"),
        ("mood", {"valid": []}, "data.tasks.mood: no validation set"),
        ("mood", {"lables": {}}, "no setting 'lables' in data.tasks.mood; did you mean 'labels'?"),
        ("mood", {"kind": "clasify"}, "data.tasks.mood.kind = 'clasify': input should be 'translate'"),
        (
            "translate",
            {"prefix": "x", "world": {}, "weight": 0},
            "data.tasks.translate.weight = 0: input should be greater than 0",
        ),
        ("english", {"labels": {"a": "b"}}, "data.tasks.english: labels are for kind = 'classify'"),
        ("rate", {"columns": [0, 1]}, "data.tasks.rate: columns = .0, 1.: a column for each prefix and one for the target"),
        ("gist", {"reverse": True}, "data.tasks.gist: reverse: only a translation"),
        ("gist", {"world": {}, "train": [], "valid": []}, "data.tasks.gist: world: a world has single texts"),
        ("a/b", {"prefix": "x", "world": {}}, "data.tasks: 'a/b' is also a file name"),
        ("mood", {"prefix": None}, "data.tasks.mood.prefix"),
        (None, {"tasks": {}}, "data.tasks = {}"),
        (None, {"mixing": "fair"}, "data.mixing = 'fair': should be 'proportional', 'equal', or a temperature of at least 1"),
        (None, {"mixing": 0.5}, "data.mixing = 0.5"),
        (None, {"train": ["a"]}, "data.train: it belongs to a task; write it under .data.tasks.NAME."),
    ],
)
def test_invalid_task_settings_name_the_task_and_setting(tmp_path, name, change, message):
    config = task_settings(tmp_path)
    if name is None:
        config["data"] |= change
    else:
        config["data"]["tasks"][name] = {**config["data"]["tasks"].get(name, {}), **change}
    with pytest.raises(UserError, match=message) as caught:
        build_recipe(config)
    assert "\n" not in str(caught.value)


def test_recipe_in_the_text_to_text_documentation_is_valid():
    page = (Path(__file__).parents[2] / "docs" / "text-to-text.md").read_text(encoding="utf-8")
    recipe = parse_recipe(page.split("```toml")[1].split("```")[0])
    assert {task.kind for task in recipe.data.tasks.values()} == {"translate", "classify", "summarise", "regress"}


def test_text_to_text_recipe_round_trips_through_toml(data_folder):
    config = build_recipe(task_settings(data_folder, data={"mixing": 2.5, "size_limit": 100}))
    assert parse_recipe(config.to_toml()) == config and config.data.temperature == 2.5
    assert config.data.tasks["gist"].too_long == "truncate" and config.data.tasks["english"].too_long == "error"


def test_starter_recipe_of_several_tasks_trains(data_folder, tmp_path, run_cli):
    tables = [word for name in ("gist.jsonl", "mood.tsv", "more/rate.tsv") for word in ("--data", data_folder / name)]
    lines = run_cli(
        "new",
        "--minutes",
        "0",
        "text-to-text",
        "--source",
        data_folder / "train.de",
        "--target",
        data_folder / "train.en",
        *tables,
    )
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    short = [
        "train.steps=2",
        "train.evaluate_every=2",
        "train.evaluate_sentences=2",
        "model.width=16",
        "model.feed_forward=16",
        "tokens.size=200",
        "decode.max_tokens=4",
    ]
    run = train(tmp_path / "mine.toml", tmp_path / "run", overrides=short, device="cpu")
    assert {name: task.kind for name, task in run.recipe.data.tasks.items()} == {
        "translate": "translate",
        "gist": "summarise",
        "mood": "classify",
        "rate": "classify",
    }
    assert run.recipe.data.tasks["mood"].columns == ("sentence", "label") and run._labels["mood"] == ["0", "1"]
    for wrong, message in (
        (["--data", data_folder / "train.de"], "name your data"),
        ([], "name your data"),
        (["--data", data_folder / "mood.tsv"] * 2, "two of the files would be the task 'mood'"),
    ):
        with pytest.raises(UserError, match=message):
            run_cli("new", "--minutes", "0", "text-to-text", *wrong)

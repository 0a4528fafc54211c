"""`evaluate --data FILE` for every task: a file gives the examples, outputs and scores that the same file of the recipe gives."""

import json

import numpy as np
import pytest
from PIL import Image

from regard.errors import UserError
from regard.run.evaluate import evaluate
from regard.run.train import train

NUMBER = 12
TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 16}
ENCODER = {"kind": "transformer", "max_length": 32, **TOWER}
PATCHES = {"patch_size": 4, **TOWER}
SEQ2SEQ = {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 16, "max_length": 32}
PAIRS = "".join(f"a dog {i}\tein Hund {i}\n" for i in range(NUMBER))
IMAGE_ROWS = "".join(f"{i}.png\timage {i}\tone {i % 3}\n" for i in range(NUMBER))
QUESTION = {"question": "who sleeps", "context": "a dog sleeps", "answers": {"text": ["dog"], "answer_start": [2]}}
CASES = {  # task, file name, content, data settings, model
    "classify": (
        "classify",
        "mine.tsv",
        "".join(f"{'ab'[i % 2]}\ttext {i}\n" for i in range(NUMBER)),
        {"text": 1, "label": 0},
        ENCODER,
    ),
    "regress": ("regress", "mine.tsv", "".join(f"text {i}\t{i / 4}\n" for i in range(NUMBER)), {}, ENCODER),
    "tag": ("tag", "mine.conll", "a\tx\ndog\ty\n\n" * NUMBER, {}, ENCODER),
    "answer": ("answer", "mine.jsonl", f"{json.dumps(QUESTION)}\n" * NUMBER, {"stride": 4}, ENCODER),
    "translate": ("translate", "mine.tsv", PAIRS, {}, SEQ2SEQ),
    "reversed": ("translate", "mine.tsv", PAIRS, {"reverse": True}, SEQ2SEQ),
    "masked": ("masked", "mine.csv", "".join(f"{i},a text {i}\n" for i in range(NUMBER)), {"column": 1}, ENCODER),
    "span-corruption": ("span-corruption", "mine.txt", "a text of some words\n" * NUMBER, {}, {**SEQ2SEQ, "preset": "t5-tiny"}),
    "caption": (
        *("caption", "mine.tsv", IMAGE_ROWS, {"size": 8, "captions": [1, 2]}),
        {"encoder": {"kind": "patches", **PATCHES}, "decoder": {"kind": "transformer", **TOWER}, "max_length": 16},
    ),
    "contrastive": (
        *("contrastive", "mine.tsv", IMAGE_ROWS, {"size": 8, "captions": [1, 2]}),
        {"projection_width": 8, "image": PATCHES, "text": {**TOWER, "max_length": 16}},
    ),
    "image classify": (
        *("classify", "mine.tsv", "".join(f"{i}.png\t{'ab'[i % 2]}\n" for i in range(NUMBER)), {"size": 8, "label": 1}),
        {"kind": "vit", **PATCHES},
    ),
}


@pytest.fixture
def folder(tmp_path):
    for i in range(NUMBER):
        pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{i}.png")
    return tmp_path


def trained(folder, name):
    task, file, content, data, model = CASES[name]
    (folder / file).write_text(content)
    steps = {"steps": 1, "evaluate_every": 1, "save_every": 1, "log_every": 1}
    files = {"root": str(folder), "train": [file], "valid": [file], "test": {"mine": [file]}, **data}
    tokens = {} if name == "image classify" else {"tokens": {"size": 120}}
    return train({"task": task, "data": files, "model": model, "train": steps, **tokens}, folder / "run", device="cpu")


@pytest.mark.parametrize("name", CASES)
def test_scores_of_a_file_equal_those_of_the_same_file_in_the_recipe(folder, name):
    run = trained(folder, name)
    (expected,), (found,) = evaluate(run, save=False), evaluate(run, data=folder / CASES[name][1], save=False)
    assert found.name == expected.name == "mine" and found.examples.keys() == expected.examples.keys()
    assert found.outputs == expected.outputs
    assert found.scores == expected.scores and found.scores


def test_columns_of_a_file_that_differ_from_the_recipe_are_named(folder):
    run = trained(folder, "classify")
    (folder / "other.csv").write_text("".join(["review,stars\n", *(f"text {i},{'ab'[i % 2]}\n" for i in range(NUMBER))]))
    (expected,), (found,) = run.evaluate(), run.evaluate(folder / "other.csv", columns={"text": "review", "label": "stars"})
    assert {metric: score.score for metric, score in found.scores.items()} == {
        metric: score.score for metric, score in expected.scores.items()
    }
    with pytest.raises(UserError, match=r"--text x: .*other.csv has no such column; it has review, stars"):
        run.evaluate(folder / "other.csv", columns={"text": "x"})
    (folder / "unknown.tsv").write_text("a\tt\nc\tt\n")
    with pytest.raises(UserError, match=r"unknown.tsv:2 has the label 'c', which is not in the training data \(a, b\)"):
        run.evaluate(folder / "unknown.tsv")


def test_one_task_of_a_text_to_text_run_is_scored_on_a_file(folder):
    (folder / "mine.tsv").write_text("".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(NUMBER)))
    files = {"train": ["mine.tsv"], "valid": ["mine.tsv"], "prefix": "label: ", "kind": "classify"}
    data = {"root": str(folder), "tasks": {"label": {**files, "labels": {"a": "good", "b": "bad"}}}}
    steps = {"steps": 1, "evaluate_every": 1, "save_every": 1, "log_every": 1}
    model = {**SEQ2SEQ, "preset": "t5-tiny"}
    run = train({"task": "text-to-text", "data": data, "model": model, "train": steps, "tokens": {"size": 150}}, folder / "run")
    (expected,), (found,) = run.evaluate(), run.evaluate(folder / "mine.tsv", task="label")
    assert found.name == "label/mine" and found.examples.keys() == expected.examples.keys()
    assert found.scores == expected.scores and found.confusion.counts.sum() == NUMBER
    with pytest.raises(UserError, match="name the task of these files: --task label"):
        run.evaluate(folder / "mine.tsv")


def test_a_file_and_a_pair_of_files_exclude_each_other(folder):
    run = trained(folder, "translate")
    with pytest.raises(UserError, match=r"--data .* and --source .* are two ways"):
        run.evaluate(folder / "mine.tsv", source=folder / "mine.tsv", reference=folder / "mine.tsv")

"""Training on data in memory: every container gives the same run, and the run folder needs nothing else."""

import json

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import regard
from regard.corpus.in_memory import iterate_records, load_splits
from regard.errors import UserError
from regard.run.train import train

ROWS = [{"review": f"film number {i} is {'good' if i % 2 else 'bad'}", "stars": i % 2 + 1, "id": i} for i in range(80)]
FEATURES = datasets.Features(
    {"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=["bad", "good"]), "id": datasets.Value("int64")}
)
LABELLED = [{**row, "stars": row["stars"] - 1} for row in ROWS]
CONTAINERS = {
    "list of dicts": lambda: ROWS,
    "list of tuples": lambda: [(row["review"], row["stars"]) for row in ROWS],
    "dict of columns": lambda: {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "generator": lambda: (row for row in ROWS),
    "pandas": lambda: pd.DataFrame(ROWS),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars, lazy": lambda: pl.DataFrame(ROWS).lazy(),
    "Arrow": lambda: pa.Table.from_pylist(ROWS),
    "datasets": lambda: datasets.Dataset.from_list(ROWS),
    "datasets, streaming": lambda: datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
}
QUICK = [
    *("train.steps=2", "train.evaluate_every=2", "train.save_every=2"),
    *("model.width=16", "model.layers=1", "model.feed_forward=16", "model.heads=2"),
]


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container_has_the_same_rows(name):
    found = list(iterate_records(load_splits(CONTAINERS[name]())["train"], ("review", "stars")))
    assert [(row["review"], row["stars"]) for row in found] == [(row["review"], row["stars"]) for row in ROWS]
    json.dumps(found)  # plain values


def test_data_frame_trains_and_the_run_folder_needs_nothing_else(tmp_path):
    frame = pd.DataFrame(ROWS)
    run = regard.train(
        task="classify", train=frame, text="review", label="stars", minutes=0, out=tmp_path / "run", overrides=QUICK, device="cpu"
    )
    assert run.labels == ["1", "2"] and run.recipe.data.text == "review" and run.recipe.data.label == "stars"
    assert run.recipe.data.held_out == 4 and len(run.data.valid) == 4
    record = json.loads((run.folder / "data.json").read_text())
    assert record["settings"]["label"] == "stars" and record["sets"]["training"]["examples"] == 72
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert len(regard.load(moved, device="cpu").data.valid) == 4
    again = train(moved, resume=True, device="cpu")
    assert again.labels == run.labels


def test_labels_of_a_dataset_have_their_names_and_splits_their_use(tmp_path):
    parts = {name: datasets.Dataset.from_list(LABELLED[a:b], features=FEATURES) for name, a, b in PARTS}
    hidden = datasets.Dataset.from_list([{**row, "stars": -1} for row in LABELLED[:4]], features=FEATURES)
    data = datasets.DatasetDict({**parts, "test": hidden})
    run = train(task="classify", train=data, minutes=0, out=tmp_path / "run", overrides=QUICK, device="cpu")
    assert run.labels == ["bad", "good"] and len(run.data.valid) == 10 and not run.data.tests


def test_minus_one_is_an_ordinary_label_and_number_outside_named_labels(tmp_path):
    rows = [{"text": f"a text {i}", "label": (-1, 1)[i % 2], "offset": -1.0} for i in range(80)]
    run = train(task="classify", train=pd.DataFrame(rows), minutes=0, out=tmp_path / "run", overrides=QUICK, device="cpu")
    assert run.labels == ["-1", "1"] and len((tmp_path / "run" / "data" / "train.jsonl").read_text().splitlines()) == 80


PARTS = [("train", 0, 60), ("validation", 60, 70)]


def test_opus_rows_translate(tmp_path):
    rows = [{"id": str(i), "translation": {"en": f"the dog {i}", "de": f"der Hund {i}"}} for i in range(80)]
    shape = ["model.encoder_layers=1", "model.decoder_layers=1", *[one for one in QUICK if "layers" not in one]]
    run = train(
        task="translate",
        train=rows,
        source="translation.de",
        target="translation.en",
        valid=rows[:4],
        test={"mine": rows[:3]},
        minutes=0,
        out=tmp_path / "run",
        overrides=shape,
        device="cpu",
    )
    assert run.data.valid.source[0] == "der Hund 0" and len(run.data.tests["mine"]) == 3


@pytest.mark.parametrize(
    "task, rows",
    [
        ("language", [f"a line of text {i}" for i in range(80)]),
        ("tag", [{"tokens": ["the", f"dog{i}"], "tags": ["DET", "NOUN"]} for i in range(80)]),
        ("regress", [(f"a text {i}", i / 10) for i in range(80)]),
    ],
)
def test_other_tasks_train_on_lists(tmp_path, task, rows):
    run = train(task=task, train=rows, minutes=0, out=tmp_path / "run", overrides=QUICK, device="cpu")
    assert run.task.name == task and len(run.data.valid) == 4


def test_file_is_used_where_it_is(tmp_path):
    pd.DataFrame(ROWS).to_parquet(tmp_path / "mine.parquet")
    run = train(
        task="classify",
        train=tmp_path / "mine.parquet",
        label="stars",
        minutes=0,
        out=tmp_path / "run",
        overrides=QUICK,
        device="cpu",
    )
    assert run.recipe.data.train == ["mine.parquet"] and not (tmp_path / "run" / "data").exists()


def test_name_on_the_hub_is_loaded_by_datasets(tmp_path, monkeypatch):
    asked = []
    parts = {name: datasets.Dataset.from_list(LABELLED[a:b], features=FEATURES) for name, a, b in PARTS}
    monkeypatch.setattr(datasets, "load_dataset", lambda *words: asked.append(words) or datasets.DatasetDict(parts))
    assert set(load_splits("nyu-mll/glue/sst2")) == {"train", "valid"} and asked == [("nyu-mll/glue", "sst2")]
    monkeypatch.setattr(datasets, "load_dataset", lambda *words: (_ for _ in ()).throw(ConnectionError("no network")))
    with pytest.raises(UserError, match="no file owner/name, and the hub's data set owner/name cannot be loaded: no network"):
        train(task="classify", train="owner/name", out=tmp_path / "run")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"task": "caption", "train": []}, "task='caption': data in memory trains translate, classify"),
        ({"train": ROWS}, "task=None"),
        ({"task": "classify"}, "train= is missing"),
        ({"task": "classify", "train": []}, "train= has no rows"),
        ({"task": "classify", "train": 3}, "train= is a int; give files, a list"),
        ({"task": "classify", "train": {"a": ["x"], "b": []}}, "columns have different lengths: a 1, b 0"),
        ({"task": "classify", "train": [("a", "b", "c")]}, "a row has 3 values, and the task reads text, label"),
        ({"task": "classify", "train": ROWS, "label": "no"}, "--label no: .* has no such column; it has review, stars, id"),
        ({"task": "classify", "train": ROWS, "recipe": {}}, "give a recipe or data, not both"),
    ],
)
def test_unusable_data_is_refused_in_one_line(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as caught:
        train(**options, out=tmp_path / "run", device="cpu")
    assert "\n" not in str(caught.value)

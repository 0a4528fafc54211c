"""Every starter recipe of a text task, and the demo, can be exported to a folder that transformers opens."""

import json
from importlib.resources import files

import pytest

from regard.run.convert import convert
from regard.run.train import train
from regard.tasks import all_tasks, parse_recipe, starter_recipe
from regard.worlds import bilingual

SMALL = ["train.steps=1", "train.evaluate_every=1", "train.save_every=1", "tokens.size=300"]
PAIRS = bilingual.generate(120, 1, level=1, split="train", pronoun_fraction=0.2)
DATA = {
    "a.en": "\n".join(pair.source for pair in PAIRS),
    "a.de": "\n".join(pair.target for pair in PAIRS),
    "a.tsv": "\n".join(f"{pair.source}\t{'no' if i % 2 else 'yes'}" for i, pair in enumerate(PAIRS)),
    "numbers.tsv": "\n".join(f"{pair.source}\t{i % 7 + 0.5}" for i, pair in enumerate(PAIRS)),
    "tags.tsv": "\n\n".join("\n".join(f"{word}\t{len(word) % 3}" for word in pair.source.split()) for pair in PAIRS),
    "questions.jsonl": "\n".join(
        json.dumps({"question": "who?", "context": pair.source, "answers": [{"text": pair.source.split()[0], "start": 0}]})
        for pair in PAIRS
    ),
}
STARTERS = {
    "translate": (["a.en", "a.de"], "pegasus"),
    "text-to-text": (["a.tsv"], "pegasus"),
    "language": (["a.en"], "gpt2"),
    "masked": (["a.en"], "bert"),
    "span-corruption": (["a.en"], "t5"),
    "classify": (["a.tsv"], "bert"),
    "regress": (["numbers.tsv"], "bert"),
    "tag": (["tags.tsv"], "bert"),
    "answer": (["questions.jsonl"], "bert"),
}


def export(recipe, folder):
    run = train(recipe, folder / "run", device="cpu")
    proof = convert(run.folder, folder / "hf", verify=True, device="cpu")
    assert proof.against == "transformers" and proof.passed, proof
    return json.loads((folder / "hf" / "config.json").read_text())["model_type"]


def test_every_starter_of_texts_is_listed():
    assert set(STARTERS) == {task.name for task in all_tasks() if task.starter is not None and task.reads == ("text",)} - {
        "text-to-image"
    }


OTHERS = [name for name in STARTERS if name not in ("translate", "classify")]


@pytest.mark.parametrize("task", ["translate", "classify", *(pytest.param(name, marks=pytest.mark.system) for name in OTHERS)])
def test_starter_exports_to_hugging_face(task, tmp_path):
    for name, text in DATA.items():
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    names, family = STARTERS[task]
    text = starter_recipe(task, [tmp_path / name for name in names]).to_toml()
    assert export(parse_recipe(text, SMALL), tmp_path) == family


def test_demo_exports_to_hugging_face(tmp_path):
    text = files("regard.studies").joinpath("demo.toml").read_text(encoding="utf-8")
    small = [*SMALL, "data.world.number=200", "data.world.held_out=10"]
    assert export(parse_recipe(text, small), tmp_path) == "pegasus"

"""Every starter recipe, and the demo, can be exported to a folder that transformers opens with the same outputs."""

import json
from importlib.resources import files

import pytest
import transformers
from PIL import Image

from regard.run.convert import convert
from regard.run.train import train
from regard.tasks import all_tasks, parse_recipe, starter_recipe
from regard.tasks.starters.image_starters import image_classification_recipe
from regard.worlds import bilingual, shapes

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


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of captioned images: a table, and a folder for each label."""
    folder = tmp_path_factory.mktemp("images")
    lines = []
    for i, image in enumerate(shapes.generate(40, 1)):
        path = folder / image.label("kind") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.pixels()).save(path)
        lines.append(f"{path.relative_to(folder)}\t{image.captions[0].text}\n")
    (folder / "captions.tsv").write_text("".join(lines))
    return folder


IMAGE_STEPS = ["train.steps=1", "train.evaluate_every=1", "train.save_every=1", "train.images_per_batch=4"]
CODES = ["model.width=16", "model.codebook_size=32"]
TOWER = ["layers=1", "width=32", "heads=2", "feed_forward=32"]
IMAGE_STARTERS = {
    "caption": (["tokens.size=100", "data.size=32", "model.decoder.width=32", "model.encoder.widths=[8, 8, 8, 8]"], "regard"),
    "contrastive": ([f"model.{side}.{one}" for side in ("image", "text") for one in TOWER] + ["tokens.size=200"], "clip"),
    "image-codes": (CODES, "regard"),
    "text-to-image": ([*(f"model.{one}" for one in TOWER), "tokens.size=200"], "regard"),
    "classify": ([f"model.{one}" for one in TOWER], "vit"),
}


def test_every_starter_of_images_is_listed():
    with_starters = {task.name for task in all_tasks() if task.starter is not None}
    assert set(STARTERS) | set(IMAGE_STARTERS) == with_starters


@pytest.mark.parametrize("task", IMAGE_STARTERS)
def test_starter_of_images_exports_to_hugging_face(task, images, tmp_path):
    overrides, family = IMAGE_STARTERS[task]
    data = [images / "captions.tsv"]
    starter = image_classification_recipe(task, images) if task == "classify" else starter_recipe(task, data)
    steps = [one for one in IMAGE_STEPS if task != "contrastive" or "images_per_batch" not in one]
    if task == "text-to-image":
        codes = parse_recipe(starter_recipe("image-codes", data).to_toml(), [*IMAGE_STEPS, *CODES])
        overrides = [*overrides, f"model.image_codes.run={train(codes, tmp_path / 'codes', device='cpu').folder}"]
    assert export(parse_recipe(starter.to_toml(), [*steps, *overrides]), tmp_path) == family
    if family == "regard":
        with pytest.raises(ValueError, match="trust_remote_code"):
            transformers.AutoModel.from_pretrained(tmp_path / "hf", trust_remote_code=False)


def test_demo_exports_to_hugging_face(tmp_path):
    text = files("regard.studies").joinpath("demo.toml").read_text(encoding="utf-8")
    small = [*SMALL, "data.world.number=200", "data.world.held_out=10"]
    assert export(parse_recipe(text, small), tmp_path) == "pegasus"

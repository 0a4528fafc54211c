"""A tiny CLIP from pictures with captions to matches on the command line; and all that a run owes."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.run.card import card
from regard.run.convert import convert
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.tasks import parse_recipe
from regard.training.checkpoint import read_weights, write_weights

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (40, 60, 220),
    "yellow": (220, 220, 40),
    "white": (250,) * 3,
    "black": (5, 5, 5),
}
BLOCK = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64}
SETTINGS = {
    "task": "contrastive",
    "data": {
        "train": ["train.jsonl"],
        "valid": ["valid.jsonl"],
        "test": {"mine": ["valid.jsonl"]},
        "size": 12,
        "path": "file",
        "captions": ["captions"],
    },
    "tokens": {"kind": "words"},
    "model": {"projection_width": 16, "image": {**BLOCK, "patch_size": 4}, "text": {**BLOCK, "max_length": 12}},
    "train": {
        "steps": 160,
        "images_per_batch": 18,
        "evaluate_every": 20,
        "save_every": 20,
        "log_every": 10,
        "keep_checkpoints": 9,
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 5},
        "augment": {"crop_padding": 1},
    },
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two halves, each of one colour: "red above blue"."""
    folder, chance = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    combinations = [(one, other) for one in COLOURS for other in COLOURS if one != other]
    for name, number in (("train", 4), ("valid", 1)):
        (folder / name).mkdir()
        lines = []
        for copy_, (one, other) in ((i, pair) for i in range(number) for pair in combinations):
            pixels = np.zeros((12, 12, 3), int) + np.array(COLOURS[one])
            pixels[6:] = COLOURS[other]
            pixels = np.clip(pixels + chance.integers(-20, 21, pixels.shape), 0, 255)
            file = f"{name}/{one}-{other}-{copy_}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(folder / file)
            lines.append(json.dumps({"file": file, "captions": [f"{one} above {other}", f"there is {other} below the {one}"]}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def settings(pictures, **changes):
    made = copy.deepcopy(SETTINGS)
    made["data"]["root"] = str(pictures)
    for part, values in changes.items():
        made[part] = {**made[part], **values}
    return made


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    made = train(settings(pictures), tmp_path_factory.mktemp("runs") / "clip", device="cpu")
    evaluate(made)
    return made


@pytest.fixture
def files(pictures):
    return [str(pictures / "valid" / f"{name}-0.png") for name in ("red-blue", "blue-red", "white-black", "green-yellow")]


def said(*words, stdin=None):
    return CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False).stdout.splitlines()


def test_it_learns_what_belongs_together_in_a_moment(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert set(scores) == {f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
    assert scores["image_to_text_r5"]["low"] > 60 and scores["text_to_image_r5"]["low"] > 60  # by chance 17
    assert "recipe:" in scores["image_to_text_r1"]["signature"] and "ties:against" in scores["image_to_text_r1"]["signature"]
    last = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines() if "valid_recall" in line]
    assert last[-1]["valid_recall"] > last[0]["valid_recall"] and last[-1]["valid_loss"] < last[0]["valid_loss"]


def test_every_label_best_first(run, files):
    labels = ["red above blue", "blue above red", "white above black", "green above yellow"]
    found = run.match(files, labels)
    assert [judged[0].label for judged in found] == labels
    for judged in found:
        p = [one.probability for one in judged]
        assert sorted(one.label for one in judged) == sorted(labels) and p == sorted(p, reverse=True)
        assert sum(p) == pytest.approx(1)


def test_a_match_is_the_softmax_of_the_scaled_products(run, files):
    labels = ["red above blue", "blue above red"]
    logits = float(run.model.scale().detach()) * run._image_vectors(files) @ run._text_vectors(labels).T
    for judged, p in zip(run.match(files, labels), torch.from_numpy(logits).softmax(-1).tolist()):
        assert {one.label: pytest.approx(one.probability, abs=1e-6) for one in judged} == dict(zip(labels, p))


def test_templates_are_averaged_in_the_shared_space(run):
    several = run._label_vectors(["red", "blue"], ["{} above green", "there is {} below the white"])
    for vector, label in zip(several, ("red", "blue")):
        both = run._text_vectors([f"{label} above green", f"there is {label} below the white"]).mean(0)
        np.testing.assert_allclose(vector, both / np.linalg.norm(both), atol=1e-6)


def test_vectors_are_the_same_in_any_batch_and_as_often_as_asked(run, files):
    together = run._image_vectors(files)
    np.testing.assert_allclose(together, np.concatenate([run._image_vectors([file]) for file in files]), atol=1e-5)
    texts = ["red above blue", "there is blue below the red", "red", "red above blue"]
    np.testing.assert_allclose(run._text_vectors(texts), np.concatenate([run._text_vectors([text]) for text in texts]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    pixels = np.asarray(Image.open(files[0]))
    np.testing.assert_allclose(run._image_vectors([pixels, Image.open(files[0])]), together[[0, 0]], atol=1e-5)


def test_zero_shot_labels(run, files):
    labelled = ImageExamples(
        [np.asarray(Image.open(file)) for file in files],
        "mine",
        label=["red above blue", "blue above red", "white above black", "green above yellow"],
    )
    result = run.zero_shot(labelled)
    assert result.scores["accuracy"].score == 100 and result.outputs == labelled.label
    many = run.zero_shot(labelled, [*labelled.label, "red", "blue"], ["{}", "the {}"])
    assert many.scores["accuracy_top5"].score >= many.scores["accuracy"].score
    assert "recipe:" in result.scores["accuracy"].signature
    with pytest.raises(UserError, match="which is none of those to choose from"):
        run.zero_shot(labelled, ["red above blue", "pink"])


def test_retrieval_in_python_is_that_of_evaluate(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    for name, score in run._score("mine", run.data.tests["mine"]).scores.items():
        assert score.score == pytest.approx(scores[name]["score"], abs=1e-3)


def test_resumed_is_as_if_never_interrupted(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    for step in (40, 60):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
    again = train(tmp_path / "run", resume=True, device="cpu")
    mine, other = read_weights(run.folder / "model.safetensors"), read_weights(again.folder / "model.safetensors")
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_the_command_line_matches(run, files, tmp_path):
    words = ["match", run.folder, "--device", "cpu", "--labels", "red above blue, blue above red"]
    lines = said(*words, files[0])
    assert [line.split("\t")[0] for line in lines] == ["red above blue", "blue above red"]
    found = [json.loads(line) for line in said(*words, *files[:2], "--json")]
    assert [one[0]["label"] for one in found] == ["red above blue", "blue above red"]
    assert all(set(entry) == {"label", "probability"} for one in found for entry in one)
    assert said(*words, "--json", stdin="\n".join(files[:2]) + "\n") == said(*words, *files[:2], "--json")
    assert [line.split("\t")[0] for line in said(*words, *files[:2])] == [files[0], files[0], files[1], files[1]]
    (tmp_path / "labels.txt").write_text("red above blue\nblue above red\n\n")
    words[words.index("--labels") + 1] = tmp_path / "labels.txt"
    assert said(*words, files[0]) == lines
    (tmp_path / "labels.txt").write_text("red\nblue\n")
    assert (
        json.loads(
            said(*words, files[0], "--json", "--template", "{} above blue", "--template", "there is blue below the {}")[0]
        )[0]["label"]
        == "red"
    )


def test_the_command_line_embeds_pictures_and_texts(run, files):
    words = ["embed", run.folder, "--device", "cpu", "--json"]
    image, text = (json.loads(line) for line in said(*words, files[0], "red above blue"))
    assert image["text"] == files[0] and text["text"] == "red above blue"
    np.testing.assert_allclose(image["vector"], run._image_vectors(files[:1])[0], atol=1e-5)
    np.testing.assert_allclose(text["vector"], run._text_vectors(["red above blue"])[0], atol=1e-5)
    forced = json.loads(said(*words, "--as", "text", files[0])[0])
    np.testing.assert_allclose(forced["vector"], run._text_vectors([files[0]])[0], atol=1e-5)


@pytest.mark.parametrize(
    "words, message",
    [
        (["match", "IMAGE"], "no labels to choose from"),
        (["match", "IMAGE", "--labels", "a,,b"], "label 2 is empty"),
        (["match", "IMAGE", "--labels", "a,b, a"], "the label 'a' is there twice"),
        (["match", "IMAGE", "--labels", "a,b", "--template", "a photo"], "has no place for a label; write {} there"),
        (["match", "nothing.png", "--labels", "a,b"], "nothing.png"),
        (["embed", "nothing.png"], "no image at nothing.png; to read it as a text, add --as text"),
        (["embed", "a text", "--as", "sound"], "--as sound: should be image or text"),
        (["embed", "a text", "--layer", "0"], "leave out --layer and --pool"),
        (["embed", " "], "an empty text has no vectors"),
        (["classify", "IMAGE"], "matches images and texts (task = 'contrastive'); it cannot classify"),
    ],
)
def test_what_a_tired_person_feeds_it(run, files, words, message):
    words = [files[0] if word == "IMAGE" else word for word in words]
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, [words[0], str(run.folder), *words[1:], "--device", "cpu"], catch_exceptions=False)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_long_caption_is_cut_and_still_has_its_end(run):
    long = "red above blue " * 20
    cut = run._ids([long])[0]
    assert len(cut) + run._special_tokens.num_added == 12
    np.testing.assert_allclose(run._text_vectors([long]), run._text_vectors([run.tokenizers[0].decode([cut])[0]]), atol=1e-5)
    inputs = run._encode(ImageExamples([np.zeros((12, 12, 3), np.uint8)], captions=[[long]])).batch(np.array([0]), 1, 0).inputs
    assert inputs["source"][0].tolist() == [*run._special_tokens.prefix, *cut, *run._special_tokens.suffix] and inputs[
        "lengths"
    ].tolist() == [12]


def test_card_and_comparison(run):
    text = card(run)
    assert "Which of some texts fits an image" in text and "1 and 1 layers of 32 and 32" in text
    rows = compare_runs([run, run])["mine"]
    assert rows[1]["p_value"] == 1.0 and rows[0]["metric"] == "image_to_text_r1"


SHAPES = {
    "task": "contrastive",
    "data": {"size": 24, "world": {"kind": "shapes", "number": 60, "held_out": 8, "shapes": [1, 2]}},
    "tokens": {"kind": "words"},
    "model": {"projection_width": 16, "image": {**BLOCK, "patch_size": 8}, "text": {**BLOCK, "max_length": 40}},
    "train": {"steps": 2, "images_per_batch": 20, "evaluate_every": 2, "save_every": 2},
}


def test_on_the_world_of_shapes_the_true_caption_is_looked_for(tmp_path):
    from regard.worlds import shapes

    run = train(SHAPES, tmp_path / "run", device="cpu")
    results = {result.name: result for result in evaluate(run)}
    assert results.keys() == {"test", "composition"}
    assert all(
        "n:8" in result.scores[name].signature for result in results.values() for name in ("true_of_100", "true_of_100_near")
    )
    examples = run.data.tests["composition"]

    def knows(texts):
        """An oracle: a caption that is true of a scene lies where that scene lies."""
        return np.array(
            [[shapes.is_true(shapes.parse_caption(text), picture.scene) for picture in examples.gold] for text in texts],
            np.float32,
        )

    def scores():
        return [score.score for score in run._choose_true(examples, np.eye(len(examples), dtype=np.float32)).values()]

    run._text_vectors = knows
    assert scores() == [100, 100]
    run._text_vectors = lambda texts: knows(texts) + 2 * (np.arange(len(texts)) == 1)[:, None]  # one false caption of the first
    assert all(0 < score < 100 for score in scores())
    run._text_vectors = lambda texts: -knows(texts)
    assert scores() == [0, 0]


def test_it_begins_from_another(run, pictures, tmp_path):
    begun = settings(
        pictures,
        train={"steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "init_from": {"run": str(run.folder)}},
    )
    again = train(begun, tmp_path / "run", device="cpu")
    text = ["red above blue"]
    np.testing.assert_allclose(again._text_vectors(text), run._text_vectors(text), atol=1e-4)
    assert again.tokenizers[0].to_json() == run.tokenizers[0].to_json()
    assert regard.load(again.folder, device="cpu")._special_tokens == run._special_tokens


def test_a_tower_of_convolutions_begins_from_an_encoder_of_another_name(pictures, tmp_path):
    encoder = {"kind": "cnn", "widths": [8, 16], "strides": [2, 2]}
    towers = settings(pictures, model={"image": encoder}, train={"steps": 40})
    first = train(towers, tmp_path / "first", device="cpu")
    learned = read_weights(first.folder / "model.safetensors")
    weights = {name.replace("image.", "encoder.", 1): value for name, value in learned.items() if name.startswith("image.")}
    (tmp_path / "weights").mkdir()
    write_weights(tmp_path / "weights" / "model.safetensors", weights)
    begin = {"run": str(tmp_path / "weights"), "modules": ["encoder"], "into": "image", "tokenizer": False}
    still = {"steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "init_from": begin}
    second = train(settings(pictures, model={"image": encoder}, train=still), tmp_path / "second", device="cpu")
    taken = read_weights(second.folder / "model.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(taken[name.replace("encoder.", "image.", 1)], value, atol=1e-6, rtol=0)
    file = next((pictures / "valid").glob("*.png"))
    assert first.match([file], ["red above blue", "blue above red"])
    with pytest.raises(UserError, match=r"image\.heads"):
        convert(first.folder, tmp_path / "hf")
    with pytest.raises(UserError, match="its training size"):
        first.resize((24, 24))
    with pytest.raises(UserError, match=r"into = 'image' renames one module: give one in train.init_from.modules, not 0"):
        train(settings(pictures, train={"init_from": {**begin, "modules": []}}), tmp_path / "none", device="cpu")


@pytest.mark.parametrize("task", ["contrastive", "caption", "text-to-image"])
def test_a_starter_recipe_reads_what_it_was_made_for(pictures, tmp_path, task):
    from regard.corpus.dataset import read_dataset

    lines = [json.loads(line) for line in (pictures / "train.jsonl").read_text().splitlines()]
    (pictures / "train.tsv").write_text("".join(f"{one['file']}\t" + "\t".join(one["captions"]) + "\n" for one in lines))
    (pictures / "named.tsv").write_text("image\tcaption\n" + "".join(f"{one['file']}\t{one['captions'][0]}\n" for one in lines))
    for name, captions in (("train.jsonl", 2), ("train.tsv", 2), ("named.tsv", 1)):
        recipe = parse_recipe("\n".join(said("new", task, "--data", pictures / name)))
        data = read_dataset(recipe.data)
        assert recipe.task == task and len(data.train) + 2 * recipe.data.held_out == len(lines)
        assert {len(found) for found in data.train.captions} == {captions}
        assert task != "contrastive" or recipe.data.height_width[0] % recipe.model.image.patch_size == 0


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", '{"picture": "a.png", "words": "x"}\n', "name the image path file or file_name or image, and the captions"),
        ("a.jsonl", "[1]\n", "is not a JSON object"),
        ("a.jsonl", "{\n", "is not a JSON object"),
        ("a.tsv", "a.png\n", "captions are expected from column 1 on"),
        ("a.txt", "a.png a dog\n", "give a .tsv or .jsonl"),
    ],
)
def test_a_starter_recipe_of_something_else_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        said("new", "contrastive", "--data", tmp_path / name)


def test_a_picture_is_nearer_to_what_it_shows_than_to_what_it_does_not(run, pictures):
    images = [str(pictures / f"valid/{name}-0.png") for name in ("red-blue", "green-white")]
    near = run.similarity(images, ["red above blue", "green above white"])
    assert near.shape == (2, 2) and np.abs(near).max() <= 1 + 1e-6
    assert near[0, 0] > near[0, 1] and near[1, 1] > near[1, 0]

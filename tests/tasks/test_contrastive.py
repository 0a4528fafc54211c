"""Contrastive training of a small CLIP: matching, retrieval, zero-shot labels, embedding and the command line."""

import copy
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.corpus.dataset import read_dataset
from regard.corpus.examples import ImageExamples
from regard.errors import UserError
from regard.models.clip import ClipTextEncoder
from regard.models.vit import VitEncoder
from regard.run.card import card
from regard.run.convert import convert
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.tasks import build_recipe, parse_recipe
from regard.tasks.contrastive import NEGATIVES_EPOCHS, ContrastiveRun, sample_hard_negatives
from regard.training.checkpoint import read_weights, write_weights

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (40, 60, 220),
    "yellow": (220, 220, 40),
    "white": (250,) * 3,
    "black": (5, 5, 5),
}
RAN_ONCE = "the frozen parts of the model ran over the data once"
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
def image_folder(tmp_path_factory):
    """Write images of two halves, each of one colour, with captions such as "red above blue"."""
    folder, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    combinations = [(one, other) for one in COLOURS for other in COLOURS if one != other]
    for name, number in (("train", 4), ("valid", 1)):
        (folder / name).mkdir()
        lines = []
        for copy_, (one, other) in ((i, pair) for i in range(number) for pair in combinations):
            pixels = np.zeros((12, 12, 3), int) + np.array(COLOURS[one])
            pixels[6:] = COLOURS[other]
            pixels = np.clip(pixels + rng.integers(-20, 21, pixels.shape), 0, 255)
            file = f"{name}/{one}-{other}-{copy_}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(folder / file)
            lines.append(json.dumps({"file": file, "captions": [f"{one} above {other}", f"there is {other} below the {one}"]}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def settings(image_folder, **changes):
    config = copy.deepcopy(SETTINGS)
    config["data"]["root"] = str(image_folder)
    for part, values in changes.items():
        config[part] = {**config[part], **values}
    return config


@pytest.fixture(scope="module")
def run(image_folder, tmp_path_factory):
    trained = train(settings(image_folder), tmp_path_factory.mktemp("runs") / "clip", device="cpu")
    evaluate(trained)
    return trained


@pytest.fixture
def image_files(image_folder):
    return [str(image_folder / "valid" / f"{name}-0.png") for name in ("red-blue", "blue-red", "white-black", "green-yellow")]


def test_validation_loss_of_given_vectors_does_not_depend_on_the_precision_of_training(run, monkeypatch):
    examples = read_dataset(run.recipe.data).valid
    rows = run._evaluation_rows(examples)
    (batch,) = run._batches(rows)
    features = run.model(**batch.inputs)
    monkeypatch.setattr(run.model, "forward", lambda **inputs: features)
    expected = run._validate(examples, rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert run._validate(examples, rows) == pytest.approx(expected, rel=1e-6)


def train_on_frozen_towers(image_folder, folder, **changes):
    """Return the losses of all steps, the validation losses, and all weights."""
    quick = {"steps": 24, "log_every": 1, "evaluate_every": 12, "save_every": 24, "freeze": ["image.", "text."], "augment": {}}
    trained = train(settings(image_folder, train={**SETTINGS["train"], **quick, **changes}), folder, device="cpu")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [line[name] for line in lines for name in ("loss", "valid_loss") if name in line]
    return torch.tensor(losses), list(trained.model.parameters())


@pytest.mark.parametrize("freeze", [["image."], ["text."], ["image.", "text."]])
def test_frozen_towers_that_run_once_train_the_same_model(image_folder, tmp_path, monkeypatch, capsys, freeze):
    changes = {"freeze": freeze, "regularize": {"projection_dropout": 0.3}}
    read = Counter()
    for tower in (VitEncoder, ClipTextEncoder):
        monkeypatch.setattr(tower, "forward", count_rows(read, tower.__name__, tower.forward))
    once = train_on_frozen_towers(image_folder, tmp_path / "once", **changes)
    assert RAN_ONCE in capsys.readouterr().err and len(once[0]) == 26
    read_once = Counter(read)
    monkeypatch.setattr(ContrastiveRun, "_run_frozen", lambda run, rows: rows)
    every_step = train_on_frozen_towers(image_folder, tmp_path / "every step", **changes)
    assert RAN_ONCE not in capsys.readouterr().err
    torch.testing.assert_close(once, every_step)
    read.subtract(read_once)
    for tower, name in (("VitEncoder", "image."), ("ClipTextEncoder", "text.")):
        assert (read_once[tower] < read[tower]) == (name in freeze), "read less often exactly where it is frozen"


def count_rows(read, name, forward):
    """Return `forward` of a module, which adds the rows that it reads to `read`."""

    def counted(tower, *args, **inputs):
        read[name] += len([*args, *inputs.values()][0])
        return forward(tower, *args, **inputs)

    return counted


@pytest.mark.parametrize(
    "changes",
    [
        {"freeze": []},
        {"freeze": ["image."], "augment": {"flip": True}},
        {"regularize": {"dropout": 0.1}},
        {"regularize": {"drop_path": 0.1}},
    ],
)
def test_towers_run_in_every_step_where_their_outputs_change(image_folder, tmp_path, changes, capsys):
    train_on_frozen_towers(image_folder, tmp_path / "run", **changes)
    assert RAN_ONCE not in capsys.readouterr().err


def test_dropout_of_the_texts_does_not_concern_a_frozen_convolutional_tower(image_folder, tmp_path, capsys):
    quick = {
        "steps": 2,
        "evaluate_every": 2,
        "save_every": 2,
        "freeze": ["image."],
        "augment": {},
        "regularize": {"dropout": 0.1},
    }
    model = {**SETTINGS["model"], "image": {"kind": "cnn", "widths": [8, 16], "strides": [2, 2]}}
    train(settings(image_folder, model=model, train=quick), tmp_path / "run", device="cpu")
    assert RAN_ONCE in capsys.readouterr().err


def test_contrastive_training_raises_retrieval_recall(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert set(scores) == {f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
    assert scores["image_to_text_r5"]["low"] > 60 and scores["text_to_image_r5"]["low"] > 60  # chance level: 17
    assert "recipe:" in scores["image_to_text_r1"]["signature"] and "ties:against" in scores["image_to_text_r1"]["signature"]
    last = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines() if "valid_recall" in line]
    assert last[-1]["valid_recall"] > last[0]["valid_recall"] and last[-1]["valid_loss"] < last[0]["valid_loss"]


def test_match_returns_every_label_sorted_by_probability(run, image_files):
    labels = ["red above blue", "blue above red", "white above black", "green above yellow"]
    found = run.match(image_files, labels)
    assert [predictions[0].label for predictions in found] == labels
    for predictions in found:
        p = [one.probability for one in predictions]
        assert sorted(one.label for one in predictions) == sorted(labels) and p == sorted(p, reverse=True)
        assert sum(p) == pytest.approx(1)


def test_match_probability_is_the_softmax_of_scaled_similarities(run, image_files):
    labels = ["red above blue", "blue above red"]
    logits = float(run.model.scale().detach()) * run._image_vectors(image_files) @ run._text_vectors(labels).T
    for predictions, p in zip(run.match(image_files, labels), torch.from_numpy(logits).softmax(-1).tolist()):
        assert {one.label: pytest.approx(one.probability, abs=1e-6) for one in predictions} == dict(zip(labels, p))


def test_label_templates_are_averaged_in_the_embedding_space(run):
    several = run._label_vectors(["red", "blue"], ["{} above green", "there is {} below the white"])
    for vector, label in zip(several, ("red", "blue")):
        both = run._text_vectors([f"{label} above green", f"there is {label} below the white"]).mean(0)
        np.testing.assert_allclose(vector, both / np.linalg.norm(both), atol=1e-6)


def test_batched_embeddings_equal_one_by_one(run, image_files):
    together = run._image_vectors(image_files)
    np.testing.assert_allclose(together, np.concatenate([run._image_vectors([file]) for file in image_files]), atol=1e-5)
    texts = ["red above blue", "there is blue below the red", "red", "red above blue"]
    np.testing.assert_allclose(run._text_vectors(texts), np.concatenate([run._text_vectors([text]) for text in texts]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    pixels = np.asarray(Image.open(image_files[0]))
    np.testing.assert_allclose(run._image_vectors([pixels, Image.open(image_files[0])]), together[[0, 0]], atol=1e-5)


def test_zero_shot_classification_accuracy(run, image_files):
    labelled = ImageExamples(
        [np.asarray(Image.open(file)) for file in image_files],
        name="mine",
        label=["red above blue", "blue above red", "white above black", "green above yellow"],
    )
    result = run.zero_shot(labelled)
    assert result.scores["accuracy"].score == 100 and result.outputs == labelled.label
    many = run.zero_shot(labelled, [*labelled.label, "red", "blue"], ["{}", "the {}"])
    assert many.scores["accuracy_top5"].score >= many.scores["accuracy"].score
    assert "recipe:" in result.scores["accuracy"].signature
    with pytest.raises(UserError, match="which is none of those to choose from"):
        run.zero_shot(labelled, ["red above blue", "pink"])


def test_retrieval_scores_equal_those_of_evaluate(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    for name, score in run._score("mine", run.data.tests["mine"]).scores.items():
        assert score.score == pytest.approx(scores[name]["score"], abs=1e-3)


def test_resumed_contrastive_training_equals_uninterrupted_bit_for_bit(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    for step in (40, 60):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
    again = train(tmp_path / "run", resume=True, device="cpu")
    mine, other = read_weights(run.folder / "model.safetensors"), read_weights(again.folder / "model.safetensors")
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_match_command_output(run, image_files, tmp_path, run_cli):
    words = ["match", run.folder, "--device", "cpu", "--labels", "red above blue, blue above red"]
    lines = run_cli(*words, image_files[0])
    assert [line.split("\t")[0] for line in lines] == ["red above blue", "blue above red"]
    found = [json.loads(line) for line in run_cli(*words, *image_files[:2], "--json")]
    assert [one[0]["label"] for one in found] == ["red above blue", "blue above red"]
    assert all(set(entry) == {"label", "probability"} for one in found for entry in one)
    assert run_cli(*words, "--json", stdin="\n".join(image_files[:2]) + "\n") == run_cli(*words, *image_files[:2], "--json")
    assert [line.split("\t")[0] for line in run_cli(*words, *image_files[:2])] == [
        image_files[0],
        image_files[0],
        image_files[1],
        image_files[1],
    ]
    (tmp_path / "labels.txt").write_text("red above blue\nblue above red\n\n")
    words[words.index("--labels") + 1] = tmp_path / "labels.txt"
    assert run_cli(*words, image_files[0]) == lines
    (tmp_path / "labels.txt").write_text("red\nblue\n")
    assert (
        json.loads(
            run_cli(*words, image_files[0], "--json", "--template", "{} above blue", "--template", "there is blue below the {}")[
                0
            ]
        )[0]["label"]
        == "red"
    )


def test_embed_command_embeds_images_and_texts(run, image_files, run_cli):
    words = ["embed", run.folder, "--device", "cpu", "--json"]
    image, text = (json.loads(line) for line in run_cli(*words, image_files[0], "red above blue"))
    assert image["text"] == image_files[0] and text["text"] == "red above blue"
    np.testing.assert_allclose(image["vector"], run._image_vectors(image_files[:1])[0], atol=1e-5)
    np.testing.assert_allclose(text["vector"], run._text_vectors(["red above blue"])[0], atol=1e-5)
    forced = json.loads(run_cli(*words, "--as", "text", image_files[0])[0])
    np.testing.assert_allclose(forced["vector"], run._text_vectors([image_files[0]])[0], atol=1e-5)


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
def test_match_and_embed_commands_refuse_invalid_input(run, image_files, words, message):
    words = [image_files[0] if word == "IMAGE" else word for word in words]
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, [words[0], str(run.folder), *words[1:], "--device", "cpu"], catch_exceptions=False)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_long_caption_is_truncated_and_keeps_the_end_token(run):
    long = "red above blue " * 20
    cut = run._ids([long])[0]
    assert len(cut) + run._special_tokens.num_added == 12
    np.testing.assert_allclose(run._text_vectors([long]), run._text_vectors([run.tokenizers[0].decode([cut])[0]]), atol=1e-5)
    inputs = run._encode(ImageExamples([np.zeros((12, 12, 3), np.uint8)], captions=[[long]])).batch(np.array([0]), 1, 0).inputs
    assert inputs["source"][0].tolist() == [*run._special_tokens.prefix, *cut, *run._special_tokens.suffix] and inputs[
        "lengths"
    ].tolist() == [12]


def test_contrastive_card_and_compare_runs(run):
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


def test_shapes_world_scores_choosing_the_true_caption(tmp_path):
    from regard.worlds import shapes

    run = train(SHAPES, tmp_path / "run", device="cpu")
    results = {result.name: result for result in evaluate(run)}
    assert results.keys() == {"test", "composition"}
    assert all(
        "n:8" in result.scores[name].signature for result in results.values() for name in ("true_of_100", "true_of_100_near")
    )
    examples = run.data.tests["composition"]

    def oracle_vectors(texts):
        """Return oracle vectors: 1 for each scene of which the caption is true, else 0."""
        return np.array(
            [[shapes.is_true(shapes.parse_caption(text), image.scene) for image in examples.gold] for text in texts],
            np.float32,
        )

    def scores():
        return [score.score for score in run._choose_true(examples, np.eye(len(examples), dtype=np.float32)).values()]

    run._text_vectors = oracle_vectors
    assert scores() == [100, 100]
    run._text_vectors = lambda texts: (
        oracle_vectors(texts) + 2 * (np.arange(len(texts)) == 1)[:, None]
    )  # prefer one false caption of the first scene
    assert all(0 < score < 100 for score in scores())
    run._text_vectors = lambda texts: -oracle_vectors(texts)
    assert scores() == [0, 0]


def test_hard_negatives_of_training_are_false_of_their_own_image(tmp_path):
    from regard.worlds import shapes

    run = train({**SHAPES, "train": {**SHAPES["train"], "hard_negatives": 3}}, tmp_path / "run", device="cpu")
    examples, seed, encode = read_dataset(run.recipe.data).train, run.recipe.seed, run.tokenizers[0].encode
    negatives = sample_hard_negatives(examples, 3 * NEGATIVES_EPOCHS, seed)
    for texts, image in zip(negatives, examples.gold, strict=True):
        assert len(set(texts)) == 3 * NEGATIVES_EPOCHS
        assert not any(shapes.is_true(shapes.parse_caption(text), image.scene, margin=0) for text in texts)
    shown = [
        kind in {shape.kind for shape in image.scene.shapes}
        for texts, image in zip(negatives, examples.gold)
        for kind in shapes.KINDS
        for text in texts
        if kind in text.split()
    ]
    assert sum(shown) > 0.6 * len(shown), "near misses: most of the kinds that they name are in the image"
    rows, _ = run._training_rows(examples)
    for epoch in range(2):
        ids = list(map(list, rows.captions.take(rows.chosen_captions(np.arange(60), seed, epoch), seed, epoch)))
        assert len(ids) == 60 + 3 * 60
        assert all(ids[i] in encode(examples.captions[i]) for i in range(60)), "the captions come first"
        assert all(ids[60 + i] in encode(negatives[i // 3]) for i in range(3 * 60))
    assert run._encode(run.data.valid).negative_offsets is None, "validation compares pairs only"


@pytest.mark.parametrize("number, stored", [(2, 10), (12, 32), (40, 40)])
def test_hard_negatives_of_an_image_are_limited(tmp_path, number, stored):
    few = {**SHAPES["train"], "steps": 1, "hard_negatives": number, "own_negatives_weight": 1.0}
    run = train({**SHAPES, "train": few}, tmp_path / "run", device="cpu")
    rows = run._encode(run.data.valid, training=True)
    assert np.diff(rows.negative_offsets).tolist() == [stored] * len(rows)
    assert len(rows.chosen_captions(np.arange(5), 1, 3)) == 5 + 5 * number


def test_hard_negatives_need_the_world_of_shapes(image_folder):
    with pytest.raises(UserError, match=r"train.hard_negatives = 2: only the world of shapes has false captions; set it to 0"):
        build_recipe(settings(image_folder, train={"hard_negatives": 2}))
    with pytest.raises(UserError, match=r"own_negatives_weight = 1.0: there are no hard negatives; set train.hard_negatives"):
        build_recipe(settings(image_folder, train={"own_negatives_weight": 1.0}))


def test_contrastive_run_initialized_from_another_run(run, image_folder, tmp_path):
    config = settings(
        image_folder,
        train={"steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "init_from": {"run": str(run.folder)}},
    )
    again = train(config, tmp_path / "run", device="cpu")
    text = ["red above blue"]
    np.testing.assert_allclose(again._text_vectors(text), run._text_vectors(text), atol=1e-4)
    assert again.tokenizers[0].to_json() == run.tokenizers[0].to_json()
    assert regard.load(again.folder, device="cpu")._special_tokens == run._special_tokens


def test_cnn_image_tower_initialized_from_an_encoder_with_init_from_into(image_folder, tmp_path):
    encoder = {"kind": "cnn", "widths": [8, 16], "strides": [2, 2]}
    towers = settings(image_folder, model={"image": encoder}, train={"steps": 40})
    first = train(towers, tmp_path / "first", device="cpu")
    learned = read_weights(first.folder / "model.safetensors")
    weights = {name.replace("image.", "encoder.", 1): value for name, value in learned.items() if name.startswith("image.")}
    (tmp_path / "weights").mkdir()
    write_weights(tmp_path / "weights" / "model.safetensors", weights)
    init_from = {"run": str(tmp_path / "weights"), "modules": ["encoder"], "into": "image", "tokenizer": False}
    train_settings = {"steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "init_from": init_from}
    second = train(settings(image_folder, model={"image": encoder}, train=train_settings), tmp_path / "second", device="cpu")
    loaded = read_weights(second.folder / "model.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(loaded[name.replace("encoder.", "image.", 1)], value, atol=1e-6, rtol=0)
    file = next((image_folder / "valid").glob("*.png"))
    assert first.match([file], ["red above blue", "blue above red"])
    with pytest.raises(UserError, match=r"image\.heads"):
        convert(first.folder, tmp_path / "hf")
    with pytest.raises(UserError, match="its training size"):
        first.resize((24, 24))
    with pytest.raises(UserError, match=r"into = 'image' renames one module: give one in train.init_from.modules, not 0"):
        train(settings(image_folder, train={"init_from": {**init_from, "modules": []}}), tmp_path / "none", device="cpu")


@pytest.mark.parametrize("task", ["contrastive", "caption", "text-to-image"])
def test_starter_recipe_reads_jsonl_and_tsv_captions(image_folder, tmp_path, task, run_cli):
    from regard.corpus.dataset import read_dataset

    lines = [json.loads(line) for line in (image_folder / "train.jsonl").read_text().splitlines()]
    (image_folder / "train.tsv").write_text("".join(f"{one['file']}\t" + "\t".join(one["captions"]) + "\n" for one in lines))
    (image_folder / "named.tsv").write_text(
        "image\tcaption\n" + "".join(f"{one['file']}\t{one['captions'][0]}\n" for one in lines)
    )
    for name, captions in (("train.jsonl", 2), ("train.tsv", 2), ("named.tsv", 1)):
        recipe = parse_recipe("\n".join(run_cli("new", "--minutes", "0", task, "--data", image_folder / name)))
        data = read_dataset(recipe.data)
        assert recipe.task == task and len(data.train) + 2 * recipe.data.held_out == len(lines)
        assert {len(found) for found in data.train.captions} == {captions}
        assert task != "contrastive" or recipe.data.height_width[0] % recipe.model.image.patch_size == 0


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", '{"picture": "a.png", "words": "x"}\n', "name the image path file or file_name or image, and the captions"),
        ("a.jsonl", "[1]\n", "is not a JSON object"),
        ("a.jsonl", "{\n", "a.jsonl:1 is not JSON"),
        ("a.tsv", "a.png\n", "captions are expected from column 1 on"),
        ("a.txt", "a.png a dog\n", "give a table"),
    ],
)
def test_starter_recipe_of_an_invalid_caption_file_is_refused(tmp_path, name, content, message, run_cli):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        run_cli("new", "--minutes", "0", "contrastive", "--data", tmp_path / name)


def test_similarity_is_highest_for_the_matching_caption(run, image_folder):
    images = [str(image_folder / f"valid/{name}-0.png") for name in ("red-blue", "green-white")]
    similarity = run.similarity(images, ["red above blue", "green above white"])
    assert similarity.shape == (2, 2) and np.abs(similarity).max() <= 1 + 1e-6
    assert similarity[0, 0] > similarity[0, 1] and similarity[1, 1] > similarity[1, 0]

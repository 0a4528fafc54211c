"""Image classification with a small Vision Transformer: training, resuming, scoring, embedding and the command line."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.batches.image_rows import ImageClassificationRows
from regard.errors import UserError
from regard.recipe import AugmentSettings
from regard.run.card import card
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.tasks import build_recipe, read_recipe
from regard.training.checkpoint import read_weights

AUGMENT = {
    "crop_padding": 1,
    "flip": True,
    "rand_augment": {"operations": 1, "magnitude": 3},
    "mixup": 0.4,
    "cutmix": 0.4,
    "random_erasing": 0.1,
}
SETTINGS = {
    "task": "classify",
    "data": {"train": ["train"], "valid": ["valid"], "test": {"mine": ["valid"]}, "size": 12},
    "model": {"kind": "vit", "layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "patch_size": 4},
    "train": {
        "steps": 60,
        "images_per_batch": 24,
        "evaluate_every": 20,
        "save_every": 10,
        "log_every": 10,
        "keep_checkpoints": 9,
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 5},
        "augment": AUGMENT,
        "regularize": {"dropout": 0.1, "drop_path": 0.1},
    },
}


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """Write images whose label is the position of a bright patch, which a bag of patches cannot tell."""
    folder, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 40), ("valid", 12)):
        for label, rows in (("above", slice(0, 6)), ("below", slice(6, 12))):
            (folder / name / label).mkdir(parents=True)
            for i in range(number):
                pixels = rng.integers(0, 90, (12, 12, 3))
                pixels[rows, rng.integers(0, 8) :][:, :4] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name / label / f"{i}.png")
    return folder


def settings(image_folder, **changes):
    config = copy.deepcopy(SETTINGS)
    config["data"]["root"] = str(image_folder)
    for part, values in changes.items():
        config[part] = {**config[part], **values}
    return config


@pytest.fixture(scope="module")
def run(image_folder, tmp_path_factory):
    trained = train(settings(image_folder), tmp_path_factory.mktemp("runs") / "vit", device="cpu")
    evaluate(trained)
    return trained


@pytest.fixture
def image_files(image_folder):
    return [str(image_folder / "valid" / label / f"{i}.png") for label in ("above", "below") for i in range(4)]


def test_vit_learns_the_position_of_a_patch(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert scores["accuracy"]["low"] > 65 and "recipe:" in scores["accuracy"]["signature"]


def test_vit_with_mean_pooling_reaches_full_accuracy(image_folder, tmp_path):
    short = {"steps": 40, "evaluate_every": 40, "augment": {}, "regularize": {"dropout": 0.0}}
    run = train(
        settings(image_folder, train=short, model={"layers": 1, "pool": "mean", "positions": {"kind": "sinusoidal"}}),
        tmp_path / "run",
        device="cpu",
    )
    assert evaluate(run)[0].scores["accuracy"].score == 100


def test_resumed_vit_equals_uninterrupted_training_bit_for_bit(run, tmp_path):
    whole = read_weights(run.folder / "checkpoints" / "step-00000060" / "model.safetensors")
    for stop in (10, 40):
        again = tmp_path / str(stop)
        shutil.copytree(run.folder, again)
        (again / "model.safetensors").unlink()
        for path in (again / "checkpoints").iterdir():
            if int(path.name[5:]) > stop:
                shutil.rmtree(path)
        train(again, resume=True, device="cpu")
        found = read_weights(again / "checkpoints" / "step-00000060" / "model.safetensors")
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_validation_and_evaluation_do_not_augment(run, monkeypatch):
    rows = run._encode(run.data.valid)
    trained = run._encode(run.data.valid, training=True)
    assert rows.augment is None and trained.augment == AugmentSettings.model_validate(AUGMENT)
    before = run._validate(run.data.valid, rows), run._score("valid", run.data.valid).scores
    monkeypatch.setattr("regard.batches.image_rows.sample_augmentation", lambda *_: pytest.fail("augmented"))
    assert (run._validate(run.data.valid, trained), run._score("valid", run.data.valid).scores) == before
    with pytest.raises(pytest.fail.Exception):
        trained.batch(np.arange(3), 1, 0)


def test_validation_accuracy_and_loss_equal_evaluation(run):
    found, score = (
        run._validate(run.data.valid, run._encode(run.data.valid)),
        run._score("valid", run.data.valid).scores["accuracy"],
    )
    assert found["valid_accuracy"] == pytest.approx(score.score)
    predictions = run.classify([str(image.path) for image in run.data.valid.images])
    losses = [
        -np.log(next(one.probability for one in given if one.label == label))
        for given, label in zip(predictions, run.data.valid.label)
    ]
    assert found["valid_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_loaded_run_and_batched_images_classify_alike(run, image_files):
    again = regard.load(run.folder, device="cpu")
    assert again.classify(image_files) == run.classify(image_files)
    for file, together in zip(image_files, run.classify(image_files)):
        (alone,) = run.classify([file])
        assert [one.label for one in alone] == [one.label for one in together]
        assert alone[0].probability == pytest.approx(together[0].probability, abs=1e-5)
        assert sum(one.probability for one in together) == pytest.approx(1, abs=1e-5)
    assert run.classify([]) == [] and run.embed([]) == []
    image = Image.open(image_files[0])
    assert run.classify([image, np.asarray(image)]) == run.classify(image_files[:1] * 2)


def test_image_decoding_workers_keep_the_order(run, image_files):
    many = [image_files[i % len(image_files)] for i in range(150)]
    found = [one[0].label for one in run.classify(many)]
    assert found == [one[0].label for one in run.classify(image_files)] * 18 + found[144:]


def test_classify_embed_and_evaluate_commands_on_images(run, image_files, image_folder, run_cli):
    lines = run_cli("classify", run.folder, *image_files)
    assert [line.split("\t")[0] for line in lines] == [one[0].label for one in run.classify(image_files)]
    found = json.loads(run_cli("classify", run.folder, "--json", stdin=image_files[0] + "\n")[0])
    assert set(found) == {"label", "probability"} and found["label"] == "above"
    mean, first = (
        json.loads(run_cli("embed", run.folder, image_files[0], "--json", *more)[0]) for more in ([], ["--pool", "cls"])
    )
    assert mean["text"] == image_files[0] and len(mean["vector"]) == 32 and mean["vector"] != first["vector"]
    assert json.loads(run_cli("evaluate", run.folder, "--json")[0])["metric"] == "accuracy"
    assert "images of 12 × 12 pixels, 10 positions" in "\n".join(run_cli("plan", run.folder))


@pytest.mark.parametrize(
    "words, message",
    [
        (["classify", "nowhere.png"], "no image nowhere.png; check the path"),
        (["classify", "{set}"], "is a folder; give an image"),
        (["classify", "{set}/text.png"], "text.png is not a PNG, JPEG or WebP image"),
        (["embed", "{file}", "--pool", "words"], "--pool words: of images, should be mean or cls"),
        (["embed", "{file}", "--layer", "9"], r"--layer 9: there are layers 0 \(the patches\) to 2"),
        (["tag", "{file}"], "classifies images .task = 'classify'.; it cannot tag"),
        (["translate", "{file}"], "it cannot translate"),
    ],
)
def test_commands_refuse_invalid_images_and_unsupported_tasks(run, image_files, image_folder, tmp_path, words, message, run_cli):
    (tmp_path / "text.png").write_text("a text")
    verb, *rest = (word.format(set=tmp_path, file=image_files[0]) for word in words)
    with pytest.raises(UserError, match=message):
        run_cli(verb, run.folder, *rest)


def test_embed_with_cls_pooling_needs_a_class_token(image_folder, tmp_path, image_files):
    short = {"steps": 1, "evaluate_every": 1}
    run = train(settings(image_folder, train=short, model={"pool": "mean"}), tmp_path / "run", device="cpu")
    assert run.embed(image_files[:1])[0].vectors.shape == (1, 32)
    with pytest.raises(UserError, match="reads images without a class token; use --pool mean"):
        run.embed(image_files[:1], pool="cls")


def test_embed_layer_equals_model_hidden_states(run, image_files):
    layers = run.model.hidden_states(run._images.rows(image_files[:1]).batch(np.arange(1), 0, 0).inputs["pixels"])
    assert len(layers) == 3
    for number, states in enumerate(layers):
        np.testing.assert_allclose(
            run.embed(image_files[:1], layer=number)[0].vectors[0], states[0, 1:].mean(0).detach(), atol=1e-6
        )


def test_image_classifier_card_config_and_labels(run):
    page, config = card(run), json.loads((run.folder / "config.json").read_text())
    assert "Labels of images" in page and "regard classify" in page and "Recognising or judging people" in page
    assert "| mine | accuracy |" in page and "vit, 2 layers of 32" in page
    assert config["size"] == [12, 12] and config["labels"] == 2 and config["architectures"] == ["VitClassifier"]
    assert not list(run.folder.glob("tokenizer*"))
    assert json.loads((run.folder / "labels.json").read_text()) == ["above", "below"]


def test_resize_changes_the_input_image_size(run, image_files):
    again = regard.load(run.folder, device="cpu")
    again.resize((24, 16))
    assert again._max_positions == 1 + 6 * 4 and len(again.classify(image_files)) == len(image_files)
    with pytest.raises(UserError, match="smaller than a patch"):
        again.resize((2, 2))


def test_fine_tuning_at_higher_resolution_interpolates_position_embeddings(run, image_folder, tmp_path, image_files):
    train_settings = {
        "steps": 1,
        "evaluate_every": 1,
        "optimizer": {"learning_rate": 1e-9},
        "schedule": {"warmup_steps": 0},
        "init_from": {"run": str(run.folder)},
    }
    larger = train(settings(image_folder, data={"size": 24}, train=train_settings), tmp_path / "run", device="cpu")
    again = regard.load(run.folder, device="cpu")
    again.resize((24, 24))
    for one, other in zip(larger.embed(image_files), again.embed(image_files)):
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)


def test_compare_runs_of_image_classifiers(run):
    (rows,) = compare_runs([run, run]).values()
    assert rows[1]["p_value"] == 1.0


def test_unknown_label_in_validation_images_is_refused(run, image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    (tmp_path / "set" / "valid" / "above").rename(tmp_path / "set" / "valid" / "beside")
    with pytest.raises(
        UserError, match=r"beside/0.png has the label 'beside', which is not in the training data \(above, below\)"
    ):
        train(settings(tmp_path / "set"), tmp_path / "run", device="cpu")


def test_damaged_image_is_refused_before_training(image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    data = (tmp_path / "set" / "train" / "below" / "7.png").read_bytes()
    (tmp_path / "set" / "train" / "below" / "7.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"train/below/7.png is damaged"):
        train(settings(tmp_path / "set"), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("inside", [True, False])
def test_starter_recipe_of_an_image_folder_trains(image_folder, tmp_path, inside, run_cli):
    lines = run_cli("new", "--minutes", "0", "classify", "--images", image_folder if inside else image_folder / "train")
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    recipe = read_recipe(tmp_path / "mine.toml")
    assert recipe.data.size == 32 and (recipe.data.valid == ["valid"]) == inside and bool(recipe.data.held_out) != inside
    short = [f"train.{name}=2" for name in ("steps", "evaluate_every")]
    short += ["model.width=16", "model.layers=1", "model.feed_forward=16", "model.heads=2"]
    assert train(tmp_path / "mine.toml", tmp_path / "run", overrides=short, device="cpu").labels == ["above", "below"]


def test_starter_recipe_refuses_images_for_other_tasks(image_folder, tmp_path, run_cli):
    with pytest.raises(UserError, match="--images is for the task classify, not 'translate'"):
        run_cli("new", "--minutes", "0", "translate", "--images", image_folder)
    with pytest.raises(UserError, match="is not a folder"):
        run_cli("new", "--minutes", "0", "classify", "--images", tmp_path / "nothing")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"data": {"size": 10}}, "data.size = 10 is not a multiple of model.patch_size = 4: 8 is"),
        ({"data": {"size": [12, 0]}}, "data.size = "),
        ({"data": {"resize": 8}}, "data.resize = 8 is smaller than data.size = 12"),
        ({"data": {"train": [], "valid": [], "world": {}}}, "data.world.kind = 'bilingual' has no images"),
        ({"data": {"text": 0}}, "no setting 'text' in data"),
        ({"model": {"max_length": 9}}, "no setting 'max_length' in model"),
        ({"model": {"positions": {"kind": "rotary"}}}, "model.positions.kind = 'rotary'"),
        ({"model": {"width": 30, "positions": {"kind": "sinusoidal"}}}, "need a multiple of 4"),
        ({"model": {"pool": "mean", "distilled": "token"}}, "set model.pool = 'class'"),
        (
            {"model": {"kind": "vi"}},
            "model.kind = 'vi': should be transformer or recurrent, or vit to classify images|no setting",
        ),
        ({"train": {"tokens_per_batch": 9}}, "no setting 'tokens_per_batch' in train; did you mean 'images_per_batch'"),
        ({"train": {"augment": {"rand_augment": {"magnitude": 11}}}}, "train.augment.rand_augment.magnitude = 11"),
        ({"train": {"regularize": {"bpe_dropout": 0.1}}}, "bpe_dropout needs tokens.kind = 'bpe', not 'none'"),
    ],
)
def test_invalid_image_settings_are_refused_in_one_line(image_folder, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        build_recipe(settings(image_folder, **changes))
    assert "\n" not in str(caught.value)


def test_image_batches_respect_images_per_batch(run):
    from regard.batches.batches import Batches

    rows = run._encode(run.data.valid)
    assert isinstance(rows, ImageClassificationRows) and run._max_positions == 10
    sizes = sorted(len(batch) for batch in Batches(rows, run.recipe.train.budget(run._max_positions), 1).plan(0))
    assert sizes == [24]
    assert sorted(len(batch) for batch in Batches(rows, 10 * 10, 1).plan(0)) == [4, 10, 10]

"""A tiny Vision Transformer from pictures in a folder to labels on the command line; and all that a run owes."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.batches.image_rows import ImageClassificationRows
from regard.cli import app
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
def pictures(tmp_path_factory):
    """Where the bright patch is says the label: a bag of patches would not know."""
    folder, chance = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 40), ("valid", 12)):
        for label, rows in (("above", slice(0, 6)), ("below", slice(6, 12))):
            (folder / name / label).mkdir(parents=True)
            for i in range(number):
                pixels = chance.integers(0, 90, (12, 12, 3))
                pixels[rows, chance.integers(0, 8) :][:, :4] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(folder / name / label / f"{i}.png")
    return folder


def settings(pictures, **changes):
    made = copy.deepcopy(SETTINGS)
    made["data"]["root"] = str(pictures)
    for part, values in changes.items():
        made[part] = {**made[part], **values}
    return made


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    made = train(settings(pictures), tmp_path_factory.mktemp("runs") / "vit", device="cpu")
    evaluate(made)
    return made


@pytest.fixture
def files(pictures):
    return [str(pictures / "valid" / label / f"{i}.png") for label in ("above", "below") for i in range(4)]


def said(*words, stdin=None):
    return CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False).stdout.splitlines()


def test_it_learns_where_something_is(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert scores["accuracy"]["low"] > 65 and "recipe:" in scores["accuracy"]["signature"]


def test_a_trivial_set_is_learned_in_a_moment(pictures, tmp_path):
    short = {"steps": 40, "evaluate_every": 40, "augment": {}, "regularize": {"dropout": 0.0}}
    run = train(
        settings(pictures, train=short, model={"layers": 1, "pool": "mean", "positions": {"kind": "sinusoidal"}}),
        tmp_path / "run",
        device="cpu",
    )
    assert evaluate(run)[0].scores["accuracy"].score == 100


def test_going_on_from_any_checkpoint_gives_the_same_bits(run, tmp_path):
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


def test_what_is_measured_is_not_augmented(run, monkeypatch):
    rows = run._encode(run.data.valid)
    trained = run._encode(run.data.valid, training=True)
    assert rows.augment is None and trained.augment == AugmentSettings.model_validate(AUGMENT)
    before = run._validate(run.data.valid, rows), run._score("valid", run.data.valid).scores
    monkeypatch.setattr("regard.batches.image_rows.sample_augmentation", lambda *_: pytest.fail("augmented"))
    assert (run._validate(run.data.valid, trained), run._score("valid", run.data.valid).scores) == before
    with pytest.raises(pytest.fail.Exception):
        trained.batch(np.arange(3), 1, 0)


def test_validation_says_what_scoring_says(run):
    found, score = (
        run._validate(run.data.valid, run._encode(run.data.valid)),
        run._score("valid", run.data.valid).scores["accuracy"],
    )
    assert found["valid_accuracy"] == pytest.approx(score.score)
    judged = run.classify([str(picture.path) for picture in run.data.valid.images])
    losses = [
        -np.log(next(one.probability for one in given if one.label == label))
        for given, label in zip(judged, run.data.valid.label)
    ]
    assert found["valid_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_loaded_is_what_was_saved_and_company_changes_nothing(run, files):
    again = regard.load(run.folder, device="cpu")
    assert again.classify(files) == run.classify(files)
    for file, together in zip(files, run.classify(files)):
        (alone,) = run.classify([file])
        assert [one.label for one in alone] == [one.label for one in together]
        assert alone[0].probability == pytest.approx(together[0].probability, abs=1e-5)
        assert sum(one.probability for one in together) == pytest.approx(1, abs=1e-5)
    assert run.classify([]) == [] and run.embed([]) == []
    image = Image.open(files[0])
    assert run.classify([image, np.asarray(image)]) == run.classify(files[:1] * 2)


def test_many_pictures_are_decoded_by_workers_in_order(run, files):
    many = [files[i % len(files)] for i in range(150)]
    found = [one[0].label for one in run.classify(many)]
    assert found == [one[0].label for one in run.classify(files)] * 18 + found[144:]


def test_the_command_line_speaks_the_promised_forms(run, files, pictures):
    lines = said("classify", run.folder, *files)
    assert [line.split("\t")[0] for line in lines] == [one[0].label for one in run.classify(files)]
    found = json.loads(said("classify", run.folder, "--json", stdin=files[0] + "\n")[0])
    assert set(found) == {"label", "probability"} and found["label"] == "above"
    mean, first = (json.loads(said("embed", run.folder, files[0], "--json", *more)[0]) for more in ([], ["--pool", "cls"]))
    assert mean["text"] == files[0] and len(mean["vector"]) == 32 and mean["vector"] != first["vector"]
    assert json.loads(said("evaluate", run.folder, "--json")[0])["metric"] == "accuracy"
    assert "images of 12 × 12 pixels, 10 positions" in "\n".join(said("plan", run.folder))


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
def test_a_run_says_what_it_cannot_do(run, files, pictures, tmp_path, words, message):
    (tmp_path / "text.png").write_text("a text")
    verb, *rest = (word.format(set=tmp_path, file=files[0]) for word in words)
    with pytest.raises(UserError, match=message):
        said(verb, run.folder, *rest)


def test_without_a_class_token_there_is_none_to_ask(pictures, tmp_path, files):
    short = {"steps": 1, "evaluate_every": 1}
    run = train(settings(pictures, train=short, model={"pool": "mean"}), tmp_path / "run", device="cpu")
    assert run.embed(files[:1])[0].vectors.shape == (1, 32)
    with pytest.raises(UserError, match="reads images without a class token; use --pool mean"):
        run.embed(files[:1], pool="cls")


def test_layers_of_embed_are_the_models(run, files):
    layers = run.model.hidden_states(run._images.rows(files[:1]).batch(np.arange(1), 0, 0).inputs["pixels"])
    assert len(layers) == 3
    for number, states in enumerate(layers):
        np.testing.assert_allclose(run.embed(files[:1], layer=number)[0].vectors[0], states[0, 1:].mean(0).detach(), atol=1e-6)


def test_the_card_and_the_folder_say_what_it_is(run):
    page, config = card(run), json.loads((run.folder / "config.json").read_text())
    assert "Labels of images" in page and "regard classify" in page and "Recognising or judging people" in page
    assert "| mine | accuracy |" in page and "vit, 2 layers of 32" in page
    assert config["size"] == [12, 12] and config["labels"] == 2 and config["architectures"] == ["VitClassifier"]
    assert not list(run.folder.glob("tokenizer*"))
    assert json.loads((run.folder / "labels.json").read_text()) == ["above", "below"]


def test_a_run_reads_pictures_of_another_size_when_it_is_told_to(run, files):
    again = regard.load(run.folder, device="cpu")
    again.resize((24, 16))
    assert again._max_positions == 1 + 6 * 4 and len(again.classify(files)) == len(files)
    with pytest.raises(UserError, match="smaller than a patch"):
        again.resize((2, 2))


def test_fine_tuning_at_a_higher_resolution_begins_from_interpolated_positions(run, pictures, tmp_path, files):
    begin = {
        "steps": 1,
        "evaluate_every": 1,
        "optimizer": {"learning_rate": 1e-9},
        "schedule": {"warmup_steps": 0},
        "init_from": {"run": str(run.folder)},
    }
    larger = train(settings(pictures, data={"size": 24}, train=begin), tmp_path / "run", device="cpu")
    again = regard.load(run.folder, device="cpu")
    again.resize((24, 24))
    for one, other in zip(larger.embed(files), again.embed(files)):
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)


def test_runs_that_read_pictures_are_compared(run):
    (rows,) = compare_runs([run, run]).values()
    assert rows[1]["p_value"] == 1.0


def test_a_label_that_was_never_learned_is_named(run, pictures, tmp_path):
    shutil.copytree(pictures, tmp_path / "set")
    (tmp_path / "set" / "valid" / "above").rename(tmp_path / "set" / "valid" / "beside")
    with pytest.raises(
        UserError, match=r"beside/0.png has the label 'beside', which is not in the training data \(above, below\)"
    ):
        train(settings(tmp_path / "set"), tmp_path / "run", device="cpu")


def test_a_broken_picture_ends_the_training_before_it_begins(pictures, tmp_path):
    shutil.copytree(pictures, tmp_path / "set")
    data = (tmp_path / "set" / "train" / "below" / "7.png").read_bytes()
    (tmp_path / "set" / "train" / "below" / "7.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"train/below/7.png is damaged"):
        train(settings(tmp_path / "set"), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("inside", [True, False])
def test_a_starter_recipe_trains(pictures, tmp_path, inside):
    lines = said("new", "classify", "--images", pictures if inside else pictures / "train")
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    recipe = read_recipe(tmp_path / "mine.toml")
    assert recipe.data.size == 32 and (recipe.data.valid == ["valid"]) == inside and bool(recipe.data.held_out) != inside
    short = [f"train.{name}=2" for name in ("steps", "evaluate_every")]
    short += ["model.width=16", "model.layers=1", "model.feed_forward=16", "model.heads=2"]
    assert train(tmp_path / "mine.toml", tmp_path / "run", overrides=short, device="cpu").labels == ["above", "below"]


def test_a_starter_recipe_says_what_it_cannot_be(pictures, tmp_path):
    with pytest.raises(UserError, match="--images is for the task classify, not 'translate'"):
        said("new", "translate", "--images", pictures)
    with pytest.raises(UserError, match="is not a folder"):
        said("new", "classify", "--images", tmp_path / "nothing")


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
def test_mistakes_in_a_recipe_are_one_line(pictures, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        build_recipe(settings(pictures, **changes))
    assert "\n" not in str(caught.value)


def test_rows_are_pictures_and_batches_hold_so_many(run):
    from regard.batches.batches import Batches

    rows = run._encode(run.data.valid)
    assert isinstance(rows, ImageClassificationRows) and run._max_positions == 10
    sizes = sorted(len(batch) for batch in Batches(rows, run.recipe.train.budget(run._max_positions), 1).plan(0))
    assert sizes == [24]
    assert sorted(len(batch) for batch in Batches(rows, 10 * 10, 1).plan(0)) == [4, 10, 10]

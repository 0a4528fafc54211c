"""A tiny captioner from pictures with captions to words and where they looked, on the command line too."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard import recipe as recipes
from regard.cli import app
from regard.errors import UserError
from regard.interop import efficientnet
from regard.models.efficientnet import EfficientNet
from regard.run.card import card
from regard.run.convert import convert
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.show.generation import trace_generation
from regard.show.neurons import show_neurons
from regard.show.selection import ViewSelection
from regard.tasks import build_recipe, parse_recipe, read_recipe
from regard.tasks.translate import Translation
from regard.training.checkpoint import read_weights
from regard.worlds import shapes

SETTINGS = {
    "task": "caption",
    "data": {"train": ["train.tsv"], "valid": ["valid.tsv"], "test": {"mine": ["valid.tsv"]}, "size": 16, "captions": [1, 2]},
    "tokens": {"kind": "words"},
    "model": {
        "encoder": {"kind": "cnn", "widths": [16, 16], "strides": [2, 2]},
        "decoder": {"kind": "lstm", "width": 32, "doubly_stochastic_weight": 0.01},
        "max_length": 12,
    },
    "train": {
        "steps": 160,
        "images_per_batch": 24,
        "evaluate_every": 40,
        "save_every": 20,
        "log_every": 10,
        "keep_checkpoints": 9,
        "evaluate_sentences": 6,
        "optimizer": {"learning_rate": 5e-3},
        "schedule": {"warmup_steps": 5},
        "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
        "augment": {"crop_padding": 1},
    },
    "decode": {"beam": 2},
}
COLOURS = {"red": (230, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 230)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """One bright patch: its colour and its half are what there is to say."""
    folder, chance = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 90), ("valid", 18)):
        lines = []
        for i in range(number):
            colour, above = list(COLOURS)[i % 3], bool(i % 2)
            pixels = chance.integers(0, 60, (16, 16, 3))
            x = chance.integers(0, 12)
            y = chance.integers(0, 4) if above else chance.integers(8, 12)
            pixels[y : y + 4, x : x + 4] = COLOURS[colour]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}{i}.png")
            half = "above" if above else "below"
            lines.append(f"{name}{i}.png\t{colour} is {half}\tit is {half} and {colour}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def settings(pictures, **changes):
    made = copy.deepcopy(SETTINGS)
    made["data"]["root"] = str(pictures)
    for part, values in changes.items():
        made[part] = {**made[part], **values}
    return made


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    made = train(settings(pictures), tmp_path_factory.mktemp("runs") / "captions", device="cpu")
    evaluate(made)
    return made


@pytest.fixture(scope="module")
def transformer(pictures, tmp_path_factory):
    decoder = {"kind": "transformer", "layers": 2, "width": 32, "heads": 2, "feed_forward": 64}
    encoder = {"kind": "patches", "layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "patch_size": 4}
    made = settings(
        pictures,
        model={"encoder": encoder, "decoder": decoder, "max_length": 12},
        train={"optimizer": {"learning_rate": 3e-3}, "evaluate_sentences": 0},
    )
    return train(made, tmp_path_factory.mktemp("runs") / "transformer", device="cpu")


def said(*words, stdin=None):
    return CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False).stdout.splitlines()


def files(pictures):
    return [str(pictures / f"valid{i}.png") for i in range(6)]


def test_it_learns_to_say_what_is_there(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert scores["bleu_1"]["score"] > 90 and scores["bleu_4"]["score"] > 70
    assert "order:2" in scores["bleu_2"]["signature"] and "nrefs:2" in scores["bleu_2"]["signature"]
    assert "case:lc" in scores["bleu_1"]["signature"] and "recipe:" in scores["bleu_1"]["signature"]
    assert scores["perplexity"]["score"] < 3


@pytest.mark.parametrize("which", ["run", "transformer"])
def test_each_word_looks_somewhere(which, pictures, request):
    run = request.getfixturevalue(which)
    for look, told in zip(run.align(files(pictures)), run.caption(files(pictures))):
        assert look.words == told[0].text.split()
        assert look.weights.shape == (len(look.words), 4, 4) and look.heads.shape[2:] == look.weights.shape
        np.testing.assert_allclose(look.weights.sum((1, 2)), 1, atol=1e-5)
    with pytest.raises(UserError, match="give one for each"):
        run.align(files(pictures), ["red is above"])


def test_a_word_looks_from_where_it_is_said(run, pictures):
    """Before a word there is the begin mark or the word before it; an empty caption looks nowhere."""
    look = next(run.align(files(pictures)[:1], ["red is above"]))
    pixels = torch.from_numpy(run._images.decode(files(pictures)[:1])).permute(0, 3, 1, 2)
    with torch.no_grad(), regard.watch(run.model, kinds="cross") as seen:
        run.model(pixels, torch.tensor([[run._special_tokens.bos, *run._ids(["red is"])[0]]]))
    np.testing.assert_allclose(look.weights.reshape(3, -1), seen.stack()[0, 0, 0].numpy(), atol=1e-5)
    nothing = next(run.align(files(pictures)[:1], [""]))
    assert nothing.words == [] and nothing.weights.shape == (0, 4, 4)


@pytest.mark.parametrize("which", ["run", "transformer"])
def test_captions_are_shown_step_by_step(which, pictures, request, tmp_path):
    opened, path = request.getfixturevalue(which), str(pictures / "valid0.png")
    found, (told,), (best,) = trace_generation(opened, path, ViewSelection("steps")), opened.align([path]), opened.caption([path])
    down, across = told.weights.shape[1:]
    assert len(found.keys) == down * across and found.keys[-1] == f"{down},{across}" and found.steps[-1].word == "</s>"
    assert np.log([step.probability for step in found.steps]).sum() == pytest.approx(best[0].log_probability, abs=1e-3)
    assert "query" in show_neurons(opened, path, ViewSelection("neurons"), out=tmp_path / "a.svg")


def test_hard_attention_learns_too(pictures, tmp_path):
    decoder = {"kind": "lstm", "width": 32, "attention": "hard"}
    made = settings(pictures, model={"decoder": decoder}, train={"steps": 60, "evaluate_every": 60})
    run = train(made, tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["bleu_1"].score > 60
    assert float(read_weights(run.folder / "model.safetensors")["baseline"]) < 0


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_going_on_from_a_checkpoint_gives_the_same_bits(attention, pictures, tmp_path):
    decoder = {"kind": "lstm", "width": 8, "attention": attention}
    made = settings(pictures, model={"decoder": decoder}, train={"steps": 8, "save_every": 4, "evaluate_every": 8})
    run = train(made, tmp_path / "whole", device="cpu")
    again = tmp_path / "again"
    shutil.copytree(run.folder, again)
    (again / "model.safetensors").unlink()
    shutil.rmtree(again / "checkpoints" / "step-00000008")
    train(again, resume=True, device="cpu")
    mine, theirs = (read_weights(folder / "checkpoints/step-00000008/model.safetensors") for folder in (run.folder, again))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_command_line_and_python_say_the_same(run, pictures, tmp_path):
    told = regard.load(run.folder, device="cpu").caption(files(pictures), beam=2)
    lines = said("caption", run.folder, *files(pictures), "--beam", 2, "--device", "cpu")
    assert lines == [best[0].text for best in told]
    found = [
        json.loads(line)
        for line in said("caption", run.folder, "--json", "--device", "cpu", stdin="\n".join(files(pictures)) + "\n")
    ]
    assert [set(one) for one in found] == [{"text", "score"}] * 6 and [one["text"] for one in found] == lines
    for out in ("a.png", "a.svg"):
        said("caption", run.folder, *files(pictures)[:2], "--out", tmp_path / out, "--device", "cpu")
        first = (tmp_path / out).read_bytes()
        said("caption", run.folder, *files(pictures)[:2], "--out", tmp_path / out, "--device", "cpu")
        assert (tmp_path / out).read_bytes() == first


def test_a_gallery_of_the_least_like_their_references(run, tmp_path):
    assert "lowest BLEU" in said("caption", run.folder, "--gallery", tmp_path / "wrong.html", "-n", 3, "--device", "cpu")[0]
    page = (tmp_path / "wrong.html").read_text()
    assert page.count("<figure>") == 3 and "valid" in page
    said("caption", run.folder, "--gallery", tmp_path / "wrong.png", "-n", 2, "--device", "cpu")
    assert Image.open(tmp_path / "wrong.png").width > 100


def test_runs_are_compared_on_several_references(run, transformer):
    rows = compare_runs([run, transformer])["mine"]
    assert {row["system"] for row in rows} == {"captions", "transformer"}


def test_other_verbs_and_the_card(run, pictures):
    assert "regard caption" in card(run) and "bleu 4" in card(run)
    assert run.embed(files(pictures))[0].vectors.shape == (1, 16)
    with pytest.raises(UserError, match="one vector per image"):
        run.embed(files(pictures), pool="words")
    assert not hasattr(run, "resize"), "a captioner reads one size"
    with pytest.raises(UserError, match="beam is 2"):
        run.caption(files(pictures), number=3)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = {**copy.deepcopy(SETTINGS), "data": {"size": 24, "world": {"kind": "shapes", "number": 60, "held_out": 8}}}
    made["model"]["max_length"] = 40
    made["train"] = {**made["train"], "steps": 4, "evaluate_every": 4, "augment": {}}
    return train(made, tmp_path_factory.mktemp("runs") / "shapes", device="cpu")


def test_the_world_judges_captions_and_attention(world, monkeypatch, tmp_path):
    """Its own captions are all true, those of other pictures hardly; looking everywhere alike is chance."""
    gold = [picture.captions[0].text for picture in world.data.tests["test"].gold]

    def telling(texts):
        return lambda pixels, **_: [[Translation(text, 0.0, 0.0, world._ids([text])[0])] for text in texts]

    monkeypatch.setattr(world, "_caption_pixels", telling(gold))
    assert "nothing is wrong" in said_gallery(world, tmp_path)
    scores = world._score("test", world.data.tests["test"]).scores
    assert scores["true"].score == scores["understood"].score == 100
    torch.nn.init.zeros_(world.model.decoder.cross_attention.attend.score.v)
    scores = world._score("test", world.data.tests["test"]).scores
    assert scores["attention_inside"].score == pytest.approx(scores["inside_by_chance"].score, abs=1e-3)
    monkeypatch.setattr(world, "_caption_pixels", telling([*gold[1:], "red blue"]))
    scores = world._score("test", world.data.tests["test"]).scores
    assert scores["true"].score < 60 and scores["understood"].score == 87.5
    assert "not wholly true" in said_gallery(world, tmp_path) and (tmp_path / "gallery.html").exists()


def said_gallery(run, folder):
    from regard.show.galleries import caption_error_gallery

    return caption_error_gallery(run, folder / "gallery.html", 3)


def test_mistakes_are_told_before_anything_is_trained(pictures, tmp_path):
    world = {"data": {"size": 32, "world": {"kind": "shapes"}}}
    for changes, words in [
        ({"train": {"augment": {"mixup": 0.2}}}, "captions cannot be mixed"),
        ({**world, "train": {"augment": {"flip": True}}}, "left and right"),
        ({"model": {"encoder": {"kind": "efficientnet-lite0"}}}, "train.init_from"),
        ({"model": {"encoder": {"kind": "patches", "patch_size": 5}}}, "not a multiple of model.encoder.patch_size"),
        ({"model": {"encoder": {"kind": "cnn", "widths": [8, 8]}}}, "one of each per block"),
        ({"model": {"encoder": {"kind": "vgg"}}}, "should be cnn, patches or efficientnet-lite0"),
        ({"model": {"decoder": {"kind": "gru"}}}, "should be lstm or transformer"),
        ({"model": {"decoder": {"hight": 3}}}, "no setting 'hight' in model.decoder"),
    ]:
        with pytest.raises(UserError, match=words):
            build_recipe({**settings(pictures), **changes})
    with pytest.raises(UserError, match=r"train0\.png"):
        train(settings(pictures, model={"max_length": 3}), tmp_path / "short", device="cpu")
    result = CliRunner().invoke(app, ["caption", str(tmp_path / "nowhere"), "--gallery", "a.html", "b.png"])
    assert isinstance(result.exception, UserError) and "leave out images" in str(result.exception)


def test_a_starter_recipe_is_a_recipe(pictures):
    made = parse_recipe("\n".join(said("new", "caption", "--data", pictures / "train.tsv")))
    assert made.task == "caption" and made.data.captions == [1, 2] and made.data.root == str(pictures)


def test_the_packages_weights_are_taken_if_they_are_the_known_ones(pictures, tmp_path, monkeypatch):
    package = tmp_path / efficientnet.PACKAGE
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('nobody runs this')\n")
    torch.save({}, package / efficientnet.FILE, _use_new_zipfile_serialization=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="not the file of version"):
        convert(efficientnet.PACKAGE, tmp_path / "weights")
    torch.manual_seed(3)
    mine = EfficientNet().state_dict()
    digest = efficientnet.hashlib.sha256((package / efficientnet.FILE).read_bytes()).hexdigest()
    monkeypatch.setattr(efficientnet, "SHA256", digest)
    monkeypatch.setattr(efficientnet, "convert_package_weights", lambda found: mine)
    assert convert(efficientnet.PACKAGE, tmp_path / "weights") is None
    made = settings(
        pictures,
        model={"encoder": {"kind": "efficientnet-lite0"}},
        train={
            "steps": 2,
            "evaluate_every": 2,
            "evaluate_sentences": 0,
            "init_from": {"run": str(tmp_path / "weights"), "modules": ["encoder"], "tokenizer": False},
        },
    )
    run = train(made, tmp_path / "run", device="cpu")
    kept = run.model.encoder.network.state_dict()
    assert all(torch.equal(kept[name], mine[name]) for name in mine)


def test_shapes_are_what_the_recipe_says():
    recipe = read_recipe("recipes/shapes-caption.toml")
    assert recipe.model.encoder.grid((32, 32)) == (8, 8) and isinstance(recipe.data.world, recipes.ShapesWorld)
    longest = max(len(caption.text.split()) for picture in shapes.generate(300, 1) for caption in picture.captions)
    assert longest + 4 < recipe.model.max_length

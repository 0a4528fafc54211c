"""Image captioning: training, attention of the generated words, scoring and the command line."""

import copy
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard import recipe as recipes
from regard.batches.image_store import take_pixels
from regard.cli import app
from regard.errors import UserError
from regard.interop import efficientnet
from regard.models.efficientnet import EfficientNet, EfficientNetFeatureMap
from regard.recipe.image_models import EfficientNetEncoderModel
from regard.run.card import card
from regard.run.convert import convert
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.show.generation import trace_generation
from regard.show.neurons import show_neurons
from regard.show.selection import ViewSelection
from regard.tasks import build_recipe, parse_recipe, read_recipe
from regard.tasks.caption import CaptionRun
from regard.tasks.shared.images import are_frozen
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
def image_folder(tmp_path_factory):
    """Write images of one bright patch, with captions that name its colour and its half of the image."""
    folder, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 90), ("valid", 18)):
        lines = []
        for i in range(number):
            colour, above = list(COLOURS)[i % 3], bool(i % 2)
            pixels = rng.integers(0, 60, (16, 16, 3))
            x = rng.integers(0, 12)
            y = rng.integers(0, 4) if above else rng.integers(8, 12)
            pixels[y : y + 4, x : x + 4] = COLOURS[colour]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}{i}.png")
            half = "above" if above else "below"
            lines.append(f"{name}{i}.png\t{colour} is {half}\tit is {half} and {colour}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def settings(image_folder, **changes):
    config = copy.deepcopy(SETTINGS)
    config["data"]["root"] = str(image_folder)
    for part, values in changes.items():
        config[part] = {**config[part], **values}
    return config


@pytest.fixture(scope="module")
def run(image_folder, tmp_path_factory):
    trained = train(settings(image_folder), tmp_path_factory.mktemp("runs") / "captions", device="cpu")
    evaluate(trained)
    return trained


@pytest.fixture(scope="module")
def transformer(image_folder, tmp_path_factory):
    decoder = {"kind": "transformer", "layers": 2, "width": 32, "heads": 2, "feed_forward": 64}
    encoder = {"kind": "patches", "layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "patch_size": 4}
    config = settings(
        image_folder,
        model={"encoder": encoder, "decoder": decoder, "max_length": 12},
        train={"optimizer": {"learning_rate": 3e-3}, "evaluate_sentences": 0},
    )
    return train(config, tmp_path_factory.mktemp("runs") / "transformer", device="cpu")


RAN_ONCE = "the frozen parts of the model ran over the data once"


def train_decoder(image_folder, folder, **changes):
    """Train over a frozen encoder; return the losses of all steps, the validation metrics and the run."""
    quick = {"steps": 12, "log_every": 1, "evaluate_every": 6, "save_every": 12, "augment": {}, "freeze": ["encoder.blocks"]}
    trained = train(settings(image_folder, train={**quick, **changes}), folder, device="cpu")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "valid_loss", "valid_bleu") if name in line], trained


def test_a_frozen_encoder_that_runs_once_trains_the_same_captioner(image_folder, tmp_path, monkeypatch, capsys):
    regularize = {"regularize": {"dropout": 0.3, "label_smoothing": 0.0}}
    once, captioner = train_decoder(image_folder, tmp_path / "once", **regularize)
    assert RAN_ONCE in capsys.readouterr().err and len(once) == 16
    captioner.model.encoder.blocks.requires_grad_(False)  # a run that is loaded has no frozen weights but an EfficientNet's
    scores, rows = captioner._score("mine", captioner.data.valid), captioner._evaluation_rows(captioner.data.valid)
    with torch.no_grad():
        expected = captioner.model.feature_map(take_pixels(rows.pixels, np.arange(len(rows.pixels))))
    torch.testing.assert_close(captioner._run_frozen(rows).feature_maps, expected.half(), rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(CaptionRun, "_run_frozen", lambda run, rows: rows)
    every_step, _ = train_decoder(image_folder, tmp_path / "every step", **regularize)
    assert RAN_ONCE not in capsys.readouterr().err
    assert once == pytest.approx(every_step, rel=2e-3)  # feature maps are kept in half precision
    again = captioner._score("mine", captioner.data.valid)
    assert scores.outputs == again.outputs
    assert scores.scores["perplexity"].score == pytest.approx(again.scores["perplexity"].score, rel=1e-3)


def test_an_ensemble_over_one_frozen_encoder_runs_it_once(run, monkeypatch):
    together = regard.load(run.folder, ensemble=[run.folder], device="cpu")
    (other,) = together._ensemble
    with torch.no_grad():
        other.model.output.weight.add_(0.1 * torch.randn_like(other.model.output.weight))
    together.model.encoder.blocks.requires_grad_(False)
    examples = together.data.valid
    rows = together._evaluation_rows(examples)
    assert together._run_frozen(rows).feature_maps is not None
    once = together._score("mine", examples)
    with monkeypatch.context() as patch:
        patch.setattr(CaptionRun, "_run_frozen", lambda run, rows: rows)
        every_time = together._score("mine", examples)
    assert once.outputs == every_time.outputs
    assert once.scores["perplexity"].score == pytest.approx(every_time.scores["perplexity"].score, rel=1e-3)
    assert once.scores["perplexity"].score != pytest.approx(run._score("mine", examples).scores["perplexity"].score, rel=1e-2)
    with torch.no_grad():
        next(other.model.encoder.blocks.parameters()).add_(0.1)
    assert together._run_frozen(rows) is rows


@pytest.mark.parametrize("changes", [{"freeze": []}, {"augment": {"crop_padding": 1}}])
def test_an_encoder_runs_in_every_step_where_its_outputs_change(image_folder, tmp_path, changes, capsys):
    train_decoder(image_folder, tmp_path / "run", **changes)
    assert RAN_ONCE not in capsys.readouterr().err


def test_a_batch_norm_that_follows_its_batches_is_not_frozen():
    for frozen in (True, False):
        settings = EfficientNetEncoderModel(kind="efficientnet-lite0", channels=112, frozen=frozen)
        encoder = EfficientNetFeatureMap(settings, (32, 32)).eval()
        assert are_frozen(encoder, [encoder.network.requires_grad_(False)]) == frozen and not encoder.training


def image_files(image_folder):
    return [str(image_folder / f"valid{i}.png") for i in range(6)]


def test_captioner_learns_and_bleu_has_signatures(run):
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert scores["bleu_1"]["score"] > 90 and scores["bleu_4"]["score"] > 70
    assert "order:2" in scores["bleu_2"]["signature"] and "nrefs:2" in scores["bleu_2"]["signature"]
    assert "case:lc" in scores["bleu_1"]["signature"] and "recipe:" in scores["bleu_1"]["signature"]
    assert scores["perplexity"]["score"] < 3


@pytest.mark.parametrize("fixture_name", ["run", "transformer"])
def test_caption_attention_has_one_normalized_grid_per_word(fixture_name, image_folder, request):
    run = request.getfixturevalue(fixture_name)
    for alignment, caption in zip(run.align(image_files(image_folder)), run.caption(image_files(image_folder))):
        assert alignment.words == caption.text.split()
        assert alignment.weights.shape == (len(alignment.words), 4, 4) and alignment.heads.shape[2:] == alignment.weights.shape
        np.testing.assert_allclose(alignment.weights.sum((1, 2)), 1, atol=1e-5)
    with pytest.raises(UserError, match="give one for each"):
        run.align(image_files(image_folder), ["red is above"])


def test_caption_alignment_equals_recorded_cross_attention(run, image_folder):
    """The query of a word is the begin token or the word before it; an empty caption has no weights."""
    alignment = run.align(image_files(image_folder)[0], "red is above")
    pixels = torch.from_numpy(run._images.decode(image_files(image_folder)[:1])).permute(0, 3, 1, 2)
    with torch.no_grad(), regard.watch(run.model, kinds="cross") as seen:
        run.model(pixels, torch.tensor([[run._special_tokens.bos, *run._ids(["red is"])[0]]]))
    np.testing.assert_allclose(alignment.weights.reshape(3, -1), seen.stack()[0, 0, 0].numpy(), atol=1e-5)
    nothing = run.align(image_files(image_folder)[0], "")
    assert nothing.words == [] and nothing.weights.shape == (0, 4, 4)


@pytest.mark.parametrize("fixture_name", ["run", "transformer"])
def test_generation_trace_of_a_caption_equals_its_log_probability(fixture_name, image_folder, request, tmp_path):
    run, path = request.getfixturevalue(fixture_name), str(image_folder / "valid0.png")
    found, alignment, best = trace_generation(run, path, ViewSelection("steps")), run.align(path), run.caption(path)
    down, across = alignment.weights.shape[1:]
    assert len(found.keys) == down * across and found.keys[-1] == f"{down},{across}" and found.steps[-1].word == "</s>"
    assert np.log([step.probability for step in found.steps]).sum() == pytest.approx(best.log_probability, abs=1e-3)
    assert "query" in show_neurons(run, path, ViewSelection("neurons")).description


def test_hard_attention_captioner_learns(image_folder, tmp_path):
    decoder = {"kind": "lstm", "width": 32, "attention": "hard"}
    config = settings(image_folder, model={"decoder": decoder}, train={"steps": 60, "evaluate_every": 60})
    run = train(config, tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["bleu_1"].score > 60
    assert float(read_weights(run.folder / "model.safetensors")["baseline"]) < 0


@pytest.mark.parametrize("attention, changes", [("soft", {}), ("hard", {}), ("soft", {"self_critical": {"samples": 2}})])
def test_resumed_captioner_equals_uninterrupted_training_bit_for_bit(attention, changes, image_folder, tmp_path):
    decoder, short = {"kind": "lstm", "width": 8, "attention": attention}, {"steps": 8, "save_every": 4, "evaluate_every": 8}
    config = settings(image_folder, model={"decoder": decoder}, train={**short, **changes})
    run = train(config, tmp_path / "whole", device="cpu")
    again = tmp_path / "again"
    shutil.copytree(run.folder, again)
    (again / "model.safetensors").unlink()
    shutil.rmtree(again / "checkpoints" / "step-00000008")
    train(again, resume=True, device="cpu")
    mine, theirs = (read_weights(folder / "checkpoints/step-00000008/model.safetensors") for folder in (run.folder, again))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("fixture_name", ["run", "transformer"])
def test_self_critical_training_raises_the_bleu_of_samples(fixture_name, image_folder, tmp_path, request):
    """The loss in the log is 1 - BLEU of the samples, from a model that has just begun to learn."""
    model = request.getfixturevalue(fixture_name).recipe.model.model_dump(exclude_none=True)
    short = {"steps": 40, "evaluate_every": 40, "save_every": 40, "optimizer": {"learning_rate": 3e-3}}
    start = train({**settings(image_folder, train=short), "model": model}, tmp_path / "start", device="cpu")
    changes = {
        **short,
        "steps": 160,
        "evaluate_every": 160,
        "schedule": {"kind": "constant", "warmup_steps": 5},
        "init_from": str(start.folder),
        "self_critical": {"samples": 8},
    }
    train({**settings(image_folder, train=changes), "model": model}, tmp_path / "run", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert 0 < np.mean(losses[-3:]) < 0.85 * losses[0]


@pytest.mark.parametrize(
    "train_settings, decoder, message",
    [
        ({"evaluate_sentences": 0}, {}, "set train.evaluate_sentences"),
        ({"regularize": {"r_drop": 1.0}}, {}, "set it to 0"),
        ({"compile": True}, {}, "train.compile: the host takes part"),
        ({"cuda_graphs": True}, {}, "train.cuda_graphs: the host takes part"),
        ({"parallel": "fsdp"}, {}, "use 'ddp'"),
        ({}, {"attention": "hard"}, "use attention = 'soft'"),
    ],
)
def test_settings_that_self_critical_training_refuses(image_folder, train_settings, decoder, message):
    config = settings(image_folder, train={"self_critical": {}, **train_settings})
    config["model"]["decoder"] |= decoder
    with pytest.raises(UserError, match=message):
        build_recipe(config)


def test_caption_command_equals_the_python_api(run, image_folder, tmp_path, run_cli):
    captions = regard.load(run.folder, device="cpu").caption(image_files(image_folder), beam=2)
    lines = run_cli("caption", run.folder, *image_files(image_folder), "--beam", 2, "--device", "cpu")
    assert lines == [best.text for best in captions]
    found = [
        json.loads(line)
        for line in run_cli("caption", run.folder, "--json", "--device", "cpu", stdin="\n".join(image_files(image_folder)) + "\n")
    ]
    assert [set(one) for one in found] == [{"text", "score"}] * 6 and [one["text"] for one in found] == lines
    for out in ("a.png", "a.svg"):
        run_cli("caption", run.folder, *image_files(image_folder)[:2], "--out", tmp_path / out, "--device", "cpu")
        first = (tmp_path / out).read_bytes()
        run_cli("caption", run.folder, *image_files(image_folder)[:2], "--out", tmp_path / out, "--device", "cpu")
        assert (tmp_path / out).read_bytes() == first


def test_caption_gallery_shows_the_captions_with_the_lowest_bleu(run, tmp_path, run_cli):
    assert "lowest BLEU" in run_cli("caption", run.folder, "--gallery", tmp_path / "wrong.html", "-n", 3, "--device", "cpu")[0]
    page = (tmp_path / "wrong.html").read_text()
    assert page.count("<figure>") == 3 and "valid" in page
    run_cli("caption", run.folder, "--gallery", tmp_path / "wrong.png", "-n", 2, "--device", "cpu")
    assert Image.open(tmp_path / "wrong.png").width > 100


def test_compare_runs_of_captioners_with_several_references(run, transformer):
    rows = compare_runs([run, transformer])["mine"]
    assert {row["system"] for row in rows} == {"captions", "transformer"}


def test_captioner_card_embed_and_unsupported_methods(run, image_folder):
    assert "regard caption" in card(run) and "bleu 4" in card(run)
    assert run.embed(image_files(image_folder))[0].vectors.shape == (1, 16)
    with pytest.raises(UserError, match="one vector per image"):
        run.embed(image_files(image_folder), pool="words")
    assert not hasattr(run, "resize"), "a captioner has a fixed image size"
    with pytest.raises(UserError, match="beam is 2"):
        run.caption(image_files(image_folder), number=3)


@pytest.fixture(scope="module")
def shapes_run(tmp_path_factory):
    config = {**copy.deepcopy(SETTINGS), "data": {"size": 24, "world": {"kind": "shapes", "number": 60, "held_out": 8}}}
    config["model"]["max_length"] = 40
    config["train"] = {**config["train"], "steps": 4, "evaluate_every": 4, "augment": {}}
    return train(config, tmp_path_factory.mktemp("runs") / "shapes", device="cpu")


def test_shapes_world_scores_caption_truth_and_attention(shapes_run, monkeypatch, tmp_path):
    """Gold captions are all true, captions of other images mostly false; uniform attention scores at chance level."""
    gold = [image.captions[0].text for image in shapes_run.data.tests["test"].gold]

    def fixed_captions(texts):
        return lambda pixels, **_: [[Translation(text, 0.0, 0.0, shapes_run._ids([text])[0])] for text in texts]

    monkeypatch.setattr(shapes_run, "_caption_pixels", fixed_captions(gold))
    assert "nothing is wrong" in write_error_gallery(shapes_run, tmp_path)
    scores = shapes_run._score("test", shapes_run.data.tests["test"]).scores
    assert scores["true"].score == scores["understood"].score == 100
    torch.nn.init.zeros_(shapes_run.model.decoder.cross_attention.attend.score.v)
    scores = shapes_run._score("test", shapes_run.data.tests["test"]).scores
    assert scores["attention_inside"].score == pytest.approx(scores["inside_by_chance"].score, abs=1e-3)
    monkeypatch.setattr(shapes_run, "_caption_pixels", fixed_captions([*gold[1:], "red blue"]))
    scores = shapes_run._score("test", shapes_run.data.tests["test"]).scores
    assert scores["true"].score < 60 and scores["understood"].score == 87.5
    assert "not wholly true" in write_error_gallery(shapes_run, tmp_path) and (tmp_path / "gallery.html").exists()


def write_error_gallery(run, folder):
    from regard.show.galleries import caption_error_gallery

    return caption_error_gallery(run, folder / "gallery.html", 3)


def test_invalid_caption_settings_are_refused_before_training(image_folder, tmp_path):
    world = {"data": {"size": 32, "world": {"kind": "shapes"}}}
    for changes, words in [
        ({"train": {"augment": {"mixup": 0.2}}}, "captions cannot be mixed"),
        ({**world, "train": {"augment": {"flip": True}}}, "left and right"),
        ({"model": {"encoder": {"kind": "efficientnet-lite0"}}}, "train.init_from"),
        ({"model": {"encoder": {"kind": "patches", "patch_size": 5}}}, "not a multiple of model.encoder.patch_size"),
        ({"model": {"encoder": {"kind": "cnn", "widths": [8, 8]}}}, "one of each per block"),
        ({"model": {"encoder": {"kind": "vgg"}}}, "should be cnn, patches or efficientnet-lite0, -lite1 or -lite2"),
        ({"model": {"decoder": {"kind": "gru"}}}, "should be lstm or transformer"),
        ({"model": {"decoder": {"hight": 3}}}, "no setting 'hight' in model.decoder"),
    ]:
        with pytest.raises(UserError, match=words):
            build_recipe({**settings(image_folder), **changes})
    with pytest.raises(UserError, match=r"train0\.png"):
        train(settings(image_folder, model={"max_length": 3}), tmp_path / "short", device="cpu")
    result = CliRunner().invoke(app, ["caption", str(tmp_path / "nowhere"), "--gallery", "a.html", "b.png"])
    assert isinstance(result.exception, UserError) and "leave out images" in str(result.exception)


def test_starter_recipe_of_captions_is_valid(image_folder, run_cli):
    config = parse_recipe("\n".join(run_cli("new", "--minutes", "0", "caption", "--data", image_folder / "train.tsv")))
    assert config.task == "caption" and config.data.captions == [1, 2] and config.data.root == str(image_folder)


@pytest.mark.parametrize("name", efficientnet.PACKAGES)
def test_efficientnet_package_weights_are_converted_only_if_their_hash_matches(image_folder, tmp_path, monkeypatch, name):
    package, known = tmp_path / name, efficientnet.PACKAGES[name]
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('nobody runs this')\n")
    torch.save({}, package / known.file, _use_new_zipfile_serialization=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="not the file of version"):
        convert(name, tmp_path / "weights")
    torch.manual_seed(3)
    mine = EfficientNet(known.kind).state_dict()
    digest = hashlib.sha256((package / known.file).read_bytes()).hexdigest()
    monkeypatch.setitem(efficientnet.PACKAGES, name, known._replace(sha256=digest))
    monkeypatch.setattr(efficientnet, "convert_package_weights", lambda found: mine)
    assert convert(name, tmp_path / "weights") is None
    config = settings(
        image_folder,
        model={"encoder": {"kind": known.kind}},
        train={
            "steps": 2,
            "evaluate_every": 2,
            "evaluate_sentences": 0,
            "init_from": {"run": str(tmp_path / "weights"), "modules": ["encoder"], "tokenizer": False},
        },
    )
    run = train(config, tmp_path / "run", device="cpu")
    kept = run.model.encoder.network.state_dict()
    assert all(torch.equal(kept[name], mine[name]) for name in mine)


def test_shapes_caption_recipe_fits_the_grid_and_the_longest_caption():
    recipe = read_recipe("recipes/shapes-caption.toml")
    assert recipe.model.encoder.grid((32, 32)) == (8, 8) and isinstance(recipe.data.world, recipes.ShapesWorld)
    longest = max(len(caption.text.split()) for image in shapes.generate(300, 1) for caption in image.captions)
    assert longest + 4 < recipe.model.max_length

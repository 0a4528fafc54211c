"""A tiny DALL·E from pictures with captions to pictures on the command line: its codes first, then the Transformer that draws."""

import copy
import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.batches.batches import sequential_batches
from regard.batches.image_rows import TextToImageRows, caption_prefix
from regard.batches.ragged import Ragged
from regard.cli import app
from regard.errors import UserError
from regard.layers.convolution import GridConv2d
from regard.models.dvae import Dvae
from regard.plan import plan
from regard.run.card import card
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.show.galleries import contact_sheet
from regard.tasks import build_recipe, parse_recipe
from regard.tasks.text_to_image import GeneratedImage, TextToImageRun
from regard.training.checkpoint import read_weights

LOOKS = {"a red picture": (230, 20, 20), "a blue picture": (20, 20, 230)}
TRAIN = {
    "evaluate_every": 40,
    "save_every": 20,
    "log_every": 20,
    "keep_checkpoints": 9,
    "schedule": {"warmup_steps": 5},
    "optimizer": {"learning_rate": 1e-2},
}
CODES = {
    "task": "image-codes",
    "data": {"train": ["train.tsv"], "valid": ["valid.tsv"], "test": {"mine": ["valid.tsv"]}, "size": 8},
    "model": {"codebook_size": 8, "code_width": 8, "width": 16, "layers": 1, "anneal_steps": 60},
    "train": {**TRAIN, "steps": 80, "images_per_batch": 8},
}
DRAW = {
    "task": "text-to-image",
    "data": CODES["data"],
    "tokens": {"kind": "words"},
    "model": {"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "text_length": 6, "attention": ["row", "column"]},
    "train": {
        **TRAIN,
        "steps": 120,
        "images_per_batch": 8,
        "optimizer": {"learning_rate": 5e-3},
        "regularize": {"dropout": 0.1, "label_smoothing": 0.01},
    },
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two captions and the two pictures they mean, with a little noise."""
    folder, chance = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 12), ("valid", 4)):
        lines = []
        for caption, colour in LOOKS.items():
            for i in range(number):
                pixels = np.full((8, 8, 3), colour) + chance.integers(-8, 9, (8, 8, 3))
                file = f"{name}-{caption.split()[1]}-{i}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / file)
                lines.append(f"{file}\t{caption}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def settings(base, pictures, **changes):
    made = copy.deepcopy(base)
    made["data"]["root"] = str(pictures)
    for part, values in changes.items():
        made[part] = {**made.get(part, {}), **values}
    return made


@pytest.fixture(scope="module")
def codes(pictures, tmp_path_factory):
    run = train(settings(CODES, pictures), tmp_path_factory.mktemp("runs") / "codes", device="cpu")
    evaluate(run)
    return run


@pytest.fixture(scope="module")
def run(pictures, codes, tmp_path_factory):
    made = train(
        settings(DRAW, pictures, model={"image_codes": {"run": str(codes.folder)}}),
        tmp_path_factory.mktemp("runs") / "draw",
        device="cpu",
    )
    evaluate(made)
    return made


def said(*words):
    return CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False).stdout.splitlines()


def nearest(picture):
    return min(LOOKS, key=lambda caption: np.abs(picture.mean((0, 1)) - LOOKS[caption]).sum())


def resumed(run, stop, again):
    """A copy of a run that lost everything after a step, trained to its end."""
    shutil.copytree(run.folder, again)
    (again / "model.safetensors").unlink()
    for path in (again / "checkpoints").iterdir():
        if int(path.name[5:]) > stop:
            shutil.rmtree(path)
    train(again, resume=True, device="cpu")
    last = f"checkpoints/step-{run.recipe.train.steps:08d}/model.safetensors"
    return read_weights(run.folder / last), read_weights(again / last)


def test_it_draws_what_it_is_told(run):
    for caption, found in zip(LOOKS, run.draw(list(LOOKS), number=6, temperature=0.5)):
        assert [nearest(one.image) for one in found] == [caption] * 6


def test_codes_there_and_back(codes, pictures):
    files = sorted(pictures.glob("valid-*.png"))
    found = codes.encode(files)
    assert found.shape == (8, 2, 2) and set(found.ravel()) <= set(range(8))
    again = codes.decode(found)
    assert again.shape == (8, 8, 8, 3) and again.dtype == np.uint8
    real = np.stack([np.asarray(Image.open(file)) for file in files])
    assert np.abs(again.astype(int) - real).mean() < 25
    np.testing.assert_array_equal(codes.encode(files[:1])[0], found[0])  # one by one as all at once
    np.testing.assert_array_equal(codes.encode([Image.open(files[0]), real[1]]), found[:2])
    assert codes.encode([]).shape == (0, 2, 2) and codes.decode(np.zeros((0, 2, 2), int)).shape == (0, 8, 8, 3)
    for wrong in (np.zeros((1, 3, 2), int), np.full((1, 2, 2), 8), np.full((1, 2, 2), -1), np.zeros((1, 2, 2))):
        with pytest.raises(UserError, match="codes"):
            codes.decode(wrong)


def test_codes_are_scored(codes):
    scores = json.loads((codes.folder / "scores.json").read_text())["mine"]
    assert set(scores) == {"psnr", "mse", "codes_used", "code_perplexity"} and scores["psnr"]["low"] > 15
    assert 0 < scores["codes_used"]["score"] <= 100 and 1 <= scores["code_perplexity"]["score"] <= 8


@pytest.mark.parametrize(
    "model",
    [
        {"quantizer": "vq"},
        {"quantizer": "vq", "codebook_update": "loss"},
        {"kl_weight": 1.0, "reconstruction_loss": "laplace"},
        {"reconstruction_loss": "l1"},
    ],
)
def test_every_kind_of_codes_learns_and_goes_on_with_the_same_bits(model, pictures, tmp_path):
    made = train(
        settings(CODES, pictures, model={**CODES["model"], **model}, train={"steps": 60}), tmp_path / "run", device="cpu"
    )
    assert evaluate(made)[0].scores["psnr"].score > 11  # one picture for all: 9.4
    whole, again = resumed(made, 20, tmp_path / "again")
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)


def test_drawing_goes_on_with_the_same_bits_without_the_run_of_its_codes(pictures, codes, tmp_path):
    shutil.copytree(codes.folder, tmp_path / "codes")
    model = {"image_codes": {"run": str(tmp_path / "codes")}}
    made = train(settings(DRAW, pictures, model=model, train={"steps": 40}), tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "codes")
    whole, again = resumed(made, 20, tmp_path / "again")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(made.folder, moved)
    assert np.array_equal(
        regard.load(moved, device="cpu").draw(["a red picture"])[0][0].image, made.draw(["a red picture"])[0][0].image
    )


def test_what_is_drawn_depends_on_the_seed_alone(run):
    captions = list(LOOKS)
    together = run.draw(captions, number=3, temperature=2.0, seed=7)
    assert all(
        np.array_equal(a.codes, b.codes) and a.score == pytest.approx(b.score, abs=1e-4)
        for a, b in zip(together[0], run.draw(captions[:1], number=3, temperature=2.0, seed=7)[0])
    )
    assert np.array_equal(run.draw(captions[:1], temperature=2.0, seed=7)[0][0].codes, together[0][0].codes)
    one, two = run.draw(captions[:1] * 2, number=3, temperature=4.0)
    assert any(not np.array_equal(a.codes, b.codes) for a, b in zip(one, two))
    other = run.draw(captions, number=3, temperature=2.0, seed=8)
    assert any(not np.array_equal(a.codes, b.codes) for a, b in zip(together[0], other[0]))


def test_the_decoders_score_is_the_re_scored_one(run):
    (found,) = run.draw(["a blue picture"], number=2, temperature=1.5)
    text = caption_prefix(Ragged.from_rows(run._caption_ids(["a blue picture"])), 6, run.tokenizers[0].size)
    for one in found:
        rows = TextToImageRows(
            Ragged.from_rows(run._caption_ids(["a blue picture"])),
            np.array([0, 1]),
            one.codes.reshape(1, -1),
            run.tokenizers[0].size,
            6,
        )
        assert run._nlls(rows)[0][0, 1] == pytest.approx(-one.score, abs=1e-4)
    assert text.shape == (1, 7)


def test_another_run_ranks(run):
    class Blue:
        """Likes blue."""

        def similarity(self, images, texts):
            assert texts == ["a red picture"] and len(images) == 12
            return np.array([[image[..., 2].mean()] for image in images])

    (found,) = run.draw(["a red picture"], number=3, temperature=3.0, reranker=Blue(), candidates=12)
    (every,) = run.draw(["a red picture"], number=12, temperature=3.0)
    every = sorted((one.image[..., 2].mean() for one in every), reverse=True)
    assert [one.score for one in found] == pytest.approx(every[:3])
    with pytest.raises(UserError, match="does not compare images with texts; rerank with a run of task = 'contrastive'"):
        run.draw(["a red picture"], reranker=run)
    with pytest.raises(UserError, match="candidates = 2: the best 3 of them"):
        run.draw(["a red picture"], number=3, reranker=Blue(), candidates=2)
    with pytest.raises(UserError, match="candidates = 8: name the run that chooses"):
        run.draw(["a red picture"], candidates=8)


def test_the_command_line_draws(run, tmp_path):
    one = json.loads(said("draw", run.folder, "a red picture", "--out", tmp_path / "a.png", "--json")[0])
    assert one["file"] == str(tmp_path / "a.png") and set(one) == {"file", "score"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]
    lines = said("draw", run.folder, "a red picture", "--out", tmp_path / "b.png", "--number", "5", "--seed", "3")
    assert len(lines) == 5 and lines[4].startswith(str(tmp_path / "b-5.png") + "\t")
    assert np.asarray(Image.open(tmp_path / "b-1.png")).shape == (8, 8, 3)
    assert np.asarray(Image.open(tmp_path / "b.png")).shape == (2 * 10 + 2, 3 * 10 + 2, 3)
    bytes_before = (tmp_path / "b.png").read_bytes()
    said("draw", run.folder, "a red picture", "--out", tmp_path / "b.png", "--number", "5", "--seed", "3")
    assert (tmp_path / "b.png").read_bytes() == bytes_before
    said("draw", run.folder, "a red picture", "--out", tmp_path / "c.png", "--greedy")


def test_a_gallery_shows_captions_of_the_test_set_beside_the_truth(run, tmp_path):
    said = CliRunner().invoke(app, ["draw", str(run.folder), "--gallery", str(tmp_path / "a.svg"), "-n", "3", "--device", "cpu"])
    assert said.exit_code == 0 and "2 captions of mine" in said.output  # two different ones among eight
    page = (tmp_path / "a.svg").read_text()
    assert all(caption in page for caption in LOOKS) and page.count("<image") == 2 * (2 + 3) and "wrong" not in page
    CliRunner().invoke(app, ["draw", str(run.folder), "--gallery", str(tmp_path / "b.svg"), "-n", "3", "--device", "cpu"])
    assert page == (tmp_path / "b.svg").read_text()
    words = ["draw", str(run.folder), "--gallery", str(tmp_path / "c.svg"), "-n", "3", "--no-references", "--device", "cpu"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "c.svg").read_text().count("<image") == 2 * 3


def test_a_sheet_shows_each_picture_in_its_place():
    whole = contact_sheet([np.full((4, 6, 3), shade, np.uint8) for shade in (10, 20, 30, 40, 50)])
    assert whole.shape == (2 * 6 + 2, 3 * 8 + 2, 3)
    for place, shade in enumerate((10, 20, 30, 40, 50, 255)):
        top, left = 2 + place // 3 * 6, 2 + place % 3 * 8
        assert (whole[top : top + 4, left : left + 6] == shade).all()


@pytest.mark.parametrize(
    "words, message",
    [
        (["a red picture", "--out", "{}/a.jpg"], "images are written as .png"),
        (["a red picture", "--out", "{}/no/a.png"], "there is no folder"),
        (["", "--out", "{}/a.png"], "caption 1 is empty"),
        (["a red picture " * 4, "--out", "{}/a.png"], "caption 1 has 12 tokens, the model takes 6"),
        (["a red picture", "--out", "{}/a.png", "--temperature", "0"], "temperature = 0.0"),
        (["a red picture", "--out", "{}/a.png", "--number", "0"], "number = 0"),
        (["a red picture", "--out", "{}/a.png", "--greedy", "--number", "2"], "would be the same without a temperature"),
    ],
)
def test_mistakes_are_told(run, tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        said("draw", run.folder, *(word.format(tmp_path) for word in words))


def test_what_does_not_fit_is_refused_before_training(run, codes, pictures, tmp_path):
    fitting = {**DRAW["model"], "image_codes": {"run": str(codes.folder)}}
    with pytest.raises(UserError, match=r"data.size = 12, but model.image_codes.run"):
        train(settings(DRAW, pictures, model=fitting, data={**DRAW["data"], "root": str(pictures), "size": 12}), tmp_path / "a")
    with pytest.raises(UserError, match="is a run of task = 'text-to-image'; name one of task = 'image-codes'"):
        train(settings(DRAW, pictures, model={**fitting, "image_codes": {"run": str(run.folder)}}), tmp_path / "b")
    with pytest.raises(UserError, match="is not a finished run folder"):
        train(settings(DRAW, pictures, model={**fitting, "image_codes": {"run": "nowhere"}}), tmp_path / "c")
    with pytest.raises(UserError, match=r"has a caption of 3 tokens, more than model.text_length = 2"):
        train(settings(DRAW, pictures, model={**fitting, "text_length": 2}), tmp_path / "d")
    with pytest.raises(UserError, match=r"is not a multiple of model.downsampling = 4: 8 is"):
        train(settings(CODES, pictures, data={**CODES["data"], "size": 9}), tmp_path / "e")
    with pytest.raises(UserError, match="the codebook is a moving average already"):
        train(settings(CODES, pictures, model={"quantizer": "vq"}, train={"ema_decay": 0.9}), tmp_path / "f")


def test_what_has_no_paired_test_says_so(run):
    with pytest.raises(UserError, match="generates images, for which there is no paired test"):
        said("compare", run.folder, run.folder)


def test_captions_take_turns(run):
    captions = Ragged.from_rows([[4], [5, 6], [7]])
    rows = TextToImageRows(captions, np.array([0, 2, 3]), np.zeros((2, 4), np.uint16), vocabulary_size=10, text_length=3)
    seen = {tuple(rows.batch(np.array([0]), 1, epoch).inputs["target"][0, 1:4].tolist()) for epoch in range(20)}
    assert seen == {(4, 11, 12), (5, 6, 12)}
    batch = rows.deterministic().batch(np.array([0, 1]), 1, 3)
    assert batch.inputs["target"].tolist() == [[1, 4, 11, 12, 13, 13, 13], [1, 7, 11, 12, 13, 13, 13]]
    assert batch.labels.tolist() == [[4, 11, 12, 13, 13, 13, 13], [7, 11, 12, 13, 13, 13, 13]]


def test_too_long_captions_are_dropped_where_they_are_learned_from_and_cut_where_they_are_scored(run):
    examples = run.data.valid
    examples = type(examples)(examples.images[:3], "set", captions=[["a red picture", "a " * 9], ["red " * 9], ["a"]])
    run.recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"too_long": "drop"})})
    learned, scored = run._encode(examples, training=True), run._encode(examples)
    assert len(learned) == 2 and learned.offsets.tolist() == [0, 1, 2]
    assert len(scored) == 3 and scored.offsets.tolist() == [0, 2, 3, 4] and scored.captions.lengths.tolist() == [3, 6, 6, 1]


def test_the_model_is_told_every_step(pictures, tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(Dvae, "begin_step", lambda self, step: steps.append(step))
    short = settings(CODES, pictures, train={"steps": 3, "evaluate_every": 3, "gradient_accumulation_steps": 2})
    train(short, tmp_path / "run", device="cpu")
    assert steps == [1, 2, 3]


def test_the_loss_is_weighed_between_caption_and_picture(run):
    """1/8 of the mean over the caption's positions and 7/8 of that over the picture's, smoothed over what can be said there."""
    (batch,) = sequential_batches(run._encode(run.data.valid), 10_000)
    model, objective = run.model.eval(), run.task.loss(run)
    with torch.no_grad():
        log_p = model(**batch.inputs).log_softmax(-1)
        each = torch.zeros(batch.labels.shape)
        for b, t in np.ndindex(*each.shape):
            can = log_p[b, t][log_p[b, t].isfinite()]
            each[b, t] = -0.99 * log_p[b, t, batch.labels[b, t]] - 0.01 * can.mean()
        expected = each[:, :6].mean() / 8 + each[:, 6:].mean() * 7 / 8
        assert float(objective(model, batch)) / batch.label_count() == pytest.approx(float(expected), rel=1e-4)


def test_the_card_warns_of_misleading_pictures(run, codes):
    assert "Misleading images" in card(run) and "regard draw" in card(run) and "dalle, 2 layers of 32" in card(run)
    assert "dvae, 1 layers of 16" in card(codes)
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert set(scores) == {"caption_perplexity", "image_perplexity"}
    for one, given in ((run, "a"), (codes, "a.png")):
        assert not hasattr(one, "embed")
        with pytest.raises(UserError, match="it cannot embed"):
            said("embed", one.folder, given)


def test_starters_are_recipes_that_train(pictures, codes, tmp_path):
    page = "\n".join(said("new", "image-codes", "--data", pictures / "train.tsv"))
    found = parse_recipe(page)
    assert found.task == "image-codes" and found.data.size == 32 and "24 images of your own" in page
    page = "\n".join(said("new", "text-to-image", "--data", pictures / "train.tsv"))
    found = parse_recipe(
        page, [f"model.image_codes.run={codes.folder}", "data.size=8", "train.steps=1", "train.evaluate_every=1"]
    )
    assert found.model.text_length == 16
    train(found, tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="name your data"):
        said("new", "text-to-image")


def test_a_starter_for_codes_finds_the_paths(pictures, tmp_path):
    names = [line.split("\t")[0] for line in (pictures / "train.tsv").read_text(encoding="utf-8").splitlines()]
    table = pictures / "named.jsonl"
    table.write_text("".join(json.dumps({"id": number, "path": name}) + "\n" for number, name in enumerate(names)))
    found = parse_recipe("\n".join(said("new", "image-codes", "--data", table)), ["train.steps=1", "train.evaluate_every=1"])
    assert found.data.path == "path"
    train(found, tmp_path / "run", device="cpu")
    table.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match=r"has the fields id; name the image path file or file_name or image$"):
        said("new", "image-codes", "--data", table)
    assert "path" not in tomllib.loads("\n".join(said("new", "image-codes", "--data", pictures)))["data"]


def test_pictures_without_captions_are_enough_for_codes(pictures, tmp_path):
    """A folder, flat or not."""
    folder = tmp_path / "flat"
    (folder / "more").mkdir(parents=True)
    for number, file in enumerate(sorted(pictures.glob("*.png"))):
        shutil.copy(file, folder / "more" if number % 2 else folder)
    data = {"train": ["flat"], "valid": ["flat"], "test": {}, "size": 8, "root": str(tmp_path)}
    made = train(settings(CODES, tmp_path, data=data, train={"steps": 1, "evaluate_every": 1}), tmp_path / "run", device="cpu")
    assert len(made.data.valid) == 32


def test_both_are_planned(run, codes):
    for made in (run, codes):
        found = plan(str(made.folder))
        assert found.parameters == sum(p.numel() for p in made.model.parameters())
        assert found.total.macs > 0 and all(sum(sizes.values()) > 0 for sizes in found.memory.values())
    convolutions = [module for module in codes.model.modules() if isinstance(module, GridConv2d)]
    by_hand = sum(module.weight.numel() * module.grid[0] * module.grid[1] for module in convolutions)
    assert plan(str(codes.folder)).total.macs == by_hand
    assert "images of 8 × 8 pixels, 10 positions" in "\n".join(said("plan", run.folder))
    with pytest.raises(UserError, match="the number of codes of an image follows from it"):
        plan(build_recipe(settings(DRAW, "nowhere", model={"image_codes": {"run": "nowhere"}})))


def test_grids_of_convolutions_are_what_comes_out(codes):
    """The plan counts by them."""
    sizes = {}

    def remember(module, _, out):
        sizes[module] = tuple(out.shape[2:])

    hooks = [module.register_forward_hook(remember) for module in codes.model.modules() if isinstance(module, GridConv2d)]
    codes.model(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    assert len(sizes) > 5 and all(module.grid == size for module, size in sizes.items())


def test_on_the_world_of_shapes_drawings_are_judged_by_their_pixels(tmp_path, monkeypatch):
    world = {"size": 24, "world": {"kind": "shapes", "number": 40, "held_out": 6, "shapes": [1, 1]}}
    short = {"steps": 1, "evaluate_every": 1}
    codes = train({**CODES, "data": world, "train": {**CODES["train"], **short}}, tmp_path / "codes", device="cpu")
    model = {**DRAW["model"], "image_codes": {"run": str(codes.folder)}, "text_length": 16}
    run = train({**DRAW, "data": world, "model": model, "train": {**DRAW["train"], **short}}, tmp_path / "run", device="cpu")
    assert evaluate(run)[0].scores["right"].score <= 20
    true = {picture.captions[0].text: picture.pixels() for picture in run.data.tests["test"].gold}
    blank = np.full((24, 24, 3), 200, np.uint8)
    monkeypatch.setattr(
        run,
        "draw",
        lambda texts, **manner: [
            [GeneratedImage(true[text] if n % 2 else blank, np.zeros(1), 0.0)] for n, text in enumerate(texts)
        ],
    )
    monkeypatch.setattr(run._codes_run, "decode", lambda codes: np.stack(list(true.values())))
    result = run._score("test", run.data.tests["test"])
    assert result.scores["right"].score == 50 and result.scores["right_rebuilt"].score == 100
    assert [line.split("\t")[0] for line in result.outputs] == ["wrong", "right"] * 3


def test_what_is_scored_is_drawn_as_the_recipe_says(tmp_path, monkeypatch):
    world = {"size": 24, "world": {"kind": "shapes", "number": 40, "held_out": 4, "shapes": [1, 1]}}
    short = {"steps": 1, "evaluate_every": 1, "images_per_batch": 8}
    codes = train({**CODES, "data": world, "train": {**CODES["train"], **short}}, tmp_path / "codes", device="cpu")
    tower = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 16}
    clip = train(
        {
            "task": "contrastive",
            "data": world,
            "tokens": {"kind": "words"},
            "train": {**TRAIN, **short},
            "model": {"projection_width": 8, "image": {**tower, "patch_size": 8}, "text": {**tower, "max_length": 16}},
        },
        tmp_path / "clip",
        device="cpu",
    )
    model = {**DRAW["model"], "image_codes": {"run": str(codes.folder)}, "text_length": 16}
    drawing = {**DRAW, "data": world, "model": model, "train": {**DRAW["train"], **short}}
    asked = []
    draw = TextToImageRun.draw
    monkeypatch.setattr(TextToImageRun, "draw", lambda run, texts, **manner: asked.append(manner) or draw(run, texts, **manner))
    evaluate(
        train(
            {**drawing, "sample": {"top_p": 0.9, "reranker": str(clip.folder), "candidates": 2}}, tmp_path / "run", device="cpu"
        )
    )
    assert {name: asked[0][name] for name in ("temperature", "top_p", "candidates")} == {
        "temperature": 1.0,
        "top_p": 0.9,
        "candidates": 2,
    }
    assert asked[0]["reranker"].folder == tmp_path / "run" / "reranker"
    shutil.rmtree(clip.folder)
    evaluate(regard.load(tmp_path / "run", device="cpu"))  # it has a copy
    for sample, message in [
        ({"candidates": 2}, "sample.candidates = 2: name the run that chooses"),
        ({"reranker": str(codes.folder)}, "is a run of task = 'image-codes'; name one of task = 'contrastive'"),
    ]:
        with pytest.raises(UserError, match=message):
            train({**drawing, "sample": sample}, tmp_path / "wrong", device="cpu")

"""Text-to-image generation with a small DALL·E: image codes (dVAE, VQ), then the Transformer, and the command line."""

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

CAPTION_COLOURS = {"a red picture": (230, 20, 20), "a blue picture": (20, 20, 230)}
TRAIN = {
    "evaluate_every": 40,
    "save_every": 20,
    "log_every": 20,
    "keep_checkpoints": 9,
    "schedule": {"warmup_steps": 5},
    "optimizer": {"learning_rate": 1e-2},
}
IMAGE_CODES = {
    "task": "image-codes",
    "data": {"train": ["train.tsv"], "valid": ["valid.tsv"], "test": {"mine": ["valid.tsv"]}, "size": 8},
    "model": {"codebook_size": 8, "code_width": 8, "width": 16, "layers": 1, "anneal_steps": 60},
    "train": {**TRAIN, "steps": 80, "images_per_batch": 8},
}
TEXT_TO_IMAGE = {
    "task": "text-to-image",
    "data": IMAGE_CODES["data"],
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
def image_folder(tmp_path_factory):
    """Write noisy images of two colours, each with the caption of its colour."""
    folder, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    for name, number in (("train", 12), ("valid", 4)):
        lines = []
        for caption, colour in CAPTION_COLOURS.items():
            for i in range(number):
                pixels = np.full((8, 8, 3), colour) + rng.integers(-8, 9, (8, 8, 3))
                file = f"{name}-{caption.split()[1]}-{i}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / file)
                lines.append(f"{file}\t{caption}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def settings(base, image_folder, **changes):
    config = copy.deepcopy(base)
    config["data"]["root"] = str(image_folder)
    for part, values in changes.items():
        config[part] = {**config.get(part, {}), **values}
    return config


@pytest.fixture(scope="module")
def codes_run(image_folder, tmp_path_factory):
    run = train(settings(IMAGE_CODES, image_folder), tmp_path_factory.mktemp("runs") / "codes", device="cpu")
    evaluate(run)
    return run


@pytest.fixture(scope="module")
def run(image_folder, codes_run, tmp_path_factory):
    trained = train(
        settings(TEXT_TO_IMAGE, image_folder, model={"image_codes": {"run": str(codes_run.folder)}}),
        tmp_path_factory.mktemp("runs") / "draw",
        device="cpu",
    )
    evaluate(trained)
    return trained


def nearest_caption(image):
    return min(CAPTION_COLOURS, key=lambda caption: np.abs(image.mean((0, 1)) - CAPTION_COLOURS[caption]).sum())


def resume_from_step(run, stop, again):
    """Resume a copy of a run from a step; return the final weights of the run and of the copy."""
    shutil.copytree(run.folder, again)
    (again / "model.safetensors").unlink()
    for path in (again / "checkpoints").iterdir():
        if int(path.name[5:]) > stop:
            shutil.rmtree(path)
    train(again, resume=True, device="cpu")
    last = f"checkpoints/step-{run.recipe.train.steps:08d}/model.safetensors"
    return read_weights(run.folder / last), read_weights(again / last)


def test_generated_images_match_their_captions(run):
    for caption, found in zip(CAPTION_COLOURS, run.draw(list(CAPTION_COLOURS), number=6, temperature=0.5)):
        assert [nearest_caption(one.image) for one in found] == [caption] * 6


def test_image_codes_encode_decode_round_trip(codes_run, image_folder):
    files = sorted(image_folder.glob("valid-*.png"))
    found = codes_run.encode(files)
    assert found.shape == (8, 2, 2) and set(found.ravel()) <= set(range(8))
    again = codes_run.decode(found)
    assert again.shape == (8, 8, 8, 3) and again.dtype == np.uint8
    real = np.stack([np.asarray(Image.open(file)) for file in files])
    assert np.abs(again.astype(int) - real).mean() < 25
    np.testing.assert_array_equal(codes_run.encode(files[:1])[0], found[0])  # one by one = batched
    np.testing.assert_array_equal(codes_run.encode([Image.open(files[0]), real[1]]), found[:2])
    assert codes_run.encode([]).shape == (0, 2, 2) and codes_run.decode(np.zeros((0, 2, 2), int)).shape == (0, 8, 8, 3)
    for wrong in (np.zeros((1, 3, 2), int), np.full((1, 2, 2), 8), np.full((1, 2, 2), -1), np.zeros((1, 2, 2))):
        with pytest.raises(UserError, match="codes"):
            codes_run.decode(wrong)


def test_image_codes_scores(codes_run):
    scores = json.loads((codes_run.folder / "scores.json").read_text())["mine"]
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
def test_every_quantizer_learns_and_resumes_bit_for_bit(model, image_folder, tmp_path):
    trained = train(
        settings(IMAGE_CODES, image_folder, model={**IMAGE_CODES["model"], **model}, train={"steps": 60}),
        tmp_path / "run",
        device="cpu",
    )
    assert evaluate(trained)[0].scores["psnr"].score > 11  # the mean image has 9.4
    whole, again = resume_from_step(trained, 20, tmp_path / "again")
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)


def test_text_to_image_resumes_bit_for_bit_without_the_image_codes_run(image_folder, codes_run, tmp_path):
    shutil.copytree(codes_run.folder, tmp_path / "codes")
    model = {"image_codes": {"run": str(tmp_path / "codes")}}
    trained = train(settings(TEXT_TO_IMAGE, image_folder, model=model, train={"steps": 40}), tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "codes")
    whole, again = resume_from_step(trained, 20, tmp_path / "again")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(trained.folder, moved)
    assert np.array_equal(regard.load(moved, device="cpu").draw("a red picture").image, trained.draw("a red picture").image)


def test_generated_images_depend_only_on_the_seed(run):
    captions = list(CAPTION_COLOURS)
    together = run.draw(captions, number=3, temperature=2.0, seed=7)
    assert all(
        np.array_equal(a.codes, b.codes) and a.score == pytest.approx(b.score, abs=1e-4)
        for a, b in zip(together[0], run.draw(captions[:1], number=3, temperature=2.0, seed=7)[0])
    )
    assert np.array_equal(run.draw(captions[0], temperature=2.0, seed=7).codes, together[0][0].codes)
    one, two = run.draw(captions[:1] * 2, number=3, temperature=4.0)
    assert any(not np.array_equal(a.codes, b.codes) for a, b in zip(one, two))
    other = run.draw(captions, number=3, temperature=2.0, seed=8)
    assert any(not np.array_equal(a.codes, b.codes) for a, b in zip(together[0], other[0]))


def test_generated_image_score_equals_the_rescored_nll(run):
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


def test_reranker_selects_the_best_candidates(run):
    class BlueReranker:
        """Score images by their blue channel."""

        def similarity(self, images, texts):
            assert texts == ["a red picture"] and len(images) == 12
            return np.array([[image[..., 2].mean()] for image in images])

    (found,) = run.draw(["a red picture"], number=3, temperature=3.0, reranker=BlueReranker(), candidates=12)
    (every,) = run.draw(["a red picture"], number=12, temperature=3.0)
    every = sorted((one.image[..., 2].mean() for one in every), reverse=True)
    assert [one.score for one in found] == pytest.approx(every[:3])
    with pytest.raises(UserError, match="does not compare images with texts; rerank with a run of task = 'contrastive'"):
        run.draw(["a red picture"], reranker=run)
    with pytest.raises(UserError, match="candidates = 2: the best 3 of them"):
        run.draw(["a red picture"], number=3, reranker=BlueReranker(), candidates=2)
    with pytest.raises(UserError, match="candidates = 8: name the run that chooses"):
        run.draw(["a red picture"], candidates=8)


def test_draw_command_writes_images_and_a_contact_sheet(run, tmp_path, run_cli):
    one = json.loads(run_cli("draw", run.folder, "a red picture", "--out", tmp_path / "a.png", "--json")[0])
    assert one["file"] == str(tmp_path / "a.png") and set(one) == {"file", "score"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]
    lines = run_cli("draw", run.folder, "a red picture", "--out", tmp_path / "b.png", "--number", "5", "--seed", "3")
    assert len(lines) == 5 and lines[4].startswith(str(tmp_path / "b-5.png") + "\t")
    assert np.asarray(Image.open(tmp_path / "b-1.png")).shape == (8, 8, 3)
    assert np.asarray(Image.open(tmp_path / "b.png")).shape == (2 * 10 + 2, 3 * 10 + 2, 3)
    bytes_before = (tmp_path / "b.png").read_bytes()
    run_cli("draw", run.folder, "a red picture", "--out", tmp_path / "b.png", "--number", "5", "--seed", "3")
    assert (tmp_path / "b.png").read_bytes() == bytes_before
    run_cli("draw", run.folder, "a red picture", "--out", tmp_path / "c.png", "--greedy")


def test_draw_gallery_shows_test_captions_beside_reference_images(run, tmp_path):
    result = CliRunner().invoke(
        app, ["draw", str(run.folder), "--gallery", str(tmp_path / "a.svg"), "-n", "3", "--device", "cpu"]
    )
    assert result.exit_code == 0 and "2 captions of mine" in result.output  # two distinct captions among eight images
    page = (tmp_path / "a.svg").read_text()
    assert all(caption in page for caption in CAPTION_COLOURS) and page.count("<image") == 2 * (2 + 3) and "wrong" not in page
    CliRunner().invoke(app, ["draw", str(run.folder), "--gallery", str(tmp_path / "b.svg"), "-n", "3", "--device", "cpu"])
    assert page == (tmp_path / "b.svg").read_text()
    words = ["draw", str(run.folder), "--gallery", str(tmp_path / "c.svg"), "-n", "3", "--no-references", "--device", "cpu"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "c.svg").read_text().count("<image") == 2 * 3


def test_contact_sheet_places_each_image_in_the_grid():
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
def test_draw_command_refuses_invalid_options(run, tmp_path, words, message, run_cli):
    with pytest.raises(UserError, match=message):
        run_cli("draw", run.folder, *(word.format(tmp_path) for word in words))


def test_invalid_text_to_image_settings_are_refused_before_training(run, codes_run, image_folder, tmp_path):
    fitting = {**TEXT_TO_IMAGE["model"], "image_codes": {"run": str(codes_run.folder)}}
    with pytest.raises(UserError, match=r"data.size = 12, but model.image_codes.run"):
        train(
            settings(
                TEXT_TO_IMAGE, image_folder, model=fitting, data={**TEXT_TO_IMAGE["data"], "root": str(image_folder), "size": 12}
            ),
            tmp_path / "a",
        )
    with pytest.raises(UserError, match="is a run of task = 'text-to-image'; name one of task = 'image-codes'"):
        train(settings(TEXT_TO_IMAGE, image_folder, model={**fitting, "image_codes": {"run": str(run.folder)}}), tmp_path / "b")
    with pytest.raises(UserError, match="is not a finished run folder"):
        train(settings(TEXT_TO_IMAGE, image_folder, model={**fitting, "image_codes": {"run": "nowhere"}}), tmp_path / "c")
    with pytest.raises(UserError, match=r"has a caption of 3 tokens, more than model.text_length = 2"):
        train(settings(TEXT_TO_IMAGE, image_folder, model={**fitting, "text_length": 2}), tmp_path / "d")
    with pytest.raises(UserError, match=r"is not a multiple of model.downsampling = 4: 8 is"):
        train(settings(IMAGE_CODES, image_folder, data={**IMAGE_CODES["data"], "size": 9}), tmp_path / "e")
    with pytest.raises(UserError, match="the codebook is a moving average already"):
        train(settings(IMAGE_CODES, image_folder, model={"quantizer": "vq"}, train={"ema_decay": 0.9}), tmp_path / "f")


def test_compare_refuses_text_to_image_runs(run, run_cli):
    with pytest.raises(UserError, match="generates images, for which there is no paired test"):
        run_cli("compare", run.folder, run.folder)


def test_training_rows_sample_among_the_captions_of_an_image(run):
    captions = Ragged.from_rows([[4], [5, 6], [7]])
    rows = TextToImageRows(captions, np.array([0, 2, 3]), np.zeros((2, 4), np.uint16), vocabulary_size=10, text_length=3)
    seen = {tuple(rows.batch(np.array([0]), 1, epoch).inputs["target"][0, 1:4].tolist()) for epoch in range(20)}
    assert seen == {(4, 11, 12), (5, 6, 12)}
    batch = rows.deterministic().batch(np.array([0, 1]), 1, 3)
    assert batch.inputs["target"].tolist() == [[1, 4, 11, 12, 13, 13, 13], [1, 7, 11, 12, 13, 13, 13]]
    assert batch.labels.tolist() == [[4, 11, 12, 13, 13, 13, 13], [7, 11, 12, 13, 13, 13, 13]]


def test_too_long_captions_are_dropped_in_training_and_truncated_in_evaluation(run):
    examples = run.data.valid
    examples = type(examples)(examples.images[:3], "set", captions=[["a red picture", "a " * 9], ["red " * 9], ["a"]])
    run.recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"too_long": "drop"})})
    learned, scored = run._encode(examples, training=True), run._encode(examples)
    assert len(learned) == 2 and learned.offsets.tolist() == [0, 1, 2]
    assert len(scored) == 3 and scored.offsets.tolist() == [0, 2, 3, 4] and scored.captions.lengths.tolist() == [3, 6, 6, 1]


def test_begin_step_is_called_once_per_optimizer_step(image_folder, tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(Dvae, "begin_step", lambda self, step: steps.append(step))
    short = settings(IMAGE_CODES, image_folder, train={"steps": 3, "evaluate_every": 3, "gradient_accumulation_steps": 2})
    train(short, tmp_path / "run", device="cpu")
    assert steps == [1, 2, 3]


def test_text_to_image_loss_weights_caption_and_image_tokens(run):
    """The loss is 1/8 caption mean + 7/8 image mean, with label smoothing over the tokens allowed at each position."""
    (batch,) = sequential_batches(run._encode(run.data.valid), 10_000)
    model, objective = run.model.eval(), run.task.loss(run)
    with torch.no_grad():
        log_p = model(**batch.inputs).log_softmax(-1)
        each = torch.zeros(batch.labels.shape)
        for b, t in np.ndindex(*each.shape):
            allowed = log_p[b, t][log_p[b, t].isfinite()]
            each[b, t] = -0.99 * log_p[b, t, batch.labels[b, t]] - 0.01 * allowed.mean()
        expected = each[:, :6].mean() / 8 + each[:, 6:].mean() * 7 / 8
        assert float(objective(model, batch)) / batch.label_count() == pytest.approx(float(expected), rel=1e-4)


def test_text_to_image_card_warns_of_misleading_images(run, codes_run, run_cli):
    assert "Misleading images" in card(run) and "regard draw" in card(run) and "dalle, 2 layers of 32" in card(run)
    assert "dvae, 1 layers of 16" in card(codes_run)
    scores = json.loads((run.folder / "scores.json").read_text())["mine"]
    assert set(scores) == {"caption_perplexity", "image_perplexity"}
    for one, given in ((run, "a"), (codes_run, "a.png")):
        assert not hasattr(one, "embed")
        with pytest.raises(UserError, match="it cannot embed"):
            run_cli("embed", one.folder, given)


def test_starter_recipes_of_image_codes_and_text_to_image_train(image_folder, codes_run, tmp_path, run_cli):
    page = "\n".join(run_cli("new", "--minutes", "0", "image-codes", "--data", image_folder / "train.tsv"))
    found = parse_recipe(page)
    assert found.task == "image-codes" and found.data.size == 32 and "24 images of your own" in page
    page = "\n".join(run_cli("new", "--minutes", "0", "text-to-image", "--data", image_folder / "train.tsv"))
    found = parse_recipe(
        page, [f"model.image_codes.run={codes_run.folder}", "data.size=8", "train.steps=1", "train.evaluate_every=1"]
    )
    assert found.model.text_length == 16
    train(found, tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="name your data"):
        run_cli("new", "--minutes", "0", "text-to-image")


def test_starter_recipe_of_image_codes_finds_the_path_column(image_folder, tmp_path, run_cli):
    names = [line.split("\t")[0] for line in (image_folder / "train.tsv").read_text(encoding="utf-8").splitlines()]
    table = image_folder / "named.jsonl"
    table.write_text("".join(json.dumps({"id": number, "path": name}) + "\n" for number, name in enumerate(names)))
    found = parse_recipe(
        "\n".join(run_cli("new", "--minutes", "0", "image-codes", "--data", table)), ["train.steps=1", "train.evaluate_every=1"]
    )
    assert found.data.path == "path"
    train(found, tmp_path / "run", device="cpu")
    table.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match=r"has the fields id; name the image path file or file_name or image$"):
        run_cli("new", "--minutes", "0", "image-codes", "--data", table)
    assert "path" not in tomllib.loads("\n".join(run_cli("new", "--minutes", "0", "image-codes", "--data", image_folder)))["data"]


def test_image_codes_train_on_a_folder_of_images_without_captions(image_folder, tmp_path):
    """The folder may be nested."""
    folder = tmp_path / "flat"
    (folder / "more").mkdir(parents=True)
    for number, file in enumerate(sorted(image_folder.glob("*.png"))):
        shutil.copy(file, folder / "more" if number % 2 else folder)
    data = {"train": ["flat"], "valid": ["flat"], "test": {}, "size": 8, "root": str(tmp_path)}
    trained = train(
        settings(IMAGE_CODES, tmp_path, data=data, train={"steps": 1, "evaluate_every": 1}), tmp_path / "run", device="cpu"
    )
    assert len(trained.data.valid) == 32


def test_plan_of_image_codes_and_text_to_image(run, codes_run, run_cli):
    for config in (run, codes_run):
        found = plan(str(config.folder))
        assert found.parameters == sum(p.numel() for p in config.model.parameters())
        assert found.total.macs > 0 and all(sum(sizes.values()) > 0 for sizes in found.memory.values())
    convolutions = [module for module in codes_run.model.modules() if isinstance(module, GridConv2d)]
    expected_macs = sum(module.weight.numel() * module.grid[0] * module.grid[1] for module in convolutions)
    assert plan(str(codes_run.folder)).total.macs == expected_macs
    assert "images of 8 × 8 pixels, 10 positions" in "\n".join(run_cli("plan", run.folder))
    with pytest.raises(UserError, match="the number of codes of an image follows from it"):
        plan(build_recipe(settings(TEXT_TO_IMAGE, "nowhere", model={"image_codes": {"run": "nowhere"}})))


def test_grid_conv2d_grid_equals_its_output_size(codes_run):
    """`regard plan` counts MACs by the grid."""
    sizes = {}

    def record_output_size(module, _, out):
        sizes[module] = tuple(out.shape[2:])

    hooks = [
        module.register_forward_hook(record_output_size) for module in codes_run.model.modules() if isinstance(module, GridConv2d)
    ]
    codes_run.model(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    for hook in hooks:
        hook.remove()
    assert len(sizes) > 5 and all(module.grid == size for module, size in sizes.items())


def test_shapes_world_scores_generated_images_by_their_pixels(tmp_path, monkeypatch):
    world = {"size": 24, "world": {"kind": "shapes", "number": 40, "held_out": 6, "shapes": [1, 1]}}
    short = {"steps": 1, "evaluate_every": 1}
    codes_run = train(
        {**IMAGE_CODES, "data": world, "train": {**IMAGE_CODES["train"], **short}}, tmp_path / "codes", device="cpu"
    )
    model = {**TEXT_TO_IMAGE["model"], "image_codes": {"run": str(codes_run.folder)}, "text_length": 16}
    run = train(
        {**TEXT_TO_IMAGE, "data": world, "model": model, "train": {**TEXT_TO_IMAGE["train"], **short}},
        tmp_path / "run",
        device="cpu",
    )
    assert evaluate(run)[0].scores["right"].score <= 20
    true = {image.captions[0].text: image.pixels() for image in run.data.tests["test"].gold}
    blank = np.full((24, 24, 3), 200, np.uint8)
    monkeypatch.setattr(
        run,
        "draw",
        lambda texts, **sampling: [
            GeneratedImage(true[text] if n % 2 else blank, np.zeros(1), 0.0) for n, text in enumerate(texts)
        ],
    )
    monkeypatch.setattr(run._codes_run, "decode", lambda codes: np.stack(list(true.values())))
    result = run._score("test", run.data.tests["test"])
    assert result.scores["right"].score == 50 and result.scores["right_rebuilt"].score == 100
    assert [line.split("\t")[0] for line in result.outputs] == ["wrong", "right"] * 3


def test_evaluate_generates_images_with_the_sample_settings(tmp_path, monkeypatch):
    world = {"size": 24, "world": {"kind": "shapes", "number": 40, "held_out": 4, "shapes": [1, 1]}}
    short = {"steps": 1, "evaluate_every": 1, "images_per_batch": 8}
    codes_run = train(
        {**IMAGE_CODES, "data": world, "train": {**IMAGE_CODES["train"], **short}}, tmp_path / "codes", device="cpu"
    )
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
    model = {**TEXT_TO_IMAGE["model"], "image_codes": {"run": str(codes_run.folder)}, "text_length": 16}
    drawing = {**TEXT_TO_IMAGE, "data": world, "model": model, "train": {**TEXT_TO_IMAGE["train"], **short}}
    draw_calls = []
    draw = TextToImageRun.draw
    monkeypatch.setattr(
        TextToImageRun, "draw", lambda run, texts, **sampling: draw_calls.append(sampling) or draw(run, texts, **sampling)
    )
    evaluate(
        train(
            {**drawing, "sample": {"top_p": 0.9, "reranker": str(clip.folder), "candidates": 2}}, tmp_path / "run", device="cpu"
        )
    )
    assert {name: draw_calls[0][name] for name in ("temperature", "top_p", "candidates")} == {
        "temperature": 1.0,
        "top_p": 0.9,
        "candidates": 2,
    }
    assert draw_calls[0]["reranker"].folder == tmp_path / "run" / "reranker"
    shutil.rmtree(clip.folder)
    evaluate(regard.load(tmp_path / "run", device="cpu"))  # the run folder holds a copy of the reranker
    for sample, message in [
        ({"candidates": 2}, "sample.candidates = 2: name the run that chooses"),
        ({"reranker": str(codes_run.folder)}, "is a run of task = 'image-codes'; name one of task = 'contrastive'"),
    ]:
        with pytest.raises(UserError, match=message):
            train({**drawing, "sample": sample}, tmp_path / "wrong", device="cpu")

"""Tiny random ViT and DeiT models: results equal `transformers`, from file to label; the round trip is bit for bit."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.interop.convert import write_huggingface_folder
from regard.run.convert import convert, verify_conversion
from regard.run.load import load_native
from regard.tasks import build_recipe, recipe_task
from regard.tasks.classify_images import ClassifyImagesRun
from regard.training.checkpoint import named_weights, write_weights


def shape(**other):
    return dict(
        dict(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=40,
            image_size=16,
            patch_size=4,
            num_labels=5,
        ),
        **other,
    )


CASES = [
    ("ViTForImageClassification", shape(), {}),
    ("ViTForImageClassification", shape(image_size=[16, 24], patch_size=[8, 4], num_labels=3, layer_norm_eps=1e-3), {}),
    ("ViTForImageClassification", shape(image_size=18, num_hidden_layers=3, num_attention_heads=1, hidden_act="relu"), {}),
    ("ViTModel", shape(), {}),
    ("ViTModel", shape(image_size=[8, 12]), {"add_pooling_layer": False}),
    ("DeiTForImageClassification", shape(), {}),
    ("DeiTForImageClassificationWithTeacher", shape(image_size=[12, 16], hidden_act="gelu_new"), {}),
    ("DeiTModel", shape(), {}),
    ("DeiTModel", shape(), {"add_pooling_layer": False}),
]
NAMES = [f"{name}-{number}" for number, (name, *_) in enumerate(CASES)]


def processor_for(size, **options):
    size = [size, size] if isinstance(size, int) else size
    return transformers.ViTImageProcessor(size={"height": size[0], "width": size[1]}, **options)


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def pair(request, tmp_path_factory, randomize_weights):
    """Return a `transformers` model with its processor, and the same model loaded by us."""
    torch.manual_seed(len(request.param[1]))
    name, settings, options = request.param
    kind, folder = getattr(transformers, name), tmp_path_factory.mktemp("parity") / "theirs"
    model = randomize_weights(kind(kind.config_class(**settings), **options))
    model.save_pretrained(folder)
    processor = processor_for(settings["image_size"], resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25])
    processor.save_pretrained(folder)
    return model, processor, regard.load(folder, device="cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return image files of several shapes."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    for i, (height, width) in enumerate([(30, 50), (16, 16), (64, 20), (9, 11)]):
        small = Image.fromarray(rng.integers(0, 256, (height // 3, width // 3, 3)).astype(np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


@torch.no_grad()
def test_logits_from_image_files_equal_transformers(pair, files):
    model, processor, run = pair
    pixels = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    theirs = model(pixel_values=pixels)
    expected = theirs["logits"] if "logits" in theirs else theirs["last_hidden_state"]
    (batch,) = [run._images.rows(files).batch(np.arange(len(files)), 0, 0)]
    torch.testing.assert_close(run.model.encoder.normalize(batch.inputs["pixels"]), pixels.float(), atol=1e-4, rtol=0)
    torch.testing.assert_close(run.model(**batch.inputs), expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.1
    if isinstance(run, ClassifyImagesRun):
        for judged, p in zip(run.classify(files), expected.softmax(-1)):
            assert [found.label for found in judged] == [f"LABEL_{i}" for i in p.argsort(descending=True)]
            assert judged[0].probability == pytest.approx(float(p.max()), abs=1e-4)


def test_states_and_attention_equal_transformers(pair):
    _, _, run = pair
    proof = verify_conversion(run, run.folder)
    assert proof.against == "transformers" and proof.passed and proof.texts == 0, proof


def test_round_trip_is_bit_for_bit(pair, tmp_path):
    _, _, run = pair
    back = write_huggingface_folder(run, tmp_path / "back")
    there, again = load_file(run.folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert there.keys() == again.keys() and all(torch.equal(there[name], again[name]) for name in there)
    for name in ("config.json", "preprocessor_config.json"):
        assert (run.folder / name).read_bytes() == (back / name).read_bytes()


@torch.no_grad()
def test_explanations_equal_transformers(pair, files):
    """Attention, rollout and occlusion of each patch, computed from their weights and logits."""
    model, processor, run = pair
    if not isinstance(run, ClassifyImagesRun):
        with pytest.raises(UserError, match="explanations are for labels"):
            run.explain(str(files[0]))
        return
    found = run.explain(str(files[0]), "attention,rollout,occlusion", label="LABEL_1")
    pixels = processor(Image.open(files[0]), return_tensors="pt")["pixel_values"].float()
    model.set_attn_implementation("eager")
    one, two, *others = (weights[0].mean(0) for weights in model(pixel_values=pixels, output_attentions=True).attentions)
    marks, asks = run.recipe.model.prefix_tokens, [0, 1] if run.recipe.model.distilled == "head" else [0]
    rolled, eye = torch.eye(len(one)), torch.eye(len(one))
    for weights in (one, two, *others):
        rolled = (weights + eye) / 2 @ rolled
    np.testing.assert_allclose(found.attributions["attention"], [one, two, *others][-1][asks].mean(0)[marks:], atol=1e-4)
    np.testing.assert_allclose(found.attributions["rollout"], rolled[asks].mean(0)[marks:], atol=1e-4)
    rows, columns = found.image.grid
    down, across = run.model.encoder.patches.kernel_size
    whole = model(pixel_values=pixels).logits.log_softmax(-1)[0, 1]
    for number, lost in enumerate(found.attributions["occlusion"]):
        hidden, y, x = pixels.clone(), down * (number // columns), across * (number % columns)
        hidden[0, :, y : y + down, x : x + across] = pixels[0].mean((1, 2))[:, None, None]
        assert lost == pytest.approx(float(whole - model(pixel_values=hidden).logits.log_softmax(-1)[0, 1]), abs=1e-3)
    assert rows * columns == len(found.features)


@torch.no_grad()
def test_vectors_equal_hidden_states_of_transformers(pair, files):
    model, processor, run = pair
    theirs = model(
        pixel_values=processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"],
        output_hidden_states=True,
    ).hidden_states
    marks = run.recipe.model.prefix_tokens
    for layer in (0, 1):
        for one, state in zip(run.embed(files, layer=layer), theirs[layer]):
            np.testing.assert_allclose(one.vectors[0], state[marks:].mean(0), atol=1e-4)
        for one, state in zip(run.embed(files, layer=layer, pool="cls"), theirs[layer]):
            np.testing.assert_allclose(one.vectors[0], state[0], atol=1e-4)


SMALL = dict(kind="vit", layers=2, width=24, heads=3, feed_forward=40, patch_size=4)


def own_run(folder, model=(), data=()):
    """Return a run with random weights, in a folder as training leaves it."""
    recipe = build_recipe(
        {
            "task": "classify",
            "data": {"train": ["x"], "valid": ["x"], "size": 16, **dict(data)},
            "model": {**SMALL, **dict(model)},
        }
    )
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    (folder / "labels.json").write_text(json.dumps(["cat", "dog", "emu"]))
    run = ClassifyImagesRun(recipe_task(recipe), folder, recipe, torch.device("cpu"))
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.25 * torch.randn_like(p))
    write_weights(folder / "model.safetensors", named_weights(run.model))
    return regard.load(folder, device="cpu")


SUPPORTED = [
    ({}, {}, "vit"),
    ({}, {"resize_mode": "stretch", "size": [16, 24], "resample": "bicubic"}, "vit"),
    ({}, {"resize": 20}, "vit"),
    ({"distilled": "token"}, {"resize_mode": "stretch", "resize": 18}, "deit"),
    ({"distilled": "head", "mean": [0.1, 0.2, 0.3]}, {}, "deit"),
]


@pytest.mark.parametrize("model, data, family", SUPPORTED, ids=str)
def test_exported_run_equals_transformers(tmp_path, files, model, data, family):
    run = own_run(tmp_path / "run", model, data)
    proof = convert(run.folder, tmp_path / "hf", verify=True, device="cpu")
    assert proof.against == "transformers" and proof.passed, proof
    opened, info = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hf", output_loading_info=True)
    teacher = model.get("distilled") == "head"
    assert opened.config.model_type == family and opened.config.id2label == {0: "cat", 1: "dog", 2: "emu"}
    assert teacher or not info["missing_keys"]
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    assert type(processor).__name__.startswith({"vit": "ViT", "deit": "DeiT"}[family])
    ours = run.model.encoder.normalize(run._images.rows(files).batch(np.arange(4), 0, 0).inputs["pixels"])
    theirs = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    assert (ours - theirs).abs().max() <= 2.01 / 255 / min(run.recipe.model.std)  # two shades, where it is cut
    again = regard.load(tmp_path / "hf", device="cpu")
    assert again.classify(files) == run.classify(files)
    assert again._images.transform == run._images.transform and again.labels == run.labels
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "Labels of images" in card and "## Conversion" in card


@pytest.mark.parametrize(
    "model, data, message",
    [
        ({"pool": "mean"}, {}, "model.pool = 'mean' has no counterpart in the closest, vit"),
        ({"stem": "convolutions"}, {}, "model.stem = 'convolutions' has no counterpart in the closest, vit"),
        ({"stem": "residual"}, {}, "model.stem = 'residual' has no counterpart in the closest, vit"),
        ({"layer_scale": 0.1}, {}, "model.layer_scale = 0.1"),
        ({"positions": {"kind": "sinusoidal"}}, {}, "model.positions.kind = 'sinusoidal'"),
        ({"norm_first": False}, {}, "model.norm_first = False"),
        ({}, {"size": [16, 24]}, "data.resize_mode = 'crop' to 16 × 24 pixels has no counterpart"),
    ],
)
def test_unsupported_model_is_reported_in_one_line(tmp_path, model, data, message):
    own_run(tmp_path / "run", model, data)
    with pytest.raises(UserError) as caught:
        convert(tmp_path / "run", tmp_path / "hf", device="cpu")
    assert message in str(caught.value) and "\n" not in str(caught.value) and not (tmp_path / "hf").exists()


@pytest.fixture
def theirs(tmp_path, randomize_weights):
    model = randomize_weights(transformers.ViTForImageClassification(transformers.ViTConfig(**shape())))
    model.save_pretrained(tmp_path / "theirs")
    processor_for(16).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def changed(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


CORRUPTIONS = [
    ("config.json", dict(qkv_bias=False), "qkv_bias = False: is not supported"),
    ("config.json", dict(num_channels=1), "num_channels = 1"),
    ("config.json", dict(image_size=[16, 16, 16]), "image_size = .*should be one integer, or two"),
    ("config.json", dict(image_size=10**9), "image_size = 1000000000: should be an integer from 1 to 8192"),
    ("config.json", dict(image_size="16"), "image_size = '16'"),
    ("config.json", dict(patch_size=32), "a patch of 32 × 32 pixels is larger than the image, 16 × 16"),
    ("config.json", dict(patch_size=0), "patch_size = 0"),
    ("config.json", dict(image_size=20), "resizes images to 16 pixels, the model reads 20"),
    ("config.json", dict(patch_size=8), r"position_embeddings has shape \[1, 17, 24\], config.json says \[1, 5, 24\]"),
    ("config.json", dict(id2label={"0": "one"}), "with one label is not supported; it needs at least two"),
    ("config.json", dict(architectures=["ViTForMaskedImageModeling"]), "ViTForMaskedImageModeling.: is not supported"),
    ("config.json", dict(architectures=["ViTMAE"], auto_map={"x": "y"}), "needs code of its own"),
    ("preprocessor_config.json", dict(size={"height": 32, "width": 32}), "resizes images to 32 pixels, the model reads 16"),
    ("preprocessor_config.json", dict(size={"shortest_edge": 16}), "leaves images of different shapes"),
    ("preprocessor_config.json", dict(size={"longest_edge": 16}), "should have height and width, or shortest_edge"),
    ("preprocessor_config.json", dict(size=None), "size = "),
    ("preprocessor_config.json", dict(image_processor_type="BeitImageProcessor"), "'BeitImageProcessor' is not supported"),
    ("preprocessor_config.json", dict(resample=9), "resample = 9: should be one of Pillow's numbers"),
    ("preprocessor_config.json", dict(do_resize=False), "do_resize = False"),
    ("preprocessor_config.json", dict(rescale_factor=1.0), "rescale_factor = 1.0: is not supported; only 1/255"),
    ("preprocessor_config.json", dict(image_std=[0.5, 0, 0.5]), "image_std = .*three numbers"),
    ("preprocessor_config.json", dict(image_mean=[0.5]), "image_mean = .*three numbers"),
]


@pytest.mark.parametrize(
    "file, values, message", CORRUPTIONS, ids=[f"{next(iter(one[1]))}-{i}" for i, one in enumerate(CORRUPTIONS)]
)
def test_invalid_folder_is_reported_in_one_line(theirs, file, values, message):
    changed(theirs / file, **values)
    with pytest.raises(UserError, match=message) as caught:
        load_native(theirs, device="cpu")
    assert "\n" not in str(caught.value)


def test_equivalent_processor_settings_give_the_same_result(theirs, files):
    before = regard.load(theirs, device="cpu").classify(files)
    sides = {"height": 16, "width": 16}
    for values in (dict(size=16), dict(size=[16, 16]), dict(image_mean=0.5, image_std=0.5), dict(size=sides)):
        changed(theirs / "preprocessor_config.json", **values)
        assert regard.load(theirs, device="cpu").classify(files) == before
    (theirs / "preprocessor_config.json").unlink()
    assert regard.load(theirs, device="cpu").classify(files) == before  # a ViT's own
    (theirs / "preprocessor_config.json").write_text(json.dumps(dict(do_normalize=False, size=16)))
    plain = regard.load(theirs, device="cpu").recipe.model
    assert plain.mean == (0, 0, 0) and plain.std == (1, 1, 1)


def test_half_precision_round_trip(theirs, tmp_path):
    half = {name: tensor.half() for name, tensor in load_file(theirs / "model.safetensors").items()}
    save_file(half, theirs / "model.safetensors", metadata={"format": "pt"})
    again = load_file(write_huggingface_folder(regard.load(theirs, device="cpu"), tmp_path / "back") / "model.safetensors")
    assert all(torch.equal(half[name], again[name]) for name in half)


def test_command_line_reads_a_folder(theirs, files):
    done = CliRunner().invoke(app, ["classify", str(theirs), *map(str, files), "--json", "--device", "cpu"])
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == len(files), done.output
    assert set(json.loads(done.stdout.splitlines()[0])) == {"label", "probability"}


def test_finetuning_from_a_folder_with_larger_images(theirs, tmp_path, files):
    from regard.run.train import train

    for i, label in enumerate(["a", "b"] * 4):
        (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
        Image.open(files[i % 4]).resize((20 + i, 20)).save(tmp_path / "set" / label / f"{i}.png")
    data = {"root": str(tmp_path / "set"), "train": ["."], "valid": ["."], "size": 24, "resize_mode": "stretch"}
    recipe = {
        "task": "classify",
        "data": data,
        "model": {**SMALL, "norm_epsilon": 1e-12},
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "images_per_batch": 4,
            "optimizer": {"learning_rate": 1e-9},
            "schedule": {"warmup_steps": 0},
            "init_from": {"run": str(theirs), "modules": ["encoder."]},
        },
    }
    run, before = train(recipe, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    before.resize((24, 24))
    for one, other in zip(run.embed(files), before.embed(files)):
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    del recipe["train"]["init_from"]["modules"]
    other = train(recipe, tmp_path / "other", device="cpu")  # the head of other labels starts anew
    assert len(other.labels) == 2 and np.allclose(other.embed(files)[0].vectors, run.embed(files)[0].vectors, atol=1e-5)

"""Tiny random CLIP models: results equal `transformers`, from file and text to probabilities; the round trip is bit for bit."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.explain.report import explain_one
from regard.explain.selection import OutputSelection
from regard.interop.convert import write_huggingface_folder
from regard.run.convert import convert, verify_conversion
from regard.run.load import load_native
from regard.tasks import build_recipe, recipe_task
from regard.tasks.contrastive import ContrastiveRun
from regard.tokens.special_tokens import END_NAME
from regard.tokens.tokenizer import train_tokenizer
from regard.training.checkpoint import named_weights, write_weights

LINES = ["a photo of a dog", "the cat", "A small Cat looks at the old house, and it is happy."]


def library(first=False):
    """Return a tokenizer like CLIP's: lower case, byte-level, with an end-of-word suffix; the special tokens are the last ids, or
    the first."""
    made = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = ["<|startoftext|>", "<|endoftext|>"]
    made.train_from_iterator(
        LINES * 3,
        trainers.BpeTrainer(
            vocab_size=300,
            end_of_word_suffix="</w>",
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=marks if first else [],
        ),
    )
    made.add_special_tokens(marks)
    made.post_processor = processors.TemplateProcessing(
        single=f"{marks[0]} $A {marks[1]}",
        pair=f"{marks[0]} $A {marks[1]} $B",
        special_tokens=[(mark, made.token_to_id(mark)) for mark in marks],
    )
    return made


V = library().get_vocab_size()


def shape(text=(), image=(), **other):
    return dict(
        dict(
            text_config=dict(
                dict(
                    vocab_size=V,
                    hidden_size=16,
                    intermediate_size=40,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    max_position_embeddings=90,
                    bos_token_id=V - 2,
                    eos_token_id=V - 1,
                    pad_token_id=V - 1,
                ),
                **dict(text),
            ),
            vision_config=dict(
                dict(
                    hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=16, patch_size=4
                ),
                **dict(image),
            ),
            projection_dim=12,
        ),
        **other,
    )


CASES = [
    shape(),
    shape(
        text=dict(eos_token_id=2, bos_token_id=0, pad_token_id=1)
    ),  # early folders: the text's vector is at the highest token id
    shape(text=dict(hidden_act="gelu", num_hidden_layers=3, layer_norm_eps=1e-3), image=dict(hidden_act="relu")),
    shape(image=dict(patch_size=8, image_size=20, num_hidden_layers=1, num_attention_heads=1), projection_dim=40),
]


@pytest.fixture(scope="module", params=CASES, ids=["today", "first", "gelu", "patches"])
def pair(request, tmp_path_factory, randomize_weights):
    """Return a `transformers` model with its processor, and the same model loaded by us."""
    torch.manual_seed(1)
    model = randomize_weights(transformers.CLIPModel(transformers.CLIPConfig(**request.param)))
    folder = written(model, tmp_path_factory.mktemp("parity") / "theirs")
    return model, transformers.AutoImageProcessor.from_pretrained(folder), regard.load(folder, device="cpu")


def written(model, folder, tokenizer=None):
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text((tokenizer or library()).to_str(), encoding="utf-8")
    side = model.config.vision_config.image_size
    sides = {"height": side, "width": side}
    transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=sides).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(1)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3)).astype(np.uint8)).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


@torch.no_grad()
def test_probabilities_equal_transformers(pair, files):
    model, processor, run = pair
    pixels = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    encoded = [run.tokenizers[0].library.encode(line, add_special_tokens=True).ids for line in LINES]
    longest = max(map(len, encoded))
    ids = torch.tensor([row + [model.config.text_config.pad_token_id] * (longest - len(row)) for row in encoded])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
    theirs = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
    inputs = run._images.rows(files).batch(np.arange(3), 0, 0).inputs["pixels"]
    torch.testing.assert_close(run.model.image.normalize(inputs), pixels.float(), atol=1e-4, rtol=0)
    np.testing.assert_allclose(run._image_vectors(files), theirs.image_embeds, atol=1e-4)
    np.testing.assert_allclose(run._text_vectors(LINES), theirs.text_embeds, atol=1e-4)
    assert theirs.image_embeds.std(0).mean() > 0.01 and theirs.text_embeds.std(0).mean() > 0.01
    for judged, p in zip(run.match(files, LINES), theirs.logits_per_image.softmax(-1)):
        assert {one.label: pytest.approx(one.probability, abs=1e-4) for one in judged} == dict(zip(LINES, p.tolist()))


def test_clip_folder_is_explained_by_patches(pair, files):
    model, _, run = pair
    found = explain_one(
        run, str(files[0]), "attention,occlusion,input-gradient", OutputSelection(fits=LINES[0], against=LINES[1])
    )
    patches = (model.config.vision_config.image_size // model.config.vision_config.patch_size) ** 2
    assert set(found.attributions) == {"attention", "occlusion", "input-gradient"} and found.against is not None
    assert all(len(values) == patches and np.ptp(values) > 0 for values in found.attributions.values())


def test_states_and_attention_equal_transformers(pair):
    _, _, run = pair
    proof = verify_conversion(run, run.folder)
    assert proof.against == "transformers" and proof.passed and proof.texts == 0, proof


def test_round_trip_is_bit_for_bit(pair, tmp_path):
    _, _, run = pair
    back = write_huggingface_folder(run, tmp_path / "back")
    there, again = load_file(run.folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert there.keys() == again.keys() and all(torch.equal(there[name], again[name]) for name in there)
    for name in ("config.json", "preprocessor_config.json", "tokenizer.json"):
        assert (run.folder / name).read_bytes() == (back / name).read_bytes()


BLOCK = dict(layers=1, width=24, heads=3, feed_forward=40)
SUPPORTED = dict(
    projection_width=10,
    image=dict(**BLOCK, patch_size=4, embedding_norm=True, patch_bias=False),
    text=dict(**BLOCK, max_length=40),
)


def own_run(folder, **changes):
    """Return a run with random weights, in a folder as training leaves it."""
    model = {**SUPPORTED, **{name: {**SUPPORTED[name], **part} for name, part in changes.items()}}
    recipe = build_recipe(
        {
            "task": "contrastive",
            "data": {"train": ["x"], "valid": ["x"], "size": 16, "resample": "bicubic"},
            "tokens": {"kind": "bpe", "size": 60},
            "model": model,
        }
    )
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    (folder / "tokenizer.json").write_text(train_tokenizer(recipe.tokens, LINES * 3, (END_NAME,)).to_json())
    run = ContrastiveRun(recipe_task(recipe), folder, recipe, torch.device("cpu"))
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.25 * torch.randn_like(p))
    write_weights(folder / "model.safetensors", named_weights(run.model))
    return regard.load(folder, device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image": {"activation": "quick_gelu", "mean": [0.1, 0.2, 0.3]}},
        {"text": {"width": 16, "heads": 2, "norm_epsilon": 1e-3}},
    ],
    ids=str,
)
def test_exported_run_equals_transformers(tmp_path, files, changes):
    run = own_run(tmp_path / "run", **changes)
    proof = convert(run.folder, tmp_path / "hf", verify=True, device="cpu")
    assert proof.against == "transformers" and proof.passed, proof
    opened, info = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert type(opened).__name__ == "CLIPModel" and not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        theirs = opened(
            **tokenizer(LINES, padding=True, return_tensors="pt"),
            **processor([Image.open(file) for file in files], return_tensors="pt"),
        )
    np.testing.assert_allclose(run._text_vectors(LINES), theirs.text_embeds, atol=1e-4)
    again = regard.load(tmp_path / "hf", device="cpu")
    assert again.match(files, LINES) == run.match(files, LINES)
    assert again._images.transform == run._images.transform and again._special_tokens.suffix == run._special_tokens.suffix
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "Which of some texts fits an image" in card and "## Conversion" in card


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image": {"pool": "mean"}}, "model.image.pool = 'mean' has no counterpart in the closest, clip"),
        ({"image": {"embedding_norm": False}}, "model.image.embedding_norm = False"),
        ({"text": {"causal": False}}, "model.text.causal = False"),
        ({"text": {"positions": {"kind": "rotary"}}}, "model.text.positions.kind = 'rotary'"),
        ({"image": {"patch_size": [4, 8]}}, "model.image.patch_size = "),
    ],
)
def test_unsupported_model_is_reported_in_one_line(tmp_path, changes, message):
    own_run(tmp_path / "run", **changes)
    with pytest.raises(UserError) as caught:
        convert(tmp_path / "run", tmp_path / "hf", device="cpu")
    assert message in str(caught.value) and "\n" not in str(caught.value) and not (tmp_path / "hf").exists()


@pytest.fixture
def theirs(tmp_path, randomize_weights):
    return written(randomize_weights(transformers.CLIPModel(transformers.CLIPConfig(**shape()))), tmp_path / "theirs")


def changed(path, **values):
    """Change JSON values; `a__b` is nested."""
    settings = json.loads(path.read_text())
    for name, value in values.items():
        *parts, last = name.split("__")
        into = settings
        for part in parts:
            into = into[part]
        into[last] = value
    path.write_text(json.dumps(settings))


CORRUPTIONS = [
    ("config.json", dict(text_config__eos_token_id=5), "the model looks for text_config.eos_token_id, 5"),
    ("config.json", dict(text_config__vocab_size=None), "has no vocab_size"),
    ("config.json", dict(text_config__vocab_size=40), "the embedding has 40 rows"),
    ("config.json", dict(text_config__hidden_size=17), "17 is not divisible by 2 heads"),
    ("config.json", dict(text_config="none"), "has no vocab_size"),
    ("config.json", dict(vision_config__image_size=[16, 20]), "image_size = "),
    ("config.json", dict(vision_config__num_channels=1), "num_channels = 1"),
    ("config.json", dict(vision_config__patch_size=32), "a patch of 32 pixels is larger than the image, 16"),
    ("config.json", dict(vision_config__hidden_act="swoosh"), "vision_config.hidden_act = 'swoosh': is not supported"),
    ("config.json", dict(projection_dim=13), r"visual_projection.weight has shape \[12, 24\], config.json says \[13, 24\]"),
    ("config.json", dict(architectures=["CLIPVisionModel"]), "CLIPVisionModel.: is not supported; CLIPModel are"),
    ("preprocessor_config.json", dict(crop_size=32), "resizes images to 32 pixels, the model reads 16"),
    ("preprocessor_config.json", dict(do_center_crop=False), "leaves images of different shapes"),
]


@pytest.mark.parametrize(
    "file, values, message", CORRUPTIONS, ids=[f"{next(iter(one[1]))}-{i}" for i, one in enumerate(CORRUPTIONS)]
)
def test_invalid_folder_is_reported_in_one_line(theirs, file, values, message):
    changed(theirs / file, **values)
    with pytest.raises(UserError, match=message) as caught:
        load_native(theirs, device="cpu")
    assert "\n" not in str(caught.value)


def test_legacy_folder_whose_end_is_not_the_highest_token_is_rejected(theirs):
    (theirs / "tokenizer.json").write_text(library(first=True).to_str(), encoding="utf-8")
    changed(theirs / "config.json", text_config__eos_token_id=2)
    with pytest.raises(UserError, match="the model looks for the highest token"):
        regard.load(theirs, device="cpu")
    changed(theirs / "config.json", text_config__eos_token_id=1)
    assert verify_conversion(regard.load(theirs, device="cpu"), theirs).passed


def test_equivalent_processor_settings_give_the_same_result(theirs, files, tmp_path):
    Image.open(files[0]).resize((60, 20)).save(tmp_path / "wide.png")  # cut, not stretched
    files = [*files, tmp_path / "wide.png"]
    before = regard.load(theirs, device="cpu").match(files, LINES)
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 16, "crop_size": 16, "resample": 3, "do_center_crop": True}
    (theirs / "preprocessor_config.json").write_text(json.dumps(old))
    assert regard.load(theirs, device="cpu").match(files, LINES) == before
    (theirs / "preprocessor_config.json").unlink()
    assert regard.load(theirs, device="cpu").match(files, LINES) == before  # CLIP's own


def test_half_precision_and_old_buffers_round_trip(theirs, tmp_path):
    half = {name: tensor.half() for name, tensor in load_file(theirs / "model.safetensors").items()}
    old = {"text_model.embeddings.position_ids": torch.arange(90)[None]}
    save_file({**half, **old}, theirs / "model.safetensors", metadata={"format": "pt"})
    again = load_file(write_huggingface_folder(regard.load(theirs, device="cpu"), tmp_path / "back") / "model.safetensors")
    assert all(torch.equal(half[name], again[name]) for name in half) and again["logit_scale"].shape == ()


def test_command_line_reads_a_folder(theirs, files):
    done = CliRunner().invoke(app, ["match", str(theirs), str(files[0]), "--labels", "a dog,a cat", "--json", "--device", "cpu"])
    assert done.exit_code == 0 and {one["label"] for one in json.loads(done.stdout)} == {"a dog", "a cat"}, done.output


def test_finetuning_from_a_folder(theirs, files, tmp_path):
    from regard.run.train import train

    (tmp_path / "set.tsv").write_text("".join(f"{file}\t{line}\n" for file, line in zip(files, LINES)))
    text = {"activation": "quick_gelu", "layers": 2, "width": 16, "heads": 2, "feed_forward": 40, "max_length": 90}
    image = {
        "activation": "quick_gelu",
        "layers": 2,
        "width": 24,
        "heads": 3,
        "feed_forward": 48,
        "patch_size": 4,
        "patch_bias": False,
        "embedding_norm": True,
        "mean": [0.48145466, 0.4578275, 0.40821073],
        "std": [0.26862954, 0.26130258, 0.27577711],
    }
    recipe = {
        "task": "contrastive",
        "data": {"root": str(tmp_path), "train": ["set.tsv"], "valid": ["set.tsv"], "size": 16, "resample": "bicubic"},
        "model": {"projection_width": 12, "image": image, "text": text},
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "images_per_batch": 3,
            "optimizer": {"learning_rate": 1e-9},
            "schedule": {"warmup_steps": 0},
            "init_from": {"run": str(theirs)},
        },
    }
    run, before = train(recipe, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    np.testing.assert_allclose(run._text_vectors(LINES), before._text_vectors(LINES), atol=1e-5)
    np.testing.assert_allclose(run._image_vectors(files), before._image_vectors(files), atol=1e-5)
    proof = convert(run.folder, tmp_path / "hf", verify=True, device="cpu")
    assert proof.passed, proof
    del recipe["train"]["init_from"]
    for name, value in (("embedding_norm", True), ("segments", 2)):
        recipe["model"]["text"] = {**text, name: value}
        other = train(recipe, tmp_path / name, device="cpu")
        with pytest.raises(UserError, match=rf"model.text.{name} = {value} has no counterpart in the closest, clip"):
            convert(other.folder, tmp_path / "no", device="cpu")

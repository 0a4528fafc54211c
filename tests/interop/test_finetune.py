"""Fine-tuning from Hugging Face folders: classification, question answering, text to text."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.models.image_encoders import build_image_encoder
from regard.recipe.image_models import CnnEncoderModel
from regard.run.convert import convert
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.tasks import read_recipe
from regard.training.checkpoint import write_weights

SIZES = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=32
)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, write_huggingface_model, randomize_weights):
    model = randomize_weights(transformers.BertModel(transformers.BertConfig(**SIZES)))
    return write_huggingface_model(model, tmp_path_factory.mktemp("bert") / "theirs")


def recipe(theirs, tmp_path, **model):
    for name, numbers in (("train", range(60)), ("valid", range(60, 80))):
        lines = [f"the {'dog' if i % 2 else 'cat'} sleeps {i}\t{i % 2}\n" for i in numbers]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    shape = {
        "kind": "transformer",
        "preset": "bert-tiny",
        "width": 24,
        "layers": 2,
        "heads": 4,
        "feed_forward": 40,
        "max_length": 32,
    }
    return {
        "task": "classify",
        "data": {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"]},
        "model": {**shape, **model},
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "optimizer": {"learning_rate": 1e-9},
            "schedule": {"warmup_steps": 0},
            "init_from": {"run": str(theirs), "modules": ["encoder."]},
        },
    }


def test_classifier_keeps_the_pretrained_weights_tokenizer_and_special_tokens(theirs, tmp_path):
    run = train(recipe(theirs, tmp_path), tmp_path / "run", device="cpu")
    before = regard.load(theirs, device="cpu")
    texts = ["the dog sleeps", "a cat"]
    assert run._special_tokens == before._special_tokens and run.tokenizers[0].encode(texts) == before.tokenizers[0].encode(texts)
    for mine, other in zip(run.embed(texts, pool="words"), before.embed(texts, pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    again = regard.load(run.folder, device="cpu")
    assert again.classify(texts) == run.classify(texts) and again._special_tokens == run._special_tokens
    assert "accuracy" in evaluate(again)[0].scores
    assert convert(run.folder, tmp_path / "hf", verify=True, device="cpu").passed
    back = regard.load(tmp_path / "hf", device="cpu")
    assert back._special_tokens.prefix == run._special_tokens.prefix and back.tokenizers[0].encode(texts) == run.tokenizers[
        0
    ].encode(texts)


@pytest.mark.parametrize(
    "setting",
    [{"feed_forward": 48}, {"norm_first": True}, {"heads": 6}, {"activation": "relu"}, {"positions": {"kind": "rotary"}}],
)
def test_a_setting_that_contradicts_the_pretrained_model_is_refused(theirs, tmp_path, setting):
    (name,) = setting
    with pytest.raises(UserError, match=rf"model.{name}\S* = .*, but train.init_from.run = .* has .*; leave it out"):
        train(recipe(theirs, tmp_path, **setting), tmp_path / "run", device="cpu")


def test_init_from_alone_copies_architecture_tokenizer_and_special_tokens(theirs, tmp_path):
    settings = recipe(theirs, tmp_path)
    del settings["model"]
    settings["train"]["init_from"] = str(theirs)
    run, before = train(settings, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    assert run.recipe.model.width == 24 and not run.recipe.model.norm_first and run.recipe.model.max_length == 32
    assert run._special_tokens == before._special_tokens
    for mine, other in zip(run.embed(["the dog"], pool="words"), before.embed(["the dog"], pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    settings["train"]["init_from"] = str(run.folder)  # and a run of ours, with another task and another head
    settings["task"], settings["data"] = "masked", {"root": str(tmp_path), "train": ["train.tsv"], "valid": ["valid.tsv"]}
    again = train(settings, tmp_path / "again", device="cpu")
    assert again.recipe.model.width == 24 and again._special_tokens == run._special_tokens
    for mine, other in zip(again.embed(["the dog"], pool="words"), run.embed(["the dog"], pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)


def test_the_towers_of_clip_start_from_a_bert_and_an_image_encoder(theirs, tmp_path):
    torch.manual_seed(1)
    cnn = {"kind": "cnn", "widths": [8, 12], "strides": [2, 2]}
    weights = build_image_encoder(CnnEncoderModel.model_validate(cnn), (12, 12)).state_dict()
    (tmp_path / "cnn").mkdir()
    write_weights(tmp_path / "cnn" / "model.safetensors", {f"encoder.{name}": tensor for name, tensor in weights.items()})
    pixels = np.random.default_rng(0).integers(0, 256, (4, 12, 12, 3)).astype(np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "set.tsv").write_text("".join(f"{number}.png\tthe dog sleeps {number}\n" for number in range(4)))
    bert = {
        "width": 24,
        "layers": 2,
        "heads": 4,
        "feed_forward": 40,
        "max_length": 32,
        "norm_first": False,
        "norm_epsilon": 1e-12,
    }
    text = {**bert, "causal": False, "pool": "mean", "segments": 2, "embedding_norm": True}
    settings = {
        "task": "contrastive",
        "data": {"root": str(tmp_path), "train": ["set.tsv"], "valid": ["set.tsv"], "size": 12},
        "model": {"projection_width": 8, "image": cnn, "text": text},
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "images_per_batch": 4,
            "optimizer": {"learning_rate": 1e-9},
            "init_from": [
                {"run": str(tmp_path / "cnn"), "modules": ["encoder"], "into": "image", "tokenizer": False},
                {"run": str(theirs), "modules": ["encoder"], "into": "text"},
            ],
        },
    }
    run, before = train(settings, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    loaded = run.model.image.state_dict()
    assert all(torch.allclose(loaded[name], tensor, atol=1e-6) for name, tensor in weights.items())
    inputs = before._inputs("the dog sleeps")
    assert all(torch.equal(ours, inputs[name]) for name, ours in run._inputs("the dog sleeps").items())
    with torch.no_grad():
        mean = before.model(**inputs).mean(1)  # one text, without padding
        torch.testing.assert_close(run.model.text(inputs["source"], inputs["lengths"]), mean, atol=1e-5, rtol=0)
    again = regard.load(run.folder, device="cpu")
    np.testing.assert_array_equal(again._text_vectors(["a cat"]), run._text_vectors(["a cat"]))
    assert [source.into for source in read_recipe(run.folder / "recipe.toml").train.init_from] == ["image", "text"]


def test_new_from_a_folder_prints_a_recipe_that_fine_tunes_it(theirs, tmp_path):
    recipe(theirs, tmp_path)
    found = CliRunner().invoke(app, ["new", "classify", "--data", str(tmp_path / "train.tsv"), "--from", str(theirs)])
    assert found.exit_code == 0 and "[model" not in found.stdout and "[tokens]" not in found.stdout
    (tmp_path / "mine.toml").write_text(found.stdout)
    run = train(tmp_path / "mine.toml", tmp_path / "run", overrides=["train.steps=1", "train.evaluate_every=1"], device="cpu")
    assert run.recipe.model.width == 24 and run.recipe.train.optimizer.learning_rate == 5e-5
    assert "about" in found.stderr and "--minutes N (now 60)" in found.stderr
    words = ["new", "classify", "--data", str(tmp_path / "train.tsv"), "--from", str(run.folder), "--minutes", "0.00001"]
    assert "steps = 20 " in CliRunner().invoke(app, words).stdout  # the fewest: the budget is spent
    missing = CliRunner().invoke(app, ["new", "classify", "--data", str(tmp_path / "train.tsv"), "--from", str(tmp_path / "no")])
    assert isinstance(missing.exception, UserError)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("AlbertModel", {"embedding_size": 10}),
        ("ElectraModel", {"embedding_size": 10}),
        ("ModernBertModel", {"local_attention": 4, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}),
    ],
)
def test_encoders_of_other_families_are_fine_tuned_and_exported_again(
    name, settings, tmp_path, write_huggingface_model, randomize_weights
):
    kind = getattr(transformers, name)
    model = randomize_weights(kind(kind.config_class(**SIZES, **settings)))
    folder = write_huggingface_model(model, tmp_path / "theirs")
    before = regard.load(folder, device="cpu")
    shape = before.recipe.model.model_dump(mode="json") | {
        "pool": {"ElectraModel": "first_gelu", "AlbertModel": "first"}.get(name, "mean"),
        "head_transform": name == "ModernBertModel",
    }
    settings = recipe(folder, tmp_path)
    run = train({**settings, "model": shape}, tmp_path / "run", device="cpu")
    texts = ["the dog sleeps", "a cat"]
    for mine, other in zip(run.embed(texts, pool="words"), before.embed(texts, pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    assert convert(run.folder, tmp_path / "hf", verify=True, device="cpu").passed
    assert regard.load(tmp_path / "hf", device="cpu")._huggingface.family.model_type == model.config.model_type
    settings["train"] |= {"steps": 40, "evaluate_every": 40, "optimizer": {"learning_rate": 1e-2}}  # learned from any seed
    trained = train({**settings, "model": shape}, tmp_path / "longer", device="cpu")
    assert evaluate(trained)[0].scores["accuracy"].score > 95


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_question_answering_keeps_the_pretrained_vocabulary_and_exports_again(
    family, tmp_path, write_huggingface_model, randomize_weights
):
    """Pairs are read with the special tokens of the pretrained vocabulary, here and in the exported folder."""
    kind = {"bert": transformers.BertModel, "roberta": transformers.RobertaModel}[family]
    model = randomize_weights(kind(kind.config_class(**{**SIZES, "max_position_embeddings": 34 if family == "roberta" else 32})))
    theirs = write_huggingface_model(model, tmp_path / "theirs")
    row = {"question": "the dog", "context": "a small cat, the old dog and she", "answers": [{"text": "dog", "start": 21}]}
    (tmp_path / "a.jsonl").write_text((json.dumps(row) + "\n") * 20)
    wanted = recipe(theirs, tmp_path)
    wanted |= {"task": "answer", "data": {"root": str(tmp_path), "train": ["a.jsonl"], "valid": ["a.jsonl"]}}
    run, before = train(wanted, tmp_path / "run", device="cpu"), regard.load(theirs, device="cpu")
    assert run._special_tokens == before._special_tokens == regard.load(run.folder, device="cpu")._special_tokens
    for mine, other in zip(run.embed(["the dog"], pool="words"), before.embed(["the dog"], pool="words")):
        assert np.allclose(mine.vectors, other.vectors, atol=1e-5)
    assert convert(run.folder, tmp_path / "hf", verify=True, device="cpu").passed
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hf")
    assert len(tokenizer) == 61 and tokenizer.pad_token in ("[PAD]", "<pad>") and tokenizer.pad_token_id < 61
    batch = tokenizer([row["question"]] * 2, [row["context"], "a cat"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = opened(**batch).start_logits[0]
    rows = run._encode(run.data.valid)
    expected = run.model(**rows.batch(np.array([0]), 0, 0).inputs)[0, 0]
    torch.testing.assert_close(logits[: len(expected)], expected, atol=1e-4, rtol=0)


T5_SIZES = dict(vocab_size=61, d_model=24, d_kv=6, num_heads=4, d_ff=40, num_layers=1, num_decoder_layers=2)
T5_SHAPE = {
    "preset": "t5-tiny",
    "width": 24,
    "heads": 4,
    "feed_forward": 40,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "max_length": 32,
}


def texts(tmp_path, begin, **train_settings):
    for name, numbers in (("train", range(60)), ("valid", range(60, 80))):
        lines = [f"the {'dog' if i % 2 else 'cat'} sleeps\t{i % 2}\n" for i in numbers]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    task = {
        "prefix": "which: ",
        "kind": "classify",
        "train": ["train.tsv"],
        "valid": ["valid.tsv"],
        "labels": {"0": "a cat", "1": "a dog"},
    }
    return {
        "task": "text-to-text",
        "data": {"root": str(tmp_path), "tasks": {"which": task}},
        "model": T5_SHAPE,
        "train": {
            "steps": 1,
            "evaluate_every": 1,
            "optimizer": {"learning_rate": 1e-9},
            "schedule": {"warmup_steps": 0},
            **train_settings,
            "init_from": {"run": str(begin)},
        },
        "decode": {"length_penalty": 0.0},
    }


@pytest.fixture(scope="module")
def their_t5(tmp_path_factory, write_huggingface_model, randomize_weights):
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_SIZES, decoder_start_token_id=0))
    return write_huggingface_model(randomize_weights(model), tmp_path_factory.mktemp("t5") / "theirs")


def test_text_to_text_finetunes_a_t5_folder_and_exports_again(their_t5, tmp_path):
    run = train(texts(tmp_path, their_t5), tmp_path / "run", device="cpu")
    before = regard.load(their_t5, device="cpu")
    lines = ["which: the dog sleeps", "which: a cat"]
    assert run._special_tokens == before._special_tokens and run.tokenizers[0].encode(lines) == before.tokenizers[0].encode(lines)
    for (name, mine), (_, theirs) in zip(run.model.named_parameters(), before.model.named_parameters()):
        assert np.allclose(mine.detach(), theirs.detach(), atol=1e-6), name
    proof = convert(run.folder, tmp_path / "hf", verify=True, device="cpu")
    assert proof.against == "transformers" and proof.passed, proof
    again = regard.load(tmp_path / "hf", device="cpu")
    assert again._special_tokens == run._special_tokens and again.tokenizers[0].encode(lines) == run.tokenizers[0].encode(lines)
    assert [found.text for found in again._best(lines, length_penalty=0.0)] == [found.text for found in run._best(lines)]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs(lines[0])["input_ids"] == [*run.tokenizers[0].encode(lines[:1])[0], run._special_tokens.eos]
    assert (theirs.pad_token, theirs.eos_token) == ("<pad>", "</s>")


def test_text_to_text_finetunes_our_pretrained_t5(tmp_path):
    """With its weights and its tokenizer, sentinels included."""
    (tmp_path / "plain.txt").write_text("the dog sleeps\nwhich a cat a dog: the cat sleeps\n" * 60)
    pretraining = {
        "task": "span-corruption",
        "data": {"root": str(tmp_path), "train": ["plain.txt"], "valid": ["plain.txt"]},
        "tokens": {"size": 160, "kind": "words"},
        "model": T5_SHAPE,
        "train": {"steps": 2, "evaluate_every": 2},
    }
    pretrained = train(pretraining, tmp_path / "pretrained", device="cpu")
    run = train(texts(tmp_path, pretrained.folder), tmp_path / "run", device="cpu")
    assert run.tokenizers[0].to_json() == pretrained.tokenizers[0].to_json()
    for (name, mine), (other, theirs) in zip(run.model.named_parameters(), pretrained.model.named_parameters()):
        assert name == other and np.allclose(mine.detach(), theirs.detach(), atol=1e-6), name
    (result,) = evaluate(run)
    assert result.name == "which/valid" and convert(run.folder, tmp_path / "hf", verify=True, device="cpu").passed


DECODERS = {
    "qwen2": ("Qwen2ForCausalLM", dict(num_key_value_heads=2, eos_token_id=0)),
    "gemma2": ("Gemma2ForCausalLM", dict(head_dim=6, num_key_value_heads=2, sliding_window=3, eos_token_id=2, bos_token_id=1)),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        dict(head_dim=6, num_key_value_heads=2, sliding_window=3, eos_token_id=2, bos_token_id=1),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_fine_tuned_and_exported_again(name, write_huggingface_model, randomize_weights, tmp_path):
    kind, settings = DECODERS[name]
    kind = getattr(transformers, kind)
    folder = write_huggingface_model(randomize_weights(kind(kind.config_class(**SIZES, **settings))), tmp_path / "theirs")
    before = regard.load(folder, device="cpu")
    (tmp_path / "train.txt").write_text("the dog sleeps\na small cat reads\n" * 20)
    run = train(
        {
            "task": "language",
            "data": {"root": str(tmp_path), "train": ["train.txt"], "valid": ["train.txt"]},
            "model": before.recipe.model.model_dump(),
            "train": {
                "steps": 1,
                "evaluate_every": 1,
                "optimizer": {"learning_rate": 1e-9},
                "schedule": {"warmup_steps": 0},
                "init_from": {"run": str(folder)},
            },
        },
        tmp_path / "run",
        device="cpu",
    )
    for one, other in zip(run.model.parameters(), before.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    proof = convert(tmp_path / "run", tmp_path / "back", verify=True, device="cpu")
    assert proof.against == "transformers" and proof.passed and proof.texts == 4, proof
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == name
    texts = ["the dog sleeps", "a small cat"]
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert opened(texts)["input_ids"] == [[*run._special_tokens.prefix, *ids] for ids in run.tokenizers[0].encode(texts)]

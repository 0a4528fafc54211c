"""Models that only transformers can open: the run gives their own outputs and attention, and nothing unsafe is loaded."""

import builtins
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
from regard.show.recording import attention_maps, record_attention
from regard.tasks.transformers_models import TransformersRun

V = 61
TEXT = "the old dog sees a small cat"
BLOCK = dict(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
DEBERTA = dict(**BLOCK, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, max_position_embeddings=40)
OPT = dict(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32)
PAIR = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
PAIR |= dict(encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=V, pad_token_id=0, bos_token_id=2, eos_token_id=3)
PAIR |= dict(decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=64)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4)
MODELS = {
    "classify": lambda: transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**DEBERTA, num_labels=3)),
    "regress": lambda: transformers.DebertaV2ForSequenceClassification(transformers.DebertaV2Config(**DEBERTA, num_labels=1)),
    "masked": lambda: transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**DEBERTA)),
    "tag": lambda: transformers.DebertaV2ForTokenClassification(transformers.DebertaV2Config(**DEBERTA)),
    "answer": lambda: transformers.DebertaV2ForQuestionAnswering(transformers.DebertaV2Config(**DEBERTA)),
    "encode": lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**DEBERTA)),
    "language": lambda: transformers.OPTForCausalLM(transformers.OPTConfig(**OPT)),
    "text-to-text": lambda: transformers.BlenderbotForConditionalGeneration(transformers.BlenderbotConfig(**PAIR)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a function that writes a model of this task, with a tokenizer, and returns the model and its folder."""
    root, made = tmp_path_factory.mktemp("foreign"), {}

    def build(name):
        if name not in made:
            torch.manual_seed(0)
            model = randomize_weights(MODELS[name]())
            made[name] = model, write_huggingface_model(model, root / name)
        return made[name]

    return build


@pytest.mark.parametrize("name", MODELS)
def test_run_gives_the_outputs_and_attention_of_transformers(folders, name):
    model, folder = folders(name)
    run = regard.load(folder, device="cpu")
    assert isinstance(run, TransformersRun) and run.task.name == name
    inputs = run._inputs(TEXT)
    eager = type(model).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs, maps = model(**inputs), eager(**inputs, output_attentions=True)
        found = run._forward(inputs)
    expected = next(theirs[key] for key in ("logits", "start_logits", "last_hidden_state") if key in theirs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    groups = attention_maps(record_attention(run, TEXT))
    kinds = ("cross_attentions", "encoder_attentions", "decoder_attentions") if name == "text-to-text" else ("attentions",)
    assert len(groups) == len(kinds)
    for group, kind in zip(groups, kinds):
        np.testing.assert_allclose(group.weights, torch.stack(maps[kind])[:, 0].numpy(), atol=1e-6)
    words = [word for word in groups[0].keys if not word.startswith("[")]
    assert "".join(words).replace("·", "") == TEXT.replace(" ", "") and len(run._text_positions(inputs)) == len(words)


def test_ensembles_are_of_our_own_models(folders, tiny_run):
    _, folder = folders("language")
    for first, other in [(folder, folder), (folder, tiny_run.folder), (tiny_run.folder, folder)]:
        with pytest.raises(UserError, match="opt"):
            regard.load(first, ensemble=[other], device="cpu")


def test_the_target_of_an_encoder_decoder_is_its_own_greedy_output(folders):
    model, folder = folders("text-to-text")
    run = regard.load(folder, device="cpu")
    inputs = run._inputs(TEXT)
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**source, num_beams=1, do_sample=False, max_new_tokens=inputs["decoder_input_ids"].size(1))
    assert torch.equal(written[:, :-1], inputs["decoder_input_ids"]) and run._predicted(inputs) == written[0, 1:].tolist()


@pytest.mark.parametrize("name", ["language", "text-to-text"])
def test_steps_are_those_of_generate(folders, name):
    model, folder = folders(name)
    run = regard.load(folder, device="cpu")
    figure = run.show(TEXT, view="steps", max_tokens=5 if name == "language" else None)
    assert "step" in figure.description
    if name == "language":
        prompt, generated = run._continue(TEXT, 5)
        inputs = run._text_inputs(TEXT)
        assert [*prompt, *generated] == model.generate(**inputs, do_sample=False, max_new_tokens=5)[0].tolist()


def test_mask_is_written_as_in_any_model_and_pairs_by_a_tab(folders):
    run = regard.load(folders("masked")[1], device="cpu")
    tokenizer = run._parts.tokenizer
    for mask in ("[MASK]", "<mask>"):
        assert tokenizer.mask_token_id in run._inputs(f"the {mask} sees")["input_ids"]
    pair = run._inputs("the dog\ta cat")["input_ids"]
    assert pair.tolist() == tokenizer("the dog", "a cat", return_tensors="pt")["input_ids"].tolist()


def test_a_family_of_ours_is_opened_natively(write_huggingface_model, tmp_path):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**BLOCK, max_position_embeddings=40))
    run = regard.load(write_huggingface_model(model, tmp_path / "bert"), device="cpu")
    assert not isinstance(run, TransformersRun) and "fill" in run.task.verbs


def test_image_classifier_and_encoder(tmp_path):
    torch.manual_seed(0)
    model = transformers.BeitForImageClassification(transformers.BeitConfig(**IMAGE, num_labels=3)).eval()
    model.save_pretrained(tmp_path / "beit")
    size = {"height": 16, "width": 16}
    processor = transformers.BeitImageProcessorPil(size=size, crop_size=size)
    processor.save_pretrained(tmp_path / "beit")
    run = regard.load(tmp_path / "beit", device="cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8))
    inputs = run._inputs(image)
    assert torch.equal(inputs["pixel_values"], processor(images=image, return_tensors="pt")["pixel_values"])
    with torch.no_grad():
        assert torch.equal(run._forward(inputs), model(**inputs).logits)
    (group,) = attention_maps(record_attention(run, image))
    assert group.keys[0] == "[class]" and group.keys[-1] == "4,4" and len(run.labels) == 3
    assert "4 × 4 patches" in run.show(image).description


# what may go wrong


@pytest.fixture
def copy(folders, tmp_path):
    """Return a copy of the classifier's folder, to be changed."""
    import shutil

    return shutil.copytree(folders("classify")[1], tmp_path / "copy")


def test_without_transformers_one_line_names_the_extra(copy, monkeypatch):
    known = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "transformers":
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(regard.UserError, match=r"model_type 'deberta-v2'; regard supports.*pip install 'regard\[transformers\]'"):
        regard.load(copy, device="cpu")


def test_pickled_weights_are_not_read(copy):
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(regard.UserError, match=r"no \.safetensors file") as raised:
        regard.load(copy, device="cpu")
    assert "\n" not in str(raised.value)


def test_missing_weights_are_not_made_up(copy):
    tensors = load_file(copy / "model.safetensors")
    tensors.pop("deberta.encoder.layer.1.attention.self.query_proj.weight")
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(regard.UserError, match=r"no weights for deberta\.encoder\.layer\.1\.attention\.self\.query_proj\.weight"):
        regard.load(copy, device="cpu")


def test_surplus_tensors_of_a_layer_are_refused(copy):
    tensors = load_file(copy / "model.safetensors")
    tensors["deberta.encoder.LayerNorm.scale"] = torch.ones(32)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    regard.load(copy, device="cpu")  # of a layer that the model does not have
    tensors["classifier.scale"] = torch.ones(3)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(regard.UserError, match=r"tensors that the model of its config.json lacks: classifier\.scale"):
        regard.load(copy, device="cpu")


@pytest.mark.parametrize(
    "change", [dict(hidden_size=31), dict(num_hidden_layers="two"), dict(hidden_act="none"), dict(intermediate_size=50)]
)
def test_a_folder_that_transformers_cannot_open_is_one_line(copy, change):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(regard.UserError, match=r"transformers cannot open|no weights for") as raised:
        regard.load(copy, device="cpu")
    assert "\n" not in str(raised.value)


CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification
class TheirConfig(DebertaV2Config):
    model_type = "theirs"
class TheirModel(DebertaV2ForSequenceClassification):
    config_class = TheirConfig
"""


def test_code_of_the_folder_runs_only_when_trusted(copy, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    ran = tmp_path / "ran"
    (copy / "theirs.py").write_text(CODE.replace('Path(__file__).with_name("ran")', f"Path({str(ran)!r})"))
    config = json.loads((copy / "config.json").read_text())
    code = {"AutoConfig": "theirs.TheirConfig", "AutoModelForSequenceClassification": "theirs.TheirModel"}
    config |= {"model_type": "theirs", "architectures": ["TheirModel"], "auto_map": code}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(regard.UserError, match=r"needs code of its own \(auto_map\).* add --trust-remote-code"):
        regard.load(copy, device="cpu")
    assert not ran.exists()
    run = regard.load(copy, device="cpu", trust_remote_code=True)
    assert ran.exists() and run.task.name == "classify" and type(run.model).__name__ == "TheirModel"


def test_too_long_and_empty_texts_are_user_errors(folders):
    run = regard.load(folders("classify")[1], device="cpu")
    with pytest.raises(regard.UserError, match=r"the text has \d+ tokens, the model takes 40; shorten it"):
        run.show("the dog " * 40)
    with pytest.raises(regard.UserError, match="the text is empty"):
        run.show("")


def test_verbs_that_need_our_model_are_refused(folders, tmp_path):
    folder = str(folders("language")[1])
    for words, message in (
        (["generate", folder, "the dog"], "cannot generate; use: regard show"),
        (["evaluate", folder], "regard supports"),
        (["convert", folder, str(tmp_path / "out"), "--to", "hf"], "regard supports"),
    ):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, regard.UserError) and message in str(result.exception)


def test_show_command_draws_a_model_of_transformers(folders, tmp_path):
    out = tmp_path / "a.svg"
    words = ["show", str(folders("language")[1]), TEXT, "--view", "heads", "--out", str(out)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and "self-attention: 2 layers of 4 heads" in result.stdout and ">dog<" in out.read_text()


def test_name_on_the_hub_is_opened_from_its_folder(folders, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def download(name, allow_patterns):
        asked.append(allow_patterns)
        return str(folders("classify")[1])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert regard.load("somebody/deberta", device="cpu").task.name == "classify"
    assert not any(pattern.endswith((".py", ".bin")) for pattern in asked[0])
    regard.load("somebody/deberta", device="cpu", trust_remote_code=True)
    assert "*.py" in asked[1]


def test_tokenizer_written_in_python(tmp_path):
    """A model of proteins (ESM): a letter is a token, and the tokenizer has no fast counterpart."""
    names = [*["<cls>", "<pad>", "<eos>", "<unk>"], *"LAGVSERTIDPKQNFYMHWCXBUZO", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(names))
    tokenizer = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    settings = dict(pad_token_id=1, mask_token_id=len(names) - 1, max_position_embeddings=64)
    model = transformers.EsmForMaskedLM(transformers.EsmConfig(**BLOCK | dict(vocab_size=len(names)), **settings)).eval()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "esm")
    run = regard.load(tmp_path / "esm", device="cpu")
    inputs = run._inputs("MKT<mask>LV")
    assert run._side_tokens(inputs) == {"text": [["<cls>", *"MKT", "<mask>", *"LV", "<eos>"]]}
    assert run._text_positions(inputs) == [1, 2, 3, 4, 5, 6] and run._max_positions == 62
    with torch.no_grad():
        model(**run._inputs("M" * 60))  # and one more would have no position
    with pytest.raises(regard.UserError, match="the model takes 62"):
        run._inputs("M" * 61)

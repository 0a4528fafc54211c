"""Malformed and malicious folders: one line each, no code run, no files left behind, no memory allocated by their claims."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file

import regard
from regard.run.convert import convert

V = 61


@pytest.fixture(scope="module")
def good(tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return valid folders of several families, to be corrupted."""
    root = tmp_path_factory.mktemp("good")
    small = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
    models = {
        "bert": transformers.BertForSequenceClassification(transformers.BertConfig(**small, max_position_embeddings=40)),
        "gpt2": transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=V, n_embd=24, n_layer=1, n_head=3, n_positions=40, eos_token_id=0, bos_token_id=0)
        ),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, max_position_embeddings=40)),
        "mistral": transformers.MistralForCausalLM(
            transformers.MistralConfig(**small, num_key_value_heads=3, max_position_embeddings=40)
        ),
        "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small, num_key_value_heads=3, head_dim=8)),
        "gemma3": transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**small, num_key_value_heads=3, head_dim=8)),
        "albert": transformers.AlbertForMaskedLM(transformers.AlbertConfig(**small, embedding_size=10)),
        "modernbert": transformers.ModernBertModel(
            transformers.ModernBertConfig(**small, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3)
        ),
        "mbart": transformers.MBartForConditionalGeneration(
            transformers.MBartConfig(
                vocab_size=V,
                d_model=24,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=3,
                decoder_attention_heads=3,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                max_position_embeddings=40,
                decoder_start_token_id=2,
            )
        ),
        "marian": transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=V,
                d_model=24,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=3,
                decoder_attention_heads=3,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                max_position_embeddings=40,
                pad_token_id=2,
                decoder_start_token_id=2,
            )
        ),
    }
    return {name: write_huggingface_model(randomize_weights(model), root / name) for name, model in models.items()}


def config(**changes):
    """Change settings of config.json; None removes one."""

    def corrupt(folder):
        values = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps({name: value for name, value in values.items() if value is not None}))

    return corrupt


def tensors(change):
    def corrupt(folder):
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors")

    return corrupt


def tokenizer(change):
    def corrupt(folder):
        found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        change(found)
        (folder / "tokenizer.json").write_text(json.dumps(found), encoding="utf-8")

    return corrupt


def write(name, content):
    def corrupt(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return corrupt


def remove(name):
    return lambda folder: (folder / name).unlink()


def cut(share):
    def corrupt(folder):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[: int(share * len(data))])

    return corrupt


def index(files):
    """Move the weights to a shard, and write an index that says they are in `files`."""

    def corrupt(folder):
        names = list(load_file(folder / "model.safetensors"))
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files(names)}))

    return corrupt


def huge(folder):
    with (folder / "config.json").open("ab") as file:
        file.truncate(2**36)


CORRUPTIONS = {
    # what it says it is
    "unknown type": ("bert", config(model_type="mamba"), r"model_type 'mamba'; regard supports bert, roberta"),
    "no type": ("bert", config(model_type=None), "has no model_type"),
    "type is a list": ("bert", config(model_type=["bert"]), "has model_type"),
    "auto_map": ("bert", config(auto_map={"AutoModel": "evil.Model"}), r"needs code of its own \(auto_map\)"),
    "trust_remote_code": ("bert", config(trust_remote_code=True), r"needs code of its own \(trust_remote_code\)"),
    "tokenizer asks too": (
        "bert",
        write("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}'),
        r"tokenizer_config.json needs code of its own",
    ),
    "quantized": ("llama", config(quantization_config={"bits": 4}), "quantized"),
    "unknown head": ("bert", config(architectures=["BertForMultipleChoice"]), "MultipleChoice.*is not supported.*BertModel"),
    "another head": ("bert", config(architectures=["BertForQuestionAnswering"]), "lacks qa_outputs.weight, qa_outputs.bias"),
    "one label": ("bert", config(id2label={"0": "x"}, problem_type="single_label_classification"), "with one label"),
    "several labels at once": ("bert", config(problem_type="multi_label_classification"), "several labels or numbers at once"),
    "several numbers at once": ("bert", config(problem_type="regression"), "several labels or numbers at once"),
    "labels misnumbered": ("bert", config(id2label={"0": "x", "7": "y"}), "should name the labels 0, 1, 2"),
    # sizes
    "width absurd": ("bert", config(hidden_size=10**12), "hidden_size = 1000000000000: should be an integer from 1 to"),
    "width negative": ("bert", config(hidden_size=-24), "hidden_size = -24: should be"),
    "width zero": ("bert", config(hidden_size=0), "hidden_size = 0: should be"),
    "width in words": ("bert", config(hidden_size="24"), "hidden_size = '24': should be an integer"),
    "width not a number": ("bert", config(hidden_size=float("nan")), "hidden_size = nan: should be"),
    "width true": ("bert", config(hidden_size=True), "hidden_size = True: should be"),
    "width a half": ("bert", config(hidden_size=24.5), "hidden_size = 24.5: should be"),
    "layers absurd": ("bert", config(num_hidden_layers=10**9), "num_hidden_layers = 1000000000: should be"),
    "positions absurd": ("bert", config(max_position_embeddings=10**12), "max_position_embeddings = 1000000000000: should be"),
    "sinusoids absurd": ("marian", config(max_position_embeddings=10**6), "max_position_embeddings = 1000000: should be"),
    "wide but possible": (
        "llama",
        config(hidden_size=2**19, head_dim=8, num_attention_heads=2**16, num_key_value_heads=2**16),
        r"embed_tokens.weight has shape \[61, 24\], config.json says \[61, 524288\]",
    ),
    "product absurd": (
        "llama",
        config(hidden_size=2**20, head_dim=2**20, num_attention_heads=2**20, num_key_value_heads=2**20),
        r"q_proj.weight has shape \[24, 24\], config.json says \[1099511627776, 1048576\]",
    ),
    "heads do not divide": ("bert", config(num_attention_heads=5), "a width of 24 is not divisible by 5 heads"),
    "epsilon not a number": ("bert", config(layer_norm_eps=float("nan")), "layer_norm_eps = nan: should be a number above 0"),
    "epsilon infinite": ("bert", config(layer_norm_eps=float("inf")), "layer_norm_eps = inf: should be"),
    "vocabulary absurd": ("bert", config(vocab_size=10**12), "vocab_size = 1000000000000: should be"),
    "no vocabulary": ("bert", config(vocab_size=None), "has no vocab_size"),
    "activation": ("bert", config(hidden_act="__import__('os')"), "hidden_act = .*is not supported"),
    "heads differ": (
        "marian",
        config(decoder_attention_heads=4),
        r"decoder_attention_heads = 4: should be 3, as another setting",
    ),
    "groups of layers": ("albert", config(num_hidden_groups=2), "num_hidden_groups = 2: is not supported; only 1"),
    "embeddings of no width": ("albert", config(embedding_size=0), "embedding_size = 0: should be an integer from 1"),
    "window of no layer": ("modernbert", config(local_attention=-4), "local_attention = -4: should be an integer from 1"),
    "output without bias": ("modernbert", config(decoder_bias=False), "decoder_bias = False: is not supported; only True"),
    "rotation by layers": (
        "modernbert",
        config(rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 9.0}}),
        "rope_parameters.full_attention.rope_type = 'yarn': is not supported; only 'default'",
    ),
    "language of no token": ("mbart", config(forced_bos_token_id=61), "forced_bos_token_id = 61: should be one of the 61 tokens"),
    "learned positions absurd": (
        "mbart",
        config(max_position_embeddings=30),
        r"embed_positions.weight has shape \[42, 24\], config.json says \[32, 24\]",
    ),
    "rotation": (
        "llama",
        config(rope_parameters={"rope_type": "yarn", "factor": 8.0}),
        "rope_type = 'yarn': is not supported; should be default or linear or llama3",
    ),
    "rotation without its numbers": (
        "llama",
        config(rope_parameters={"rope_type": "llama3", "factor": 8.0}),
        "does not have rope_parameters.low_freq_factor",
    ),
    "rotation the old way": ("llama", config(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling.type = 'dynamic'"),
    "rotation by a negative number": (
        "llama",
        config(rope_scaling={"type": "linear", "factor": -2.0}),
        "rope_scaling.factor = -2.0: should be a number above 0",
    ),
    "window in words": ("mistral", config(sliding_window="wide"), "sliding_window = 'wide': should be an integer"),
    "window of nothing": ("mistral", config(sliding_window=0), "sliding_window = 0: should be an integer from 1"),
    "layers of another kind": (
        "qwen3",
        config(use_sliding_window=True, sliding_window=8, layer_types=["full_attention", "linear_attention"]),
        "layer_types = .*should name 2 layers, each full_attention or sliding_attention",
    ),
    "windows without a width": (
        "qwen3",
        config(sliding_window=8, layer_types=["full_attention", "sliding_attention"]),
        "sliding_window = None: should be an integer, as layer_types has sliding_attention",
    ),
    "biases beside norms": ("qwen3", config(attention_bias=True), "attention_bias = True: is not supported; only False"),
    "both directions": (
        "gemma3",
        config(use_bidirectional_attention=True),
        "use_bidirectional_attention = True: is not supported",
    ),
    "capped scores with normed queries": (
        "gemma3",
        config(attn_logit_softcapping=50.0),
        "attn_logit_softcapping = 50.0: is not supported; only None",
    ),
    "cap of zero": ("gemma3", config(final_logit_softcapping=0), "final_logit_softcapping = 0: should be a number above 0"),
    "local rotation": (
        "gemma3",
        config(rope_parameters={"sliding_attention": {"rope_type": "linear", "factor": 2.0}}),
        "rope_parameters.sliding_attention.rope_type = 'linear': is not supported; should be default",
    ),
    "pattern of nothing": ("gemma3", config(layer_types=None, sliding_window_pattern=0), "sliding_window_pattern = 0: should be"),
    "end out of range": ("gpt2", config(eos_token_id=10**6), "eos_token_id = 1000000: should be one of the 61 tokens"),
    "end in words": ("gpt2", config(eos_token_id="</s>"), "eos_token_id = '</s>': should be"),
    # files
    "not JSON": ("bert", write("config.json", "{"), "config.json is not readable JSON"),
    "a list": ("bert", write("config.json", "[]"), "should hold a JSON object, not a list"),
    "not UTF-8": ("bert", write("config.json", '{"model_type": "bert"}'.encode("utf-16")), "is not readable JSON"),
    "deeply nested": ("bert", write("config.json", '{"a":' * 200_000 + "1" + "}" * 200_000), "config.json is nested too deeply"),
    "endless": ("bert", huge, "config.json is larger than 32 MB"),
    "no weights": ("bert", remove("model.safetensors"), "has no weights"),
    "no tokenizer": ("bert", remove("tokenizer.json"), "has no tokenizer.json"),
    # tensors
    "missing tensors": (
        "bert",
        tensors(lambda found: [found.pop(name) for name in list(found) if "layer.1.output" in name]),
        "lacks encoder.layer.1.output.dense.weight, encoder.layer.1.output.dense.bias, "
        "encoder.layer.1.output.LayerNorm.weight, encoder.layer.1.output.LayerNorm.bias",
    ),
    "wrong shape": (
        "bert",
        tensors(lambda found: found.update({"classifier.weight": torch.zeros(24, 2)})),
        r"classifier.weight has shape \[24, 2\], config.json says \[2, 24\]",
    ),
    "another mathematics": (
        "llama",
        tensors(lambda found: found.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)})),
        "does not have: layers.0.self_attn.q_norm.weight",
    ),
    "output not the embedding": (
        "bert",
        tensors(lambda found: found.update({"cls.predictions.decoder.weight": torch.zeros(V, 24)})),
        "cls.predictions.decoder.weight differs from embeddings.word",
    ),
    "bytes for numbers": (
        "bert",
        tensors(lambda found: found.update({"classifier.weight": torch.zeros(2, 24, dtype=torch.int8)})),
        "classifier.weight has dtype I8, which is not supported",
    ),
    "truncated": ("bert", cut(0.7), "model.safetensors is damaged.*download it again"),
    "truncated in the header": ("bert", cut(0.01), "model.safetensors is damaged"),
    "empty": ("bert", write("model.safetensors", b""), "model.safetensors is damaged"),
    "header absurd": ("bert", write("model.safetensors", struct.pack("<Q", 2**62) + b"{}"), "model.safetensors is damaged"),
    "header lies": (
        "bert",
        write(
            "model.safetensors",
            (lambda text: struct.pack("<Q", len(text)) + text)(
                b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
            ),
        ),
        "model.safetensors is damaged",
    ),
    # shards
    "shard above": ("bert", index(lambda names: dict.fromkeys(names, "../model-1.safetensors")), r"names the file '\.\./model"),
    "shard elsewhere": ("bert", index(lambda names: dict.fromkeys(names, "/etc/passwd")), "names the file '/etc/passwd'"),
    "shard no name": ("bert", index(lambda names: dict.fromkeys(names, 7)), "names the file '7'"),
    "shard missing": (
        "bert",
        index(lambda names: dict.fromkeys(names, "model-2.safetensors")),
        "names model-2.safetensors, which does not exist",
    ),
    "shard without it": (
        "bert",
        index(lambda names: dict.fromkeys([*names, "extra"], "model-1.safetensors")),
        "holds extra, which it does not",
    ),
    "index empty": ("bert", index(lambda names: []), "names no tensors"),
    # tokenizer
    "merges that panic": (
        "gpt2",
        tokenizer(lambda found: found["model"].update(continuing_subword_prefix="#" * 40)),
        "tokenizer.json is not a usable tokenizer.json: range end index",
    ),
    "merges of nothing": ("gpt2", tokenizer(lambda found: found["model"]["merges"].insert(0, ["zz", "qq"])), "out of vocabulary"),
    "a charsmap that panics": (
        "marian",
        tokenizer(lambda found: found.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"})),
        "not a usable tokenizer.json: index out",
    ),
    "tokenizer not JSON": ("bert", write("tokenizer.json", "{"), "not a usable tokenizer.json"),
    "tokenizer deeply nested": ("bert", write("tokenizer.json", '{"model":' * 100_000), "not a usable tokenizer.json"),
    "vocabulary too large": (
        "gpt2",
        tokenizer(lambda found: found["model"]["vocab"].update(stranger=V)),
        "'stranger' is token 61, the embedding has 61 rows",
    ),
    "marks out of range": (
        "bert",
        tokenizer(lambda found: found["post_processor"]["special_tokens"]["[CLS]"].update(ids=[10**9])),
        "puts token 1000000000 around a text",
    ),
}


def listing(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_malformed_folder_gives_one_line_and_leaves_nothing_behind(good, tmp_path, monkeypatch, capfd, name):
    kind, corrupt, message = CORRUPTIONS[name]
    folder = tmp_path / "folder"
    shutil.copytree(good[kind], folder)
    corrupt(folder)
    before, memory = listing(tmp_path), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.chdir(tmp_path)
    with pytest.raises(regard.UserError, match=message) as error:
        convert(folder, tmp_path / "out", device="cpu")
    assert "\n" not in str(error.value) and len(str(error.value)) < 1200
    assert listing(tmp_path) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000  # kB
    assert capfd.readouterr() == ("", "")


def test_folders_load_before_they_are_corrupted(good):
    assert {name: regard.load(folder, device="cpu").recipe.task for name, folder in good.items()} == {
        "bert": "classify",
        "gpt2": "language",
        "llama": "language",
        "mistral": "language",
        "qwen3": "language",
        "gemma3": "language",
        "albert": "masked",
        "modernbert": "encode",
        "mbart": "translate",
        "marian": "translate",
    }


@pytest.mark.parametrize("examples", [6, pytest.param(1000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_any_corruption_gives_a_run_or_one_line(good, tmp_path, corrupted_bytes, file, examples):
    folder = tmp_path / "folder"
    shutil.copytree(good["bert"], folder)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(data=corrupted_bytes((folder / file).read_bytes()))
    def law(data):
        (folder / file).write_bytes(data)
        try:
            regard.load(folder, device="cpu")
        except regard.UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1200

    law()


@pytest.mark.parametrize("name", ["merges that panic"])
def test_command_line_prints_one_line_and_exits_with_2(good, tmp_path, name):
    kind, corrupt, _ = CORRUPTIONS[name]
    shutil.copytree(good[kind], tmp_path / "folder")
    corrupt(tmp_path / "folder")
    done = subprocess.run(
        [sys.executable, "-m", "regard", "embed", str(tmp_path / "folder"), "a dog"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("regard: ") and done.stderr.count("\n") == 1


class CodeRunner:
    """An object that runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickled(folder, **more):
    """Rewrite the weights of a folder as a pickle."""
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**found, **more}, folder / "pytorch_model.bin")


def test_pickle_is_rejected_or_read_without_running_code(good, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(good["bert"], folder)
    safe = regard.load(folder, device="cpu")
    pickled(folder)
    with pytest.raises(regard.UserError, match=r"in a pickle \(pytorch_model.bin\).*--allow-pickle"):
        regard.load(folder, device="cpu")
    run = regard.load(folder, device="cpu", allow_pickle=True)
    assert all(torch.equal(a, b) for a, b in zip(safe.model.parameters(), run.model.parameters()))


def test_malicious_pickle_is_not_run(good, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(good["bert"], folder)
    pickled(folder, more=CodeRunner(tmp_path / "owned"))
    with pytest.raises(regard.UserError, match="is not a pickle of tensors"):
        regard.load(folder, device="cpu", allow_pickle=True)
    assert not (tmp_path / "owned").exists()


def test_compressed_pickle_is_not_opened(good, tmp_path):
    """It could be a decompression bomb."""
    folder = tmp_path / "folder"
    shutil.copytree(good["bert"], folder)
    pickled(folder)
    with zipfile.ZipFile(folder / "pytorch_model.bin") as stored:
        parts = {entry: stored.read(entry) for entry in stored.namelist()}
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as squeezed:
        for name, content in parts.items():
            squeezed.writestr(name, content)
    with pytest.raises(regard.UserError, match="is compressed"):
        regard.load(folder, device="cpu", allow_pickle=True)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(regard.UserError, match="is not a pickle of tensors"):
        regard.load(folder, device="cpu", allow_pickle=True)

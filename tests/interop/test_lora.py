"""Low-rank adaptation of Hugging Face folders: what is trained, resuming, merging, and PEFT's file format."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

import regard
from regard.errors import UserError
from regard.layers.lora import LoraLinear, add_lora, is_adapter, merge_lora
from regard.run.convert import convert
from regard.run.train import train
from regard.training.checkpoint import named_weights

SIZES = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=32)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=32)
    ),
}
LAYERS = {"bert": ["q_proj", "v_proj"], "gpt2": ["q_proj", "v_proj", "outer"], "llama": ["q_proj", "k_proj", "gate", "outer"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a folder of each tiny model."""
    found = {}

    def folder(name: str):
        if name not in found:
            model = randomize_weights(MODELS[name]())
            found[name] = write_huggingface_model(model, tmp_path_factory.mktemp(name) / "base")
        return found[name]

    return folder


def recipe(name, base, root, **settings):
    lines = [f"the {'dog' if i % 2 else 'cat'} sleeps {i}\t{i % 2}" for i in range(40)]
    text = lines if name == "bert" else [line.partition("\t")[0] for line in lines]
    (root / "train.tsv").write_text("\n".join(text) + "\n")
    loaded = regard.load(base, device="cpu")
    model = loaded.recipe.model.model_dump(mode="json", exclude_none=True)
    return {
        "task": "classify" if name == "bert" else "language",
        "data": {"root": str(root), "train": ["train.tsv"], "valid": ["train.tsv"]},
        "model": model,
        "train": {
            "steps": 6,
            "evaluate_every": 3,
            "save_every": 3,
            "optimizer": {"learning_rate": 0.05},
            "schedule": {"warmup_steps": 0, "kind": "constant"},
            "init_from": {"run": str(base)} | ({"modules": ["encoder."]} if name == "bert" else {}),
            "lora": {"rank": 3, "alpha": 6.0, "layers": LAYERS[name]},
        }
        | settings,
    }


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
    """Return the base folder and a finished run of each model."""
    found = {}

    def run(name: str):
        if name not in found:
            root = tmp_path_factory.mktemp(f"{name}-run")
            base = folders(name)
            found[name] = base, train(recipe(name, base, root), root / "run", device="cpu")
        return found[name]

    return run


def test_an_adapted_layer_starts_as_it_was_and_merging_gives_its_output():
    torch.manual_seed(0)
    base, x = torch.nn.Linear(8, 6), torch.randn(5, 8)
    layer = LoraLinear(base, rank=2, scale=0.5)
    assert torch.equal(layer(x), base(x))
    with torch.no_grad():
        layer.lora_B.normal_()
    merged = merge_lora({f"a.{name}": p.detach() for name, p in layer.named_parameters()}, 0.5)
    assert set(merged) == {"a.weight", "a.bias"}
    torch.testing.assert_close(torch.nn.functional.linear(x, merged["a.weight"], merged["a.bias"]), layer(x))
    assert not torch.equal(merged["a.weight"], base.weight)


@pytest.mark.parametrize("name", MODELS)
def test_only_adapters_and_new_weights_change(trained, name):
    base, run = trained(name)
    before = named_weights(regard.load(base, device="cpu").model)
    after = {}
    for path in sorted((run.folder / "checkpoints").glob("*/*.safetensors")):
        after |= {key: value for key, value in load_file(path).items() if "/" not in key}
    shared = [key for key in before if key in after and (name != "bert" or key.startswith("encoder."))]  # the rest is new
    assert len(shared) > 10
    for key in shared:
        assert torch.equal(after[key], before[key]), key
    adapters = load_file(run.folder / "adapter.safetensors")
    assert any(tensor.any() for key, tensor in adapters.items() if key.endswith("lora_B"))
    assert {key.rpartition(".")[0].rpartition(".")[2] for key in adapters if is_adapter(key)} == set(LAYERS[name])


@pytest.mark.parametrize("name", MODELS)
def test_peft_gives_the_output_of_the_merged_model(trained, tmp_path, name):
    peft = pytest.importorskip("peft")
    base, run = trained(name)
    convert(run.folder, tmp_path / "adapter", to="peft", device="cpu")
    proof = convert(run.folder, tmp_path / "merged", verify=True, device="cpu")
    assert proof.passed
    kind = transformers.AutoModelForSequenceClassification if name == "bert" else transformers.AutoModelForCausalLM
    options = dict(num_labels=2) if name == "bert" else {}
    adapted = peft.PeftModel.from_pretrained(kind.from_pretrained(base, **options), tmp_path / "adapter").eval()
    merged, ids = kind.from_pretrained(tmp_path / "merged").eval(), torch.randint(5, 60, (3, 9))
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, atol=1e-5, rtol=1e-5)
        plain = kind.from_pretrained(base, **options).eval()(ids).logits
    assert (plain - merged(ids).logits).abs().max() > 1e-3


def adapt_a_run(root, model):
    """Train a language model from scratch, then adapt it; return the adapted run."""
    settings = {
        "task": "language",
        "data": {"world": {"number": 40, "held_out": 6}},
        "tokens": {"size": 120},
        "model": {"kind": "transformer", "layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 64, **model},
        "train": {"steps": 6, "evaluate_every": 6, "save_every": 6, "tokens_per_batch": 256},
    }
    train(settings, root / "own", device="cpu")
    settings["train"] |= {
        "init_from": {"run": str(root / "own")},
        "lora": {"rank": 3, "layers": ["q_proj", "outer"]},
        "optimizer": {"learning_rate": 0.05},
    }
    return train(settings, root / "adapted", device="cpu")


def test_peft_gives_the_output_of_an_adapted_run_of_ours(tmp_path):
    """The run that was adapted is written as a Hugging Face folder beside the adapter."""
    peft = pytest.importorskip("peft")
    run = adapt_a_run(tmp_path, {"preset": "gpt2"})
    convert(run.folder, tmp_path / "adapter", to="peft", device="cpu")
    convert(run.folder, tmp_path / "merged", device="cpu")
    kind, ids = transformers.AutoModelForCausalLM, torch.randint(5, 60, (3, 9))
    config = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert config.base_model_name_or_path == str(tmp_path / "adapter" / "base")
    plain = kind.from_pretrained(config.base_model_name_or_path).eval()
    with torch.no_grad():
        before = plain(ids).logits
        merged = kind.from_pretrained(tmp_path / "merged").eval()(ids).logits
        adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()(ids).logits
    torch.testing.assert_close(adapted, merged, atol=1e-5, rtol=1e-5)
    assert (before - merged).abs().max() > 1e-3


def test_an_adapter_of_a_model_that_transformers_does_not_have_is_refused_with_the_cure(tmp_path):
    run = adapt_a_run(tmp_path, {"positions": {"kind": "alibi"}})
    with pytest.raises(
        UserError, match=r"is not built like one \(.*alibi.*\); use --to hf, which has the adapter merged$"
    ) as caught:
        convert(run.folder, tmp_path / "adapter", to="peft", device="cpu")
    assert "\n" not in str(caught.value) and not (tmp_path / "adapter").exists()


def test_a_resumed_adaptation_equals_an_uninterrupted_one(trained, folders, tmp_path):
    _, whole = trained("gpt2")
    settings = recipe("gpt2", folders("gpt2"), tmp_path, steps=3)
    train(settings, tmp_path / "run", device="cpu")
    resumed = train(tmp_path / "run", overrides=["train.steps=6"], resume=True, device="cpu")
    ours, theirs = named_weights(whole.model), named_weights(resumed.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_settings_that_cannot_work_are_refused(folders, tmp_path):
    settings = recipe("gpt2", folders("gpt2"), tmp_path)
    with pytest.raises(UserError, match=r"train.lora.layers = \['gate'\]"):
        train(settings | {"train": settings["train"] | {"lora": {"layers": ["gate"]}}}, tmp_path / "run", device="cpu")
    del settings["train"]["init_from"]
    with pytest.raises(UserError, match=r"name it in train.init_from"):
        train(settings, tmp_path / "other", device="cpu")


def test_a_run_without_adapters_has_none_to_write(folders, tmp_path):
    settings = recipe("gpt2", folders("gpt2"), tmp_path, steps=1)
    del settings["train"]["lora"]
    train(settings, tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match=r"was not trained with train.lora"):
        convert(tmp_path / "run", tmp_path / "adapter", to="peft", device="cpu")


def test_shared_layers_share_an_adapter():
    block = torch.nn.Module()
    block.q_proj = torch.nn.Linear(4, 4)
    model = torch.nn.Module()
    model.stack = torch.nn.Module()
    model.stack.blocks = torch.nn.ModuleList([block, block])
    assert add_lora(model, ["q_proj"], 2, 1.0) == ["stack.blocks.0.q_proj"]
    assert model.stack.blocks[1].q_proj is model.stack.blocks[0].q_proj

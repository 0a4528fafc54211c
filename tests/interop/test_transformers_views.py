"""The logit lens and the flow of models that transformers runs: those of a model of ours with the same weights."""

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.errors import UserError
from regard.show.forward_pass.flow import record_flow
from regard.show.forward_pass.lens import has_lens, lens_inputs, lens_log_probs
from regard.tasks.transformers_models import wrap_model

V = 61
TEXT = "the old dog sees a small cat"
MASKED = "the old [MASK] sees a small cat"
BLOCK = dict(vocab_size=V, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
GPT2 = dict(vocab_size=V, n_embd=32, n_layer=3, n_head=4, n_positions=40, bos_token_id=2, eos_token_id=3)
OPT = dict(vocab_size=V, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32)
PAIR = dict(d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4)
PAIR |= dict(encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=V, pad_token_id=0, bos_token_id=2, eos_token_id=3)
PAIR |= dict(decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=64)
T5 = dict(vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, decoder_start_token_id=0, pad_token_id=0)
T5 |= dict(eos_token_id=3)
NATIVE = {
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)), TEXT),
    "bert": (lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BLOCK, max_position_embeddings=40)), MASKED),
}
"""Families that a model of ours runs too."""
FOREIGN = {
    "opt": (lambda: transformers.OPTForCausalLM(transformers.OPTConfig(**OPT)), TEXT),
    "electra": (lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(**BLOCK)), MASKED),
    "gptj": (lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(**GPT2, rotary_dim=8)), TEXT),
    "neox": (lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**BLOCK, bos_token_id=2, eos_token_id=3)), TEXT),
    "t5": (lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)), TEXT),
    "blenderbot": (lambda: transformers.BlenderbotForConditionalGeneration(transformers.BlenderbotConfig(**PAIR)), TEXT),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a function that gives a model of transformers as a run, its folder, and the text that it reads."""
    root, made = tmp_path_factory.mktemp("views"), {}

    def build(name):
        if name not in made:
            torch.manual_seed(0)
            create, text = {**NATIVE, **FOREIGN}[name]
            folder = write_huggingface_model(randomize_weights(create()).eval(), root / name)
            model = type(create()).from_pretrained(folder).eval()
            made[name] = wrap_model(model, transformers.AutoTokenizer.from_pretrained(folder)), folder, text
        return made[name]

    return build


@pytest.mark.parametrize("name", NATIVE)
def test_lens_through_transformers_is_that_of_our_own_model(opened, name):
    run, folder, text = opened(name)
    own = regard.load(folder, device="cpu")
    found, expected = (lens_log_probs(one, lens_inputs(one, text)) for one in (run, own))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*NATIVE, *FOREIGN])
def test_the_last_layer_of_the_lens_is_the_models_own_distribution(opened, name):
    run, _, text = opened(name)
    inputs = lens_inputs(run, text)
    found = lens_log_probs(run, inputs)
    with torch.no_grad():
        own = run._forward(inputs.inputs)[0].log_softmax(-1)
    assert len(found) == 4
    torch.testing.assert_close(found[-1], own, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[-2], own, atol=1e-3)


def test_a_layer_of_the_lens_is_a_model_of_transformers_cut_off_after_it(opened):
    run, _, text = opened("opt")
    inputs = lens_inputs(run, text)
    found, decoder = lens_log_probs(run, inputs), run.model.model.decoder
    layers = decoder.layers
    try:
        for number in (1, 2):
            decoder.layers = layers[:number]
            with torch.no_grad():
                cut = run._forward(inputs.inputs)[0].log_softmax(-1)
            torch.testing.assert_close(found[number], cut, rtol=1e-5, atol=1e-5)
    finally:
        decoder.layers = layers


def test_lens_leaves_the_model_as_it_was_and_names_tokens(opened):
    run, _, text = opened("gpt2")
    before = run._forward(run._inputs(text))
    lens_log_probs(run, lens_inputs(run, text))  # transformers keeps hooks of its own from the first time on
    hooks = [len(module._forward_hooks) for module in run.model.modules()]
    figure = regard.show(run.model, run._parts.tokenizer, text, view="lens")
    assert figure.data.layers == ["embeddings", "layer 1", "layer 2", "layer 3"]
    assert [len(module._forward_hooks) for module in run.model.modules()] == hooks
    assert "forward" not in run.model.base_model.__dict__ and torch.equal(run._forward(run._inputs(text)), before)


def test_models_that_predict_no_tokens_have_no_lens_and_say_so(write_huggingface_model, tmp_path):
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BLOCK, max_position_embeddings=40))
    folder = write_huggingface_model(model, tmp_path / "labels")
    run = wrap_model(model, transformers.AutoTokenizer.from_pretrained(folder))
    assert not has_lens(run)
    with pytest.raises(UserError, match="classifies; the logit lens is for Transformers that predict tokens"):
        run.show(TEXT, view="lens")


def stages_of_layers(flow):
    return {(stage.layer, stage.sublayer, stage.name): stage for stage in flow.stages if stage.layer is not None}


@pytest.mark.parametrize("name", NATIVE)
def test_flow_through_transformers_has_the_numbers_of_our_own_model(opened, name):
    run, folder, text = opened(name)
    found, expected = record_flow(run, text), record_flow(regard.load(folder, device="cpu"), text)
    ours, theirs = stages_of_layers(expected), stages_of_layers(found)
    assert list(ours) == list(theirs)
    for place, stage in ours.items():
        assert [panel.symbol for panel in stage.panels] == [panel.symbol for panel in theirs[place].panels], place
        for panel, other in zip(stage.panels, theirs[place].panels):
            np.testing.assert_allclose(other.values, panel.values, rtol=1e-3, atol=1e-3, err_msg=str((place, panel.symbol)))
    assert found.stages[-1].candidates.top[0][0][0] == expected.stages[-1].candidates.top[0][0][0]
    np.testing.assert_allclose(found.stages[-1].panels[0].values, expected.stages[-1].panels[0].values, atol=1e-3)


@pytest.mark.parametrize("name", ["opt", "electra", "neox"])
def test_sums_and_weights_of_the_flow_are_consistent(opened, name):
    run, _, text = opened(name)
    flow = record_flow(run, text)
    residuals = [stage for stage in flow.stages if stage.name == "residual"]
    assert len(residuals) == 6
    for stage in residuals:
        before, added, total = (panel.values for panel in stage.panels[:3])
        np.testing.assert_allclose(before + added, total, atol=1e-4)
    for stage in flow.stages:
        if stage.name == "mix":
            weights, values, mixed = (panel.values for panel in stage.panels)
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
            np.testing.assert_allclose(weights @ values, mixed, atol=1e-4)
    assert flow.stages[-1].candidates is not None and flow.heads == 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("blenderbot", "translators that regard opens without transformers"),
        ("t5", "translators that regard opens without transformers"),
        ("gptj", "has scores of more than queries and keys; use --view lens"),
    ],
)
def test_flow_of_other_models_is_refused_in_one_line(opened, name, reason):
    run, _, text = opened(name)
    with pytest.raises(UserError, match=rf"^--view flow: [^\n]*{reason}$"):
        run.show(text, view="flow")

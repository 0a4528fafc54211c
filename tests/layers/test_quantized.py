"""int8 and bf16 models: they differ from the exact model by rounding only."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.attention.watch import watch
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.errors import UserError
from regard.layers.quantized import Int8Linear, convert_precision
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, PositionSettings, TransformerModel

V = 23


def translator(**settings):
    shape = TransformerModel(preset="tiny", width=32, heads=2, feed_forward=64, max_length=32, **settings)
    return Transformer(shape, V, V).eval()


@given(st.integers(1, 9), st.sampled_from([8, 33, 64]), st.sampled_from([5, 32]), st.booleans())
def test_int8_layer_is_within_rounding_of_the_exact_layer(rows, width, out, bias):
    """Within the error of rounding x and W to 127 steps of their maximum, in any shape; a zero vector gives the bias."""
    torch.manual_seed(rows)
    linear = nn.Linear(width, out, bias=bias)
    with torch.no_grad():
        linear.weight[0] *= 100  # each output has its own scale
        small, x = Int8Linear(linear), torch.randn(2, rows, width)
        step = 1.5 * (x.abs().max() * linear.weight.abs().amax(1) * width / 127)
        assert (small.int8_weight.abs().amax(1) == 127).all()  # all steps are used, and each weight is rounded to the nearest
        assert ((small.int8_weight * small.scale[:, None] - linear.weight).abs() <= 0.5001 * small.scale[:, None]).all()
        assert ((small(x) - linear(x)).abs() <= step).all()
        torch.testing.assert_close(small(x[:1, :1]), linear(x[:1, :1]), atol=float(step.max()), rtol=0)
        zero = small(torch.zeros(1, width))
        torch.testing.assert_close(zero[0], linear.bias if bias else torch.zeros(out))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_first": True, "activation": "swiglu", "positions": PositionSettings(kind="rotary")},
        {"bias": False, "key_value_heads": 1, "tie": "none"},
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
@torch.no_grad()
def test_converted_model_is_near_the_exact_one_and_search_scores_are_its_own(settings, precision):
    model = translator(**settings)
    small = convert_precision(model, precision)
    source, lengths, target = torch.randint(4, V, (3, 6)), torch.tensor([6, 4, 1]), torch.randint(4, V, (3, 5))
    exact = model(source, lengths, target).log_softmax(-1)
    log_p = small(source, lengths, target).float().log_softmax(-1)
    assert 0 < (log_p - exact).abs().mean() < 0.1
    state, parts = small.start((source, lengths)), []
    for position in range(5):
        logits, state = small.step(target[:, position : position + 1], state)
        parts.append(logits)
    assert (torch.cat(parts, 1).float().log_softmax(-1) - exact).abs().mean() < 0.1
    limits = torch.tensor([6, 4, 5])
    searched = [best[0] for best in beam_search(small, (source, lengths), limits, beam=2)]
    for found in (greedy_or_sample(small, (source, lengths), limits), searched):
        for row, one in enumerate(found):
            whole = torch.tensor([[1, *one.tokens]])
            log_p = small(source[row : row + 1], lengths[row : row + 1], whole).float().log_softmax(-1)[0]
            expected = sum(float(log_p[i, token]) for i, token in enumerate([*one.tokens, 2]))
            assert one.log_probability == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("tie", [True, False])
@torch.no_grad()
def test_bf16_with_fused_qkv_and_padded_output_equals_plain_bf16(tie):
    model = Gpt(DecoderModel(kind="transformer", preset="tiny", max_length=16, tie=tie), 8193).eval()
    text, plain = torch.randint(4, 8193, (2, 7)), copy.deepcopy(model).to(torch.bfloat16)
    small = convert_precision(model, "bf16")
    assert small(text).shape == (2, 7, 8193) and small.output.weight.size(0) == 8256
    torch.testing.assert_close(small(text), plain(text), atol=2e-2, rtol=2e-2)


def test_int8_model_shares_all_other_modules_and_leaves_the_exact_model_unchanged():
    model = translator()
    inputs = torch.randint(4, V, (2, 5)), torch.tensor([5, 3]), torch.randint(4, V, (2, 4))
    with torch.no_grad():
        before, small = model(*inputs), convert_precision(model, "int8")
        assert torch.equal(model(*inputs), before) and not torch.equal(small(*inputs), before)
    assert not any(type(part) is Int8Linear for part in model.modules())
    assert {id(p) for p in small.parameters()} == {id(p) for p in model.parameters()}
    assert model.decoder.blocks[0].self_attention.attend is small.decoder.blocks[0].self_attention.attend
    assert convert_precision(model, "fp32") is model


def test_watching_the_exact_model_records_the_int8_model():
    model = translator()
    small = convert_precision(model, "int8")
    source, lengths, target = torch.randint(4, V, (2, 5)), torch.tensor([5, 3]), torch.randint(4, V, (2, 4))
    with torch.no_grad():
        plain = small(source, lengths, target)
        with watch(model, kinds="cross", states=True) as seen:
            assert torch.equal(small(source, lengths, target), plain)
    assert seen.stack().shape == (2, 2, 2, 4, 5) and seen.states


def test_int8_decoding_token_by_token_is_near_the_exact_logits():
    """Small and large batches use different engines; both stay near."""
    model = Gpt(DecoderModel(kind="transformer", layers=2, width=32, heads=2, feed_forward=64, max_length=32), V).eval()
    small, text = convert_precision(model, "int8"), torch.randint(0, V, (1, 7))
    with torch.no_grad():
        exact, state, steps = model(text).log_softmax(-1), small.start(None, text[:, :0]), []
        for position in range(7):
            logits, state = small.step(text[:, position : position + 1], state)
            steps.append(logits)
        one_by_one = (torch.cat(steps, 1).log_softmax(-1) - exact).abs().mean()
        assert 0 < one_by_one < 0.05 and (small(text).log_softmax(-1) - exact).abs().mean() < 0.05


def test_int8_on_a_gpu_is_rejected():
    with pytest.raises(UserError, match="int8 is for the CPU; on cuda use --precision bf16"):
        convert_precision(nn.Linear(2, 2), "int8", torch.device("cuda"))

"""Training: activation and dropout of a feed-forward layer in one kernel equal the written-out form, in values and gradients."""

import pytest
import torch
from torch import nn

from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers import activation_kernel
from regard.layers.feed_forward import ACTIVATIONS, FeedForward
from regard.layers.lora import LoraLinear

pytestmark = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 3e-2}


def build_inputs(rows, width, inner, dtype=torch.float32, bias=True):
    torch.manual_seed(1)
    linear = nn.Linear(width, inner, bias=bias, device=DEVICE, dtype=dtype)
    return torch.randn(rows, width, device=DEVICE, dtype=dtype).requires_grad_(), linear


def draw_mask(seed, shape, dropout):
    """Return the mask of a call after a seed, divided by the probability to keep, (rows, inner)."""
    ones = nn.Linear(1, shape[1], device=DEVICE)
    nn.init.zeros_(ones.weight), nn.init.ones_(ones.bias)
    torch.manual_seed(seed)
    return activation_kernel.linear_and_activate(torch.zeros(shape[0], 1, device=DEVICE), ones, "relu", dropout).detach()


def values_and_gradients(function, x, parameters, weight):
    h = function(x)
    return [h, *torch.autograd.grad((h * weight.to(h.dtype)).sum(), [x, *parameters])]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("activation", activation_kernel.ACTIVATIONS)
@pytest.mark.parametrize("rows, inner, bias", [(1, 5, True), (9, 1030, True), (6, 37, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_equal_the_equation_in_float64(monkeypatch, dropout, activation, rows, inner, bias, dtype):
    monkeypatch.setattr(
        activation_kernel, "MAX_PROGRAMS", 2
    )  # of which each has two groups of rows in the largest of these cases
    x, linear = build_inputs(rows, 7, inner, dtype, bias)
    weight = torch.randn(rows, inner, device=DEVICE).to(dtype).double()
    torch.manual_seed(2)
    found = values_and_gradients(
        lambda x: activation_kernel.linear_and_activate(x, linear, activation, dropout), x, linear.parameters(), weight
    )
    mask = draw_mask(2, (rows, inner), dropout).double()
    exact = nn.Linear(7, inner, bias=bias, device=DEVICE, dtype=torch.float64)
    exact.load_state_dict(linear.state_dict())
    expected = values_and_gradients(
        lambda x: mask * ACTIVATIONS[activation](exact(x)), x.detach().double().requires_grad_(), exact.parameters(), weight
    )
    for one, other in zip(found, expected, strict=True):
        largest = max(1, float(other.detach().abs().max()))
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=TOLERANCE[dtype] * largest, rtol=TOLERANCE[dtype])


def test_dropout_masks_keep_each_element_with_its_probability_and_follow_the_seed():
    one, other = draw_mask(1, (32, 1100), 0.3), draw_mask(2, (32, 1100), 0.3)
    assert torch.equal(draw_mask(1, (32, 1100), 0.3), one) and not torch.equal(one, other)
    assert ((one == 0) | torch.isclose(one, torch.tensor(1 / 0.7, device=DEVICE))).all()
    deviation = (0.3 * 0.7) ** 0.5
    assert abs((one > 0).float().mean() - 0.7) < 4 * deviation / one.numel() ** 0.5
    centred = ((one > 0).float() - 0.7) / deviation
    for left, right in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1]), (centred[4:], centred[:-4])):
        assert abs((left * right).mean()) < 5 / left.numel() ** 0.5
    assert draw_mask(1, (4, 8), 1.0).sum() == 0 and (draw_mask(1, (4, 8), 0.0) == 1).all()


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_training_a_feed_forward_layer_with_kernels_equals_training_it_without(monkeypatch, activation):
    torch.manual_seed(1)
    layer, x = FeedForward(8, 24, activation).to(DEVICE).train(), torch.randn(2, 3, 8, device=DEVICE, requires_grad=True)
    calls, launch = [], activation_kernel.linear_and_activate
    monkeypatch.setattr(activation_kernel, "linear_and_activate", lambda *args: calls.append(1) or launch(*args))
    weight = torch.randn(2, 3, 8, device=DEVICE)
    found = values_and_gradients(layer, x, layer.parameters(), weight)
    assert len(calls) == (activation != "swiglu")
    monkeypatch.setattr(activation_kernel, "can_run", lambda *_: False)
    for one, other in zip(found, values_and_gradients(layer, x, layer.parameters(), weight), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_watched_frozen_adapted_and_evaluated_layers():
    layer, x = FeedForward(8, 24, "relu", 0.1).to(DEVICE).train(), torch.randn(3, 8, device=DEVICE, requires_grad=True)

    def runs():
        return activation_kernel.can_run(x, layer.inner, layer.activation, layer.dropout)

    assert runs()
    layer.eval()
    assert not runs()
    layer.train()
    for part in (layer.inner, layer.dropout):
        seen = []
        with part.register_forward_hook(lambda *_: seen.append(1)):  # noqa: B023
            assert not runs()
            layer(x).sum().backward()
        assert seen and runs()
    layer.inner.weight.requires_grad_(False)
    layer.zero_grad()
    layer(x).sum().backward()
    assert layer.inner.weight.grad is None and layer.inner.bias.grad is not None
    layer.inner = LoraLinear(layer.inner, 2, 1.0).to(DEVICE)
    assert not runs()


def test_layer_computes_in_the_precision_of_autocast_and_its_weights_keep_theirs():
    layer, x = FeedForward(8, 24, "gelu", 0.1).to(DEVICE).train(), torch.randn(2, 3, 8, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16 and output.shape == x.shape
    output.sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in [x, *layer.parameters()])


@needs_gpu
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gradients_have_the_same_bits_in_every_run(activation):
    x, linear = build_inputs(16_384, 512, 2_048, torch.bfloat16)
    weight = torch.randn(16_384, 2_048, device=DEVICE)

    def run():
        torch.manual_seed(2)
        return values_and_gradients(
            lambda x: activation_kernel.linear_and_activate(x, linear, activation, 0.3), x, linear.parameters(), weight
        )

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@needs_gpu
def test_cuda_graph_draws_a_new_mask_in_each_replay_and_uses_it_backward(check_captured_masks):
    ones, x = nn.Linear(1, 64, device=DEVICE), torch.zeros(32, 1, device=DEVICE)
    nn.init.zeros_(ones.weight), nn.init.ones_(ones.bias)

    def run():
        h = activation_kernel.linear_and_activate(x, ones, "silu", 0.5)
        return h.detach(), torch.autograd.grad(h.sum(), ones.bias)[0]

    def check(h, db):
        slope = db / (h > 0).sum(0)  # the same for all features, if both passes have one mask
        torch.testing.assert_close(slope, slope.mean().expand_as(slope))

    check_captured_masks(run, check)

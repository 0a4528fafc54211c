"""Linear layers for inference equal the written-out form, with few rows and many."""

import pytest
import torch
from torch import nn

from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers.feed_forward import ACTIVATIONS, FeedForward
from regard.layers.linear import FUSED_ACTIVATIONS, MAX_ROWS, InferenceLinear
from regard.layers.quantized import convert_precision

with_kernels = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@with_kernels
@pytest.mark.parametrize("rows", [1, 3, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("D, E, bias", [(16, 5, True), (768, 20, False), (5000, 3, True)])
@pytest.mark.parametrize("activation", [None, *FUSED_ACTIVATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32])
def test_inference_linear_equals_the_written_out_form(rows, D, E, bias, activation, dtype):
    torch.manual_seed(rows)
    layer = InferenceLinear(D, E, bias=bias, device=DEVICE, dtype=dtype)
    x = torch.randn(rows, 1, D, device=DEVICE, dtype=dtype)
    with torch.no_grad():
        expected = nn.functional.linear(x, layer.weight, layer.bias)
        expected = expected if activation is None else ACTIVATIONS[activation](expected)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(layer(x, activation), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "gelu", "swiglu"])
def test_converted_feed_forward_layer_equals_the_exact_one(activation):
    layer = FeedForward(16, 24, activation).to(DEVICE)
    converted = convert_precision(layer, "bf16")
    assert type(converted.inner) is InferenceLinear and type(layer.inner) is nn.Linear
    for rows in (1, 20):
        x = torch.randn(rows, 1, 16, device=DEVICE)
        with torch.no_grad():
            torch.testing.assert_close(converted(x.bfloat16()).float(), layer(x), atol=2e-2, rtol=2e-2)

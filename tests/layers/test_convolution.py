"""The gated convolution: its equation, its neighbourhood, its padding; convolutions with a batch norm without gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.layers.convolution import BasicBlock, GatedConvolution
from regard.models.efficientnet import InvertedResidual

kernels = st.sampled_from([1, 3, 5, 7])


def random_layer(width: int, kernel: int, seed: int) -> GatedConvolution:
    torch.manual_seed(seed)
    layer = GatedConvolution(width, kernel).double()
    torch.nn.init.normal_(layer.convolve.bias)
    return layer


@given(rows=st.integers(1, 3), T=st.integers(1, 9), width=st.integers(1, 5), kernel=kernels, seed=st.integers(0, 1000))
def test_gated_convolution_equals_the_papers_equation(rows, T, width, kernel, seed):
    """Position by position, and with torch's convolution of the same weights."""
    layer = random_layer(width, kernel, seed)
    x = torch.randn(rows, T, width, dtype=torch.float64)
    weight, bias, side = layer.convolve.weight, layer.convolve.bias, kernel // 2
    expected = torch.empty_like(x)
    for i in range(T):
        seen = sum(x[:, j] @ weight[:, :, j - i + side].T for j in range(max(0, i - side), min(T, i + side + 1))) + bias
        expected[:, i] = (x[:, i] + seen[:, :width] * seen[:, width:].sigmoid()) * math.sqrt(0.5)
    torch.testing.assert_close(layer(x), expected, atol=1e-10, rtol=0)
    values, gates = F.conv1d(x.transpose(1, 2), weight, bias, padding=side).transpose(1, 2).chunk(2, dim=-1)
    torch.testing.assert_close(layer(x), (x + values * gates.sigmoid()) / math.sqrt(2), atol=1e-10, rtol=0)


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    more=st.integers(0, 4),
    kernel=kernels,
    seed=st.integers(0, 1000),
    depth=st.integers(1, 3),
)
def test_padding_does_not_change_the_output(lengths, more, kernel, seed, depth):
    """Through several layers, whatever the padding holds, NaN included; gradients too."""
    layers = [random_layer(4, kernel, seed + number) for number in range(depth)]
    length_padded = max(lengths) + more
    real = torch.arange(length_padded) < torch.tensor(lengths)[:, None]  # (B, T)
    content = torch.randn(len(lengths), length_padded, 4, dtype=torch.float64)
    x = content.masked_fill(~real[..., None], math.nan).requires_grad_()
    padded = x
    for layer in layers:
        padded = layer(padded, torch.tensor(lengths))
    (gradient,) = torch.autograd.grad(padded[real].square().sum(), x)
    assert gradient[~real].eq(0).all()
    for row, length in enumerate(lengths):
        alone = x.detach()[row : row + 1, :length].requires_grad_()
        out = alone
        for layer in layers:
            out = layer(out)
        torch.testing.assert_close(padded[row, :length], out[0], atol=1e-10, rtol=0)
        (mine,) = torch.autograd.grad(out.square().sum(), alone)
        torch.testing.assert_close(gradient[row, :length], mine[0], atol=1e-10, rtol=0)


@given(T=st.integers(1, 12), kernel=kernels, seed=st.integers(0, 1000))
def test_each_output_depends_on_its_neighbourhood_only(T, kernel, seed):
    layer = random_layer(3, kernel, seed)
    x = torch.randn(1, T, 3, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    for i in range(T):
        (gradient,) = torch.autograd.grad(out[0, i].sum(), x, retain_graph=True)
        seen = gradient[0].ne(0).any(-1)
        assert torch.equal(seen, (torch.arange(T) - i).abs() <= kernel // 2)


def test_even_kernel_is_rejected():
    with pytest.raises(AssertionError, match="odd kernel, got 4"):
        GatedConvolution(8, 4)


@given(
    build=st.sampled_from(
        [
            lambda: BasicBlock(4, 4, (7, 7)),
            lambda: BasicBlock(4, 6, (4, 4), stride=2),
            lambda: InvertedResidual(4, 4, 5, 1, 6),
            lambda: InvertedResidual(4, 6, 3, 2, 1),
        ]
    ),
    seed=st.integers(0, 1000),
)
def test_batch_norms_folded_into_convolutions_give_the_same_outputs(build, seed):
    """In inference without gradients the norm is part of the convolution's weights; with them, in training and in half precision,
    where that is less exact, it is not."""
    torch.manual_seed(seed)
    block, x = build().double(), torch.randn(2, 4, 7, 7, dtype=torch.float64)
    norms = [module for module in block.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.1, 2)
    calls = []
    for norm in norms:
        norm.register_forward_hook(lambda *_: calls.append(1))
    expected = block.eval()(x)
    assert len(calls) == len(norms)
    with torch.no_grad():
        given_x = x.clone()
        torch.testing.assert_close(block(given_x), expected, atol=1e-12, rtol=1e-9)
        assert torch.equal(given_x, x)
        assert len(calls) == len(norms)
        block.bfloat16()(x.bfloat16())
        assert len(calls) == 2 * len(norms)
        with torch.autocast("cpu"):
            block.float()(x.float())
        assert len(calls) == 3 * len(norms)
        block.double()
        before = norms[0].running_mean.clone()
        block.train()(x)
    assert len(calls) == 4 * len(norms)
    assert not torch.equal(norms[0].running_mean, before)

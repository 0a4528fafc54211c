"""A residual connection and its norm: one kernel equals the written-out form, and a stream equals the blocks one by one."""

import pytest
import torch
from torch import nn

from regard.attention.multihead import Attention
from regard.attention.positions import PositionEncoding
from regard.attention.watch import watch
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers import norm_kernel
from regard.layers.block import Block, BlockConfig
from regard.layers.feed_forward import FeedForward
from regard.layers.norm import Residual, Update, add_and_norm, build_norm
from regard.layers.stack import Stack

with_kernels = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["layer", "layer_no_bias", "rms", "zero_centered_rms"]


@with_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [5, 64, 768])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float32])
def test_add_and_norm_kernel_equals_the_written_out_form(kind, width, dtype):
    torch.manual_seed(1)
    norm = build_norm(kind, width).to(DEVICE, dtype)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    x, y = (torch.randn(2, 3, width, device=DEVICE, dtype=dtype) * 3 for _ in range(2))
    with torch.no_grad():
        assert norm_kernel.can_run(x, norm)
        total, normed = add_and_norm(x, Update(y), norm)
        assert torch.equal(total, x + y)
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
        torch.testing.assert_close(normed, norm(x + y), atol=tolerance, rtol=tolerance)
        assert torch.equal(add_and_norm(total, None, norm)[1], normed)
        for update in (Update(y), None):
            expected = add_and_norm(x, update, norm)[1]
            assert torch.equal(add_and_norm(x, update, norm, is_stream=True)[1], expected)
        assert norm_kernel.add_and_norm(x, y, norm, keep_sum=False)[0] is None, "the sum is not written"


@with_kernels
def test_watched_norms_and_gradients_take_the_written_out_form():
    norm, x = build_norm("layer", 8).to(DEVICE), torch.randn(2, 3, 8, device=DEVICE)
    assert not norm_kernel.can_run(x, norm)
    with torch.no_grad():
        assert not norm_kernel.can_run(x.double(), norm.double()) and not norm_kernel.can_run(x, nn.Identity())
        seen = []
        norm.float().register_forward_hook(lambda module, given, output: seen.append(output))
        normed = add_and_norm(x, Update(x), norm)[1]
        assert seen and seen[0] is normed


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("options", [{}, dict(sandwich_norm=True), dict(layer_scale=0.3, norm="rms")])
def test_stream_equals_the_blocks_one_by_one(norm_first, residual, options, monkeypatch):
    torch.manual_seed(1)
    config = BlockConfig(12, 2, 16, norm_first=norm_first, residual=residual, **options)
    stack = Stack(config, 3, PositionEncoding(), widths=[12, 20, 20]).to(DEVICE, torch.float32).eval()
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.3)
    x = torch.randn(2, 5, 12, device=DEVICE)
    with torch.no_grad():
        states = []
        expected = stack(x, states=states)
        assert len(states) == 4
        monkeypatch.setattr("regard.layers.stack.runs_inference_kernels", lambda x: True)
        found = stack(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_watching_attention_leaves_the_stream_and_hooks_of_skipped_modules_do_not(norm_first, monkeypatch):
    stack = Stack(BlockConfig(12, 2, 16, norm_first=norm_first), 2, PositionEncoding()).to(DEVICE).eval()
    x, streams, stream = torch.randn(2, 5, 12, device=DEVICE), [], Block.stream
    monkeypatch.setattr("regard.layers.stack.runs_inference_kernels", lambda x: True)
    monkeypatch.setattr(Block, "stream", lambda block, *args, **given: (streams.append(block), stream(block, *args, **given))[1])
    expected = stack(x)
    with watch(stack) as seen:
        assert torch.equal(stack(x), expected)
    assert streams == [*stack.blocks] * 2 and len(seen.names()) == 2
    for part in stack.modules():
        calls = []
        with part.register_forward_hook(lambda *call: calls.append(call)):  # noqa: B023
            torch.testing.assert_close(stack(x), expected)
        assert calls or not isinstance(part, (Block, Residual, nn.LayerNorm, FeedForward, Attention)), part


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("hooked", [0, 1, 2])
@torch.no_grad()
def test_hooks_of_one_block_leave_the_others_in_the_stream(norm_first, hooked, monkeypatch):
    stack = Stack(BlockConfig(12, 2, 16, norm_first=norm_first), 3, PositionEncoding()).to(DEVICE).eval()
    x, seen = torch.randn(2, 5, 12, device=DEVICE), []
    states = []
    stack(x, states=states)
    monkeypatch.setattr("regard.layers.stack.runs_inference_kernels", lambda x: True)
    stack.blocks[hooked].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    stream = Block.stream
    monkeypatch.setattr(Block, "stream", lambda block, *args, **given: (seen.append(block), stream(block, *args, **given))[1])
    torch.testing.assert_close(stack(x), states[-1])
    torch.testing.assert_close(seen.pop(hooked), states[hooked])
    assert seen == [block for number, block in enumerate(stack.blocks) if number != hooked]

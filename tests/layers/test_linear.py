"""Linear layers for inference equal the written-out form, with few rows and many, whole and in parts that a norm adds up."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.positions import PositionEncoding
from regard.attention.watch import watch
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers import linear
from regard.layers.activations import ACTIVATIONS
from regard.layers.block import BlockConfig
from regard.layers.feed_forward import FeedForward
from regard.layers.linear import DTYPES, FEW_ROWS, MAX_OUTPUTS, MAX_ROWS, InferenceLinear, can_run, may_split, partial_sums
from regard.layers.norm import Update, add_and_norm, build_norm
from regard.layers.quantized import _for_inference, _fuse_projections, convert_precision
from regard.layers.stack import Stack

with_kernels = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
SIZES: list[tuple[int, int, bool, tuple[str, ...]]] = [
    (16, 5, True, tuple(ACTIVATIONS)),
    (100, 37, False, ()),
    (768, 48, True, ("gelu_tanh",)),
    *[(768, 2304, True, ("gelu_tanh",)), (3072, 768, True, ())] * (DEVICE == "cuda"),
]


@pytest.fixture
def poisoned(monkeypatch):
    """What a kernel does not write is NaN."""
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **given: new_empty(*args, **given).fill_(torch.nan))


def random_layer(D: int, E: int, bias: bool, dtype: torch.dtype) -> InferenceLinear:
    torch.manual_seed(D + E)
    layer = InferenceLinear(D, E, bias=bias, device=DEVICE, dtype=dtype).requires_grad_(False)
    if bias:
        nn.init.normal_(layer.bias)
    return layer


def written_out(layer: InferenceLinear, x: Tensor) -> Tensor:
    return nn.functional.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


@with_kernels
@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS, FEW_ROWS + 1, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("D, E, bias, activations", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_linear_kernel_equals_the_written_out_form_and_itself_to_the_bit(rows, D, E, bias, activations, dtype, poisoned):
    layer = random_layer(D, E, bias, dtype)
    x = torch.randn(rows, 2, D, device=DEVICE, dtype=dtype)[:, 0, None]  # not contiguous
    assert can_run(layer, x) == (rows <= MAX_ROWS)
    expected, close = written_out(layer, x), dict(atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for activation in (None, *activations):
        found = layer(x, activation)
        assert found.dtype == dtype and torch.equal(found, layer(x, activation))
        torch.testing.assert_close(found.double(), expected if activation is None else ACTIVATIONS[activation](expected), **close)
    if may_split(layer, x):
        parts = partial_sums(x, layer)
        assert len(parts.parts) == (4 if rows <= FEW_ROWS else 2) and torch.equal(parts.parts, partial_sums(x, layer).parts)
        torch.testing.assert_close(parts.total().double(), expected, **close)


@with_kernels
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("rows, bias", [(3, True), (3, False), (20, True)])
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_norm_kernel_adds_up_partial_sums_to_the_bit(kind, rows, bias, dtype, monkeypatch):
    layer, norm = random_layer(200, 37, bias, dtype), build_norm(kind, 37).to(DEVICE, dtype)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    x, y = torch.randn(rows, 1, 37, device=DEVICE, dtype=dtype), torch.randn(rows, 1, 200, device=DEVICE, dtype=dtype)
    parts = partial_sums(y, layer)
    with monkeypatch.context() as patch:
        patch.setattr(linear.PartialSums, "total", lambda self: pytest.fail("the kernel adds the parts"))
        total, normed = add_and_norm(x, Update(parts), norm)
        stream = add_and_norm(x, Update(parts), norm, is_stream=True)[1]
    assert torch.equal(total, x + parts.total()) and torch.equal(stream, normed)
    close = dict(atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(normed, add_and_norm(x, Update(parts.total()), norm)[1], **close)
    assert torch.equal(add_and_norm(x, Update(parts), nn.Identity())[1], total), "where no kernel computes the norm"


@with_kernels
@torch.no_grad()
def test_linear_kernel_declines_what_it_does_not_support():
    dtype = DTYPES[0]
    layer, x = random_layer(32, 8, True, dtype), torch.randn(2, 32, device=DEVICE, dtype=dtype)
    assert can_run(layer, x) and may_split(layer, x)
    assert not can_run(nn.Linear(32, 8), x) and not can_run(layer, x.double()) and not can_run(layer, x[:0])
    assert not can_run(random_layer(32, MAX_OUTPUTS + 1, False, dtype), x)
    wide = InferenceLinear(8192, 1024, device="meta", dtype=dtype)
    assert can_run(wide, x) and not can_run(wide, x.expand(FEW_ROWS + 1, 2, 32)), "cuBLAS may be faster"
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert not can_run(layer, x)
    with torch.enable_grad():
        assert not can_run(layer, x)
    with layer.register_forward_hook(lambda *call: None):
        assert can_run(layer, x) and not may_split(layer, x)
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())
    assert not can_run(layer, x)


def converted_stack(**options) -> Stack:
    config = BlockConfig(32, 2, 48, activation="gelu", **options)
    torch.manual_seed(4)
    stack = Stack(config, 2, PositionEncoding(), source_width=24).to(DEVICE, DTYPES[0]).eval().requires_grad_(False)
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.3)
    return _for_inference(_fuse_projections(stack))


def run_with_source(stack: Stack) -> Tensor:
    """Two sentences with three hypotheses each."""
    torch.manual_seed(5)
    source = torch.randn(2, 4, 24, device=DEVICE, dtype=DTYPES[0])
    sources = [block.project_source(source, Mask(lengths=torch.tensor([4, 2], device=DEVICE))) for block in stack.layers()]
    return stack(torch.randn(6, 1, 32, device=DEVICE, dtype=DTYPES[0]), sources=sources)


@with_kernels
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options, parts", [({}, 6), (dict(sandwich_norm=True), 0), (dict(layer_scale=0.3), 0), (dict(residual=False), 0)]
)
@torch.no_grad()
def test_blocks_whose_norms_add_partial_sums_equal_those_without_kernels(norm_first, options, parts, monkeypatch):
    stack, calls = converted_stack(norm_first=norm_first, **options), []
    kernel = linear.partial_sums
    for module in ("block", "feed_forward"):
        monkeypatch.setattr(f"regard.layers.{module}.partial_sums", lambda *args: (calls.append(args), kernel(*args))[1])
    found = run_with_source(stack)
    assert len(calls) == parts
    with watch(stack):
        assert torch.equal(run_with_source(stack), found)
    monkeypatch.setattr("regard.layers.linear.runs_inference_kernels", lambda x: False)
    torch.testing.assert_close(run_with_source(stack), found, atol=2e-2, rtol=2e-2)


@with_kernels
@torch.no_grad()
def test_hooks_see_the_outputs_of_every_linear_layer():
    stack = converted_stack(norm_first=True)
    expected = run_with_source(stack)
    names = ("self_attention.out_proj", "cross_attention.out_proj", "cross_attention", "feed_forward.inner", "feed_forward.outer")
    for name in (*names, "feed_forward", "feed_forward_residual"):
        part, seen = stack.blocks[1].get_submodule(name), []
        with part.register_forward_hook(lambda module, given, output: seen.append((given[0], output))):  # noqa: B023
            torch.testing.assert_close(run_with_source(stack), expected, atol=2e-2, rtol=2e-2)
        assert len(seen) == 1 and isinstance(seen[0][1], Tensor), name
        if isinstance(part, InferenceLinear):
            given, output = seen[0]
            torch.testing.assert_close(output.double(), written_out(part, given), atol=2e-2, rtol=2e-2)


@needs_gpu
@torch.inference_mode()
def test_captured_products_in_parts_equal_eager_ones_to_the_bit():
    stack = converted_stack(norm_first=True)
    x = torch.randn(40, 1, 32, device=DEVICE, dtype=DTYPES[0])
    expected, stream = stack(x), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        stack(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = stack(x)
        for _ in range(2):
            found.fill_(torch.nan)
            graph.replay()
            stream.synchronize()
            assert torch.equal(found, expected)


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "gelu", "swiglu"])
def test_converted_feed_forward_layer_equals_the_exact_one(activation):
    layer = FeedForward(16, 24, activation).to(DEVICE)
    converted = convert_precision(layer, "bf16")
    assert type(converted.inner) is InferenceLinear and type(layer.inner) is nn.Linear
    for rows in (1, 20, 100):
        x = torch.randn(rows, 1, 16, device=DEVICE)
        with torch.no_grad():
            torch.testing.assert_close(converted(x.bfloat16()).float(), layer(x), atol=2e-2, rtol=2e-2)

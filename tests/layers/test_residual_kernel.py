"""Training: dropout, residual connection and norm in one kernel equal the written-out form, in values and gradients."""

import pytest
import torch
from torch import nn

from regard.attention.masks import NO_MASK
from regard.attention.multihead import Attention
from regard.attention.positions import PositionEncoding
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED
from regard.layers import residual_kernel
from regard.layers.block import Block, BlockConfig
from regard.layers.feed_forward import FeedForward
from regard.layers.norm import Residual, Update, add_and_norm, build_norm
from regard.layers.stack import Stack

pytestmark = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["layer", "layer_no_bias", "rms", "zero_centered_rms"]
TYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def random_norm(kind, width):
    norm = build_norm(kind, width).to(DEVICE)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    return norm


def random_inputs(rows, width, x_dtype=torch.float32, y_dtype=torch.float32):
    return [(3 * torch.randn(rows, width, device=DEVICE)).to(dtype).requires_grad_() for dtype in (x_dtype, y_dtype)]


def gradients(outputs, inputs, weights):
    """Return the gradients of Σ weight · output, and zeros where there are none."""
    loss = sum((output.to(weight.dtype) * weight).sum() for output, weight in zip(outputs, weights))
    found = torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(inputs, found)]


def written_out(x, y, norm, mask):
    """Return s = x + mask · y, norm(s) and copies of all inputs in float64."""
    x, y, copy = x.detach().double().requires_grad_(), y.detach().double().requires_grad_(), build_norm_like(norm)
    total = x + mask.double() * y
    return [total, copy(total)], [x, y, *copy.parameters()]


def build_norm_like(norm):
    kind = {nn.LayerNorm: "layer" if getattr(norm, "bias", None) is not None else "layer_no_bias", nn.RMSNorm: "rms"}
    copy = build_norm(kind.get(type(norm), "zero_centered_rms"), norm.normalized_shape[0], norm.eps).to(DEVICE).double()
    copy.load_state_dict(norm.state_dict())
    return copy


def assert_equal_within_rounding(found, expected, stream=torch.float32):
    """Require the results to be equal within their own rounding and that of a residual stream of this type."""
    for one, other in zip(found, expected, strict=True):
        tolerance = max(TOLERANCE[one.dtype], TOLERANCE[stream])
        largest = max(1, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=tolerance * largest, rtol=tolerance)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, width", [(1, 5), (6, 37), (9, 512)])
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_kernels_equal_the_equation_in_float64(monkeypatch, dropout, kind, rows, width, types):
    torch.manual_seed(1)
    monkeypatch.setattr(residual_kernel, "MAX_PROGRAMS", 2)  # of which each has two groups of rows in the largest of these cases
    norm, (x, y) = random_norm(kind, width), random_inputs(rows, width, *types)
    torch.manual_seed(2)
    outputs = residual_kernel.add_and_norm(x, y, norm, dropout)
    torch.manual_seed(2)
    mask = residual_kernel.add_and_norm(torch.zeros_like(x, dtype=torch.float32), torch.ones_like(y), norm, dropout)[0].detach()
    expected, inputs = written_out(x, y, norm, mask)
    assert outputs[0].dtype == outputs[1].dtype == torch.promote_types(*types)
    assert_equal_within_rounding(outputs, expected, types[0])
    for used in ([0, 1], [0], [1]):  # a pre-norm uses both outputs, a post-norm only the norm
        weights = [torch.randn(rows, width, device=DEVICE, dtype=torch.float64) if i in used else None for i in range(2)]
        of_kernel = gradients(*drop_unused(outputs, weights, [x, y, *norm.parameters()]))
        assert_equal_within_rounding(of_kernel, gradients(*drop_unused(expected, weights, inputs)), types[0])


def drop_unused(outputs, weights, inputs):
    used = [(output, weight) for output, weight in zip(outputs, weights) if weight is not None]
    return [output for output, _ in used], inputs, [weight for _, weight in used]


@pytest.mark.parametrize("kind", KINDS)
def test_norm_alone_in_the_precision_of_the_products_equals_the_equation(kind):
    torch.manual_seed(1)
    norm, (x, _) = random_norm(kind, 37), random_inputs(6, 37)
    total, normed = residual_kernel.add_and_norm(x, None, norm, precision=torch.bfloat16)
    assert total is x and normed.dtype == torch.bfloat16
    expected, inputs = written_out(x, torch.zeros_like(x), norm, torch.zeros_like(x))
    assert_equal_within_rounding([normed], expected[1:])
    weight = torch.randn_like(x).bfloat16().double()
    of_kernel = gradients([normed], [x, *norm.parameters()], [weight])
    assert_equal_within_rounding(of_kernel, gradients(expected[1:], [inputs[0], *inputs[2:]], [weight]))


def masks(seed, shape, dropout, number=1):
    """Return the masks of some calls after a seed, (number, rows, width), in which 1 is kept."""
    norm = build_norm("layer", shape[1]).to(DEVICE)
    torch.manual_seed(seed)
    zeros, ones = torch.zeros(shape, device=DEVICE), torch.ones(shape, device=DEVICE)
    kept = torch.stack([residual_kernel.add_and_norm(zeros, ones, norm, dropout)[0].detach() for _ in range(number)])
    assert ((kept == 0) | torch.isclose(kept, torch.tensor(1 / (1 - min(dropout, 0.999)), device=DEVICE))).all()
    return (kept > 0).float()


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_masks_keep_each_element_with_its_probability_and_are_independent(dropout):
    kept = masks(1, (64, 256), dropout, number=2)
    n, deviation = kept[0].numel(), (dropout * (1 - dropout)) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < 4 * deviation / (2 * n) ** 0.5
    for axis in (0, 1):
        means = kept[0].mean(axis)
        assert (means - (1 - dropout)).abs().max() < 5 * deviation / kept.size(1 + axis) ** 0.5
    centred = (kept - (1 - dropout)) / deviation
    pairs = {
        "calls": (centred[0], centred[1]),
        "neighbouring rows": (centred[0, 1:], centred[0, :-1]),
        "groups of rows": (centred[0, 4:], centred[0, :-4]),
        "neighbouring features": (centred[0, :, 1:], centred[0, :, :-1]),
    }
    for name, (one, other) in pairs.items():
        assert abs((one * other).mean()) < 5 / one.numel() ** 0.5, name


def test_dropout_masks_follow_the_seed_of_torch():
    assert torch.equal(masks(1, (8, 64), 0.5), masks(1, (8, 64), 0.5))
    assert not torch.equal(masks(1, (8, 64), 0.5), masks(2, (8, 64), 0.5))
    assert masks(1, (8, 64), 1.0).sum() == 0 and masks(1, (8, 64), 0.0).all()


def test_watched_norms_evaluation_and_other_types_take_the_written_out_form():
    norm, x = random_norm("layer", 8), torch.randn(2, 3, 8, device=DEVICE, requires_grad=True)
    assert residual_kernel.can_run(x, norm)
    assert not residual_kernel.can_run(x, norm.eval()) and residual_kernel.can_run(x, norm.train())
    assert not residual_kernel.can_run(x.double(), norm) and not residual_kernel.can_run(x, nn.Identity())
    with torch.no_grad():
        assert not residual_kernel.can_run(x, norm)
    for register in (norm.register_forward_hook, norm.register_forward_pre_hook, norm.register_full_backward_hook):
        hook = register(lambda *_: None)
        assert not residual_kernel.can_run(x, norm)
        hook.remove()
    seen = []
    norm.register_forward_hook(lambda module, given, output: seen.append(output))
    assert add_and_norm(x, Update(x, nn.Dropout(0.5)), norm)[1] is seen[0]


def block_gradients(stack, x, run):
    torch.manual_seed(3)
    output = run(x)
    weight = torch.sin(torch.arange(output.numel(), device=DEVICE)).view_as(output)
    return [output.detach(), *gradients([output], [x, *stack.parameters()], [weight])]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("options", [{}, dict(sandwich_norm=True), dict(layer_scale=0.3, norm="rms")], ids=str)
def test_training_a_stack_with_kernels_equals_training_it_without(monkeypatch, norm_first, residual, options):
    torch.manual_seed(1)
    config = BlockConfig(12, 2, 16, norm_first=norm_first, residual=residual, **options)
    stack = Stack(config, 2, PositionEncoding(), widths=[12, 20]).to(DEVICE).train()
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.3)
    x = torch.randn(2, 5, 12, device=DEVICE, requires_grad=True)
    calls, launch = [], residual_kernel.add_and_norm
    monkeypatch.setattr(residual_kernel, "add_and_norm", lambda *args: calls.append(1) or launch(*args))
    found = block_gradients(stack, x, lambda x: stack(x, mask=NO_MASK))
    assert len(calls) == 5 if norm_first else 4
    monkeypatch.setattr(residual_kernel, "can_run", lambda *_: False)
    expected = block_gradients(stack, x, lambda x: stack(x, mask=NO_MASK, states=[]))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_full_backward_hook"])
def test_hooks_inside_a_stack_run_while_it_trains(norm_first, register):
    stack = Stack(BlockConfig(8, 2, 16, norm_first=norm_first, dropout=0.1), 1, PositionEncoding()).to(DEVICE).train()
    x = torch.randn(2, 3, 8, device=DEVICE, requires_grad=True)
    parts = [part for part in stack.modules() if isinstance(part, (Block, Residual, nn.LayerNorm, FeedForward, Attention))]
    for part in [*parts, *(part.dropout for part in parts if isinstance(part, Residual))]:
        seen = []
        with getattr(part, register)(lambda *_: seen.append(1)):  # noqa: B023
            stack(x).sum().backward()
        assert seen, part


@pytest.mark.parametrize("norm_first", [False, True])
def test_stream_stays_in_full_precision_under_autocast(norm_first):
    residual = Residual(16, 16, norm="layer", norm_first=norm_first, dropout=0.1).to(DEVICE).train()
    linear, given = nn.Linear(16, 16).to(DEVICE), []
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        x = residual(torch.randn(2, 3, 16, device=DEVICE, requires_grad=True), lambda y: given.append(y) or linear(y))
    assert x.dtype == torch.float32 and given[0].dtype == torch.bfloat16, "rounded once for all products"


@needs_gpu
def test_gradients_have_the_same_bits_in_every_run():
    torch.manual_seed(1)
    norm, (x, y) = random_norm("layer", 512), random_inputs(16_384, 512, torch.float32, torch.bfloat16)
    weights = [torch.randn(16_384, 512, device=DEVICE) for _ in range(2)]

    def run():
        torch.manual_seed(2)
        outputs = residual_kernel.add_and_norm(x, y, norm, 0.3, torch.bfloat16)
        return [*outputs, *gradients(outputs, [x, y, *norm.parameters()], weights)]

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@needs_gpu
@pytest.mark.parametrize("rows, width", [(16_384, 512), (4_099, 768), (1_001, 2_048)])
def test_large_gradients_equal_the_equation_in_float64(rows, width):
    torch.manual_seed(1)
    norm, (x, y) = random_norm("layer", width), random_inputs(rows, width)
    outputs = residual_kernel.add_and_norm(x, y, norm)
    expected, inputs = written_out(x, y, norm, torch.ones_like(x))
    weights = [torch.randn(rows, width, device=DEVICE, dtype=torch.float64) for _ in range(2)]
    assert_equal_within_rounding(outputs, expected)
    found = gradients(outputs, [x, y, *norm.parameters()], weights)
    assert_equal_within_rounding(found, gradients(expected, inputs, weights))


@needs_gpu
def test_cuda_graph_draws_a_new_mask_in_each_replay_and_uses_it_backward(check_captured_masks):
    norm, (x, y) = random_norm("layer", 64), [torch.zeros(32, 64, device=DEVICE), torch.ones(32, 64, device=DEVICE)]
    x.requires_grad_(), y.requires_grad_()

    def run():
        total, normed = residual_kernel.add_and_norm(x, y, norm, 0.5)
        return total.detach(), torch.autograd.grad((total + normed * 0).sum(), y)[0]

    def check(total, dy):
        assert torch.equal(total, dy) and 0 < total.mean() < 2

    check_captured_masks(run, check)

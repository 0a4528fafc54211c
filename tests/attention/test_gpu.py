"""Laws of attend and of the weights kernel on a GPU; skipped without one."""

import unittest.mock

import pytest
import torch
import torch.nn.functional as F

from regard.attention.core import attend, attend_with_weights, attention_weights
from regard.attention.kernels import short_attention, weights_kernel
from regard.attention.masks import GridPattern, Mask
from regard.attention.record import part_shapes
from regard.attention.watch import watch
from regard.layers import stack
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("structure", ["none", "causal", "lengths", "both", "window", "documents", "packed"])
@pytest.mark.parametrize("T", [37, 150])
def test_fused_kernels_equal_the_written_out_equation(dtype, heads, structure, T):
    """Short sequences have kernels of their own, packed documents those of torch for various lengths."""
    q, k, v = (torch.randn(3, h, T, 64, device="cuda", dtype=dtype, requires_grad=True) for h in (heads[0], heads[1], heads[1]))
    lengths = torch.tensor([T, 20, 1], device="cuda")
    documents = torch.arange(T, device="cuda") // torch.tensor([[5], [9], [5]], device="cuda")
    mask = {
        "none": Mask(),
        "causal": Mask(causal=True),
        "lengths": Mask(lengths=lengths),
        "both": Mask(causal=True, lengths=lengths),
        "window": Mask(causal=True, window=5),
        "documents": Mask(documents=documents),
        "packed": Mask(causal=True, documents=documents),
    }[structure]
    fused, plain = attend(q, k, v, mask=mask), attend_with_weights(q, k, v, mask=mask)[0]
    tolerance = 2e-2 if dtype != torch.float32 else 2e-3
    torch.testing.assert_close(fused, plain, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad(out.float().sum(), (q, k, v)) for out in (fused, plain)]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, atol=4 * tolerance, rtol=4 * tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["fused", "written out"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_without_visible_keys_give_zeros_in_value_and_gradient(dtype, path, with_bias):
    q, k, v = (torch.randn(2, 2, 40, 64, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3))
    allowed = torch.ones(2, 1, 40, 40, dtype=torch.bool, device="cuda")
    allowed[0, :, 1] = False
    allowed[1] = False
    bias = torch.randn(2, 40, 40, dtype=dtype, device="cuda") if with_bias else None
    options = dict(mask=Mask(allowed=allowed), bias=bias)
    out = attend(q, k, v, **options) if path == "fused" else attend_with_weights(q, k, v, **options)[0]
    assert out[0, :, 1].eq(0).all() and out[1].eq(0).all() and out[0, :, 0].ne(0).any()
    gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient[1].eq(0).all() for gradient in gradients)


@pytest.mark.parametrize("T, S, K", [(5, 17, 24), (40, 40, 64), (64, 33, 128), (1, 64, 32)])
def test_short_attention_gives_the_same_bits_again(T, S, K):
    """Its gradients are written once, by one program: no sum depends on the order in which programs end."""
    q, k, v = (torch.randn(30, 4, n, K, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (T, S, S))
    assert short_attention.can_run(q, k, v, Mask())
    mask, grad = Mask(lengths=torch.randint(S + 1, (30,), device="cuda")), torch.randn(30, 4, T, K, device="cuda").bfloat16()
    first, again = (torch.autograd.grad(attend(q, k, v, mask=mask), (q, k, v), grad) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again))


def test_kernels_are_compiled_once_for_all_lengths_of_a_tile():
    """Compiling one takes half a second; a training would wait for several at each new pair of lengths."""

    def compiled(kernel):
        return sum(len(caches[0]) for caches in kernel.device_caches.values())

    kernels, numbers = (short_attention.forward_kernel, short_attention.backward_kernel), []
    for T, S in ((17, 18), (32, 24), (24, 32), (32, 32), (31, 17)):
        q, k, v = (torch.randn(3, 4, n, 48, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (T, S, S))
        mask = Mask(lengths=torch.full((3,), S, device="cuda"))
        torch.autograd.grad(attend(q, k, v, mask=mask).float().sum(), (q, k, v))
        numbers.append([compiled(kernel) for kernel in kernels])
    assert numbers == numbers[:1] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("full", [False, True])
def test_an_encoder_computes_no_padding(dtype, full):
    """Over rows of various lengths, the vectors of real tokens are those of the padded batch; full rows need no mask."""
    settings = EncoderModel(kind="transformer", layers=2, width=64, heads=4, feed_forward=128, max_length=512)
    model = TextEmbedder(settings, 100).to("cuda", dtype).eval()
    ids = torch.randint(5, 100, (16, 512), device="cuda")
    lengths = torch.full((16,), 512, device="cuda") if full else torch.randint(1, 513, (16,), device="cuda")
    with torch.no_grad():
        with unittest.mock.patch.object(stack, "knows_lengths", return_value=False):
            padded = model(ids, lengths)
        found = model(ids, lengths)
    real = (torch.arange(512, device="cuda") < lengths[:, None])[..., None]
    tolerance = 1e-4 if dtype == torch.float32 else 6e-2
    torch.testing.assert_close(found * real, padded * real, atol=tolerance, rtol=tolerance)
    assert full or (found[~real[..., 0]] == 0).all()
    with torch.no_grad(), watch(model) as seen:
        assert torch.equal(model(ids, lengths), found), "a watch leaves the path as it is"
    for name in seen.names():  # (B, H, T, S)
        sums = torch.where(real[:, None], seen[name].float(), 0.0).sum(-1)
        torch.testing.assert_close(sums, real[:, None, :, 0].expand_as(sums).float(), atol=tolerance, rtol=0)
        assert (seen[name] * ~real[:, None].transpose(-2, -1) == 0).all(), "no weight on padding"


def test_reading_lengths_does_not_wait_for_kernels_that_were_launched_after_it_started():
    lengths, later = torch.tensor([3, 1, 2]), torch.cuda.Event()
    mask = Mask(lengths=lengths.cuda())
    torch.cuda.synchronize()
    mask.start_reading_lengths()
    torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
    later.record()
    assert mask.read_lengths() == lengths.tolist() and not later.query()


STRUCTURES = {
    "none": lambda lengths, documents: Mask(),
    "causal": lambda lengths, documents: Mask(causal=True),
    "lengths": lambda lengths, documents: Mask(lengths=lengths),
    "starts": lambda lengths, documents: Mask(causal=True, starts=lengths // 2),
    "window": lambda lengths, documents: Mask(causal=True, window=5),
    "documents": lambda lengths, documents: Mask(documents=documents),
    "scattered documents": lambda lengths, documents: Mask(documents=documents % 3, causal=True),
    "prefix": lambda lengths, documents: Mask(causal=True, prefix=lengths // 2),
    "no key": lambda lengths, documents: Mask(lengths=lengths - lengths[1]),
    "blind": lambda lengths, documents: Mask(allowed=torch.arange(documents.size(1), device="cuda")[:, None] % 3 > 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("T, S, K, heads", [(150, 150, 64, (4, 2)), (3, 70, 24, (2, 2))])
def test_weights_kernel_equals_the_written_out_equation(dtype, structure, with_bias, T, S, K, heads):
    q, k = (torch.randn(2, h, n, K, device="cuda", dtype=dtype) for h, n in zip(heads, (T, S)))
    documents = torch.arange(S, device="cuda") // torch.tensor([[9], [20]], device="cuda")
    mask = STRUCTURES[structure](torch.tensor([S, S // 3], device="cuda"), documents)
    if structure == "blind":
        mask = Mask(allowed=mask.allowed[:T])
    bias = torch.randn(heads[0], T, S, device="cuda", dtype=dtype) if with_bias else None
    whole = attention_weights(q, k, mask=mask, bias=bias).expand(2, heads[0], T, S)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    for kind, size in (("weights", 1), ("entropy", 1), ("blocks", 2), ("blocks", 16), ("blocks", 64)):
        if kind == "blocks" and size > T:
            continue
        parts = {
            name: torch.full(shape, 7.0, device="cuda") for name, shape in part_shapes(kind, size, tuple(whole.shape)).items()
        }
        inputs = weights_kernel.KernelInputs(q, k, mask, bias)
        assert weights_kernel.can_run(q, k, mask) and inputs.fill(parts, kind, size)
        expected = (
            whole
            if kind == "weights"
            else torch.special.entr(whole).sum(-1)
            if kind == "entropy"
            else F.avg_pool2d(whole.contiguous(), (size, size), ceil_mode=True)
        )
        torch.testing.assert_close(next(iter(parts.values())), expected, atol=tolerance * (5 if kind == "entropy" else 1), rtol=0)


def test_weights_kernel_declines_what_it_does_not_support():
    q, k = torch.randn(1, 2, 8, 16, device="cuda"), torch.randn(1, 2, 8, 16, device="cuda")
    assert not weights_kernel.can_run(q, k, Mask(causal=True, grid=GridPattern(2, 2, "row")))
    inputs = weights_kernel.KernelInputs(q, k)
    assert not inputs.fill({}, "top", 3) and not inputs.fill({}, "blocks", 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_kernel_reads_any_layout_in_chunks(dtype):
    """Queries and keys as other libraries lay them out: (B, T, H, K) seen as (B, H, T, K)."""
    q, k = (torch.randn(3, n, 4, 40, device="cuda", dtype=dtype).transpose(1, 2) for n in (70, 90))
    mask = Mask(lengths=torch.tensor([90, 60, 1], device="cuda"))
    whole = attention_weights(q, k, mask=mask, scale=0.3)
    inputs = weights_kernel.KernelInputs(q, k, mask, scale=0.3)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    for batch, rows in ((slice(0, 3), slice(0, 70)), (slice(1, 3), slice(5, 66)), (slice(2, 3), slice(69, 70))):
        found = inputs.weights(batch, rows)
        torch.testing.assert_close(found.float(), whole[batch, :, rows].float(), atol=tolerance, rtol=0)

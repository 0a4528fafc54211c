"""The laws of attend on a GPU's kernels; skipped, and said so, where there is none."""

import pytest
import torch

from regard.attention.core import attend
from regard.attention.masks import Mask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("structure", ["none", "causal", "lengths", "both", "window", "documents", "packed"])
def test_fused_kernels_equal_the_written_out_equation(dtype, heads, structure):
    q, k, v = (torch.randn(3, h, 37, 64, device="cuda", dtype=dtype, requires_grad=True) for h in (heads[0], heads[1], heads[1]))
    lengths = torch.tensor([37, 20, 1], device="cuda")
    documents = torch.arange(37, device="cuda") // torch.tensor([[5], [9], [5]], device="cuda")
    mask = {"none": Mask(), "causal": Mask(causal=True), "lengths": Mask(lengths=lengths),
            "both": Mask(causal=True, lengths=lengths), "window": Mask(causal=True, window=5),
            "documents": Mask(documents=documents), "packed": Mask(causal=True, documents=documents)}[structure]
    fused, plain = attend(q, k, v, mask=mask), attend(q, k, v, mask=mask, weights=True)[0]
    tolerance = 2e-2 if dtype != torch.float32 else 2e-3
    torch.testing.assert_close(fused, plain, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad(out.float().sum(), (q, k, v)) for out in (fused, plain)]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, atol=4 * tolerance, rtol=4 * tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["fused", "written out"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_row_that_may_look_nowhere_gives_zeros_in_value_and_gradient(dtype, path, with_bias):
    q, k, v = (torch.randn(2, 2, 40, 64, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3))
    allowed = torch.ones(2, 1, 40, 40, dtype=torch.bool, device="cuda")
    allowed[0, :, 1] = False
    allowed[1] = False
    bias = torch.randn(2, 40, 40, dtype=dtype, device="cuda") if with_bias else None
    out = attend(q, k, v, mask=Mask(allowed=allowed), bias=bias, weights=path != "fused")
    out = out if path == "fused" else out[0]
    assert out[0, :, 1].eq(0).all() and out[1].eq(0).all() and out[0, :, 0].ne(0).any()
    gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient[1].eq(0).all() for gradient in gradients)

"""Attention is finite in value and gradient for rows without visible keys, all-padding batches and single tokens."""

import pytest
import torch

from regard.attention.core import attend, attend_with_weights
from regard.attention.masks import Mask
from regard.attention.scores import AdditiveScore, CosineScore

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
B, H, T, K = 3, 2, 70, 8
SOME = torch.tensor([0, 1, T])
PATHS = {
    "fused, lengths": dict(mask=Mask(lengths=SOME)),
    "fused, all padding": dict(mask=Mask(lengths=torch.zeros(B, dtype=torch.long))),
    "fused, causal": dict(mask=Mask(causal=True)),
    "fused, causal and padding in front": dict(mask=Mask(causal=True, starts=SOME)),
    "fused, bias": dict(mask=Mask(lengths=SOME), bias=torch.randn(H, T, T)),
    "local": dict(mask=Mask(window=2)),
    "local, padding": dict(mask=Mask(window=2, lengths=SOME)),
    "documents": dict(mask=Mask(documents=torch.arange(T).expand(B, T) // 4)),
    "documents of one token": dict(mask=Mask(documents=torch.arange(T).expand(B, T), causal=True)),
    "prefix": dict(mask=Mask(causal=True, prefix=SOME, lengths=SOME)),
    "dense": dict(mask=Mask(allowed=torch.zeros(B, 1, T, T, dtype=torch.bool))),
    "written out": dict(mask=Mask(lengths=SOME)),
    "written out, all padding": dict(mask=Mask(lengths=torch.zeros(B, dtype=torch.long))),
    "additive": dict(mask=Mask(lengths=SOME), score=AdditiveScore(K)),
    "cosine": dict(mask=Mask(lengths=SOME), score=CosineScore()),
}


def shortened(options, length):
    """The same options for a sequence of this length."""
    mask, bias = options["mask"], options.get("bias")
    fields = {name: getattr(mask, name) for name in mask.structure}
    for name in ("lengths", "starts", "prefix"):
        if name in fields:
            fields[name] = fields[name].clamp(max=length)
    if "documents" in fields:
        fields["documents"] = fields["documents"][:, :length]
    if "allowed" in fields:
        fields["allowed"] = fields["allowed"][..., :length, :length]
    return {**options, "mask": Mask(**fields), **({} if bias is None else {"bias": bias[..., :length, :length]})}


@pytest.mark.parametrize("size", [0.0, 1.0, 100.0], ids=["zeros", "usual", "large"])
@pytest.mark.parametrize("length", [1, T])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_attention_is_finite_in_value_and_gradient(path, dtype, length, size):
    options = shortened(PATHS[path], length)
    if isinstance(options.get("score"), AdditiveScore):
        options["score"] = AdditiveScore(K).to(dtype)
    q, k, v = ((size * torch.randn(B, H, length, K)).to(dtype).requires_grad_() for _ in range(3))
    out = attend_with_weights(q, k, v, **options)[0] if path.startswith("written out") else attend(q, k, v, **options)
    assert out.isfinite().all()
    allowed = options["mask"].dense(length, length)
    if allowed is not None:
        blind = ~allowed.any(-1, keepdim=True).expand(B, H, length, 1)
        assert out.masked_select(blind).eq(0).all()
    gradients = torch.autograd.grad(out.float().sum(), (q, k, v), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [None, Mask(causal=True)])
def test_large_scores_are_finite_on_the_written_out_path_as_on_the_fused_one(dtype, mask):
    """In fp16 the products of queries and keys go beyond 65,504; the fused kernels accumulate them in float32."""
    q, k, v = (torch.randn(1, 2, 16, 64) for _ in range(3))
    q, k, v = (1000 * q).to(dtype), (1000 * k).to(dtype), v.to(dtype)
    fused, (out, weights) = attend(q, k, v, mask=mask), attend_with_weights(q, k, v, mask=mask)
    assert fused.isfinite().all() and out.isfinite().all() and weights.isfinite().all()
    if dtype != torch.bfloat16:  # whose scores are rounded by more than the difference of two keys
        torch.testing.assert_close(out, fused, atol=0.02, rtol=0.02)

"""The largest weights of each row: a kernel finds those that a stable sort finds.

Skipped without a GPU, unless Triton interprets its kernels: TRITON_INTERPRET=1.
"""

import pytest
import torch

from regard.attention.kernels import weights_kernel
from regard.hardware import HAS_TRITON, TRITON_INTERPRETED

pytestmark = pytest.mark.skipif(
    not (HAS_TRITON and (torch.cuda.is_available() or TRITON_INTERPRETED)), reason="neither a GPU nor Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GUARD = 7
"""The value of the memory around a record."""


def largest(weights: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest weights of each row (N, S) and their keys; nothing outside of the record is written."""
    N = len(weights)
    values = torch.full((N + 2, number), GUARD, device=DEVICE, dtype=weights.dtype)
    keys = torch.full((N + 2, number), GUARD, device=DEVICE, dtype=torch.int16)
    weights_kernel.largest(weights, values[1:-1], keys[1:-1])
    for around in (values[[0, -1]], keys[[0, -1]]):
        assert around.eq(GUARD).all()
    return values[1:-1], keys[1:-1].long()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("S", [1, 7, 64, 500, 1024, 5000])
def test_largest_weights_are_the_first_of_a_stable_sort_in_the_order_of_keys(dtype, S):
    torch.manual_seed(S)
    rows = 6 if DEVICE == "cpu" else 222
    weights = torch.randn(rows, S, device=DEVICE).mul(torch.linspace(0.1, 8, rows, device=DEVICE)[:, None]).softmax(-1).to(dtype)
    weights[0] = 0  # a row that looks nowhere
    weights[1] = 1 / S  # ties everywhere
    weights[2] = 0
    weights[2, S // 2] = 1
    weights[3, ::2] = 0
    for number in {1, min(5, S), min(48, S), S}:
        values, keys = largest(weights, number)
        expected = weights.sort(dim=-1, descending=True, stable=True).indices[:, :number].sort(-1).values
        assert torch.equal(keys, expected)
        assert torch.equal(values, weights.gather(-1, keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_nan_keep_their_first_keys(dtype):
    weights = torch.full((3, 20), torch.nan, device=DEVICE, dtype=dtype)
    weights[1] = 0.05
    values, keys = largest(weights, 6)
    assert torch.equal(keys, torch.arange(6, device=DEVICE).expand(3, 6))
    assert values[[0, 2]].isnan().all() and torch.equal(values[1], weights[1, :6])


def test_rows_that_are_no_distributions_write_nothing_outside_of_their_record():
    weights = torch.rand(3, 20, device=DEVICE) / 2 + 0.5  # more of them than 6 reach 1/6
    values, keys = largest(weights, 6)
    assert torch.equal(values, weights.gather(-1, keys)) and keys.diff(dim=-1).gt(0).all()

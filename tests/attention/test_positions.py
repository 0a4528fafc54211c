"""Each kind of position encoding equals its paper's equations."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.positions import (
    AlibiPositions,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalGridPositions,
    SinusoidalPositions,
    TextGridPositions,
    alibi_slopes,
    apply_rotary,
    relative_position_bucket,
    sinusoids,
)


@given(position=st.integers(0, 5000), pair=st.integers(0, 31), base=st.floats(100, 100_000))
def test_sinusoids_equal_the_formula(position, pair, base):
    row = sinusoids(torch.tensor([position]), 64, base)[0]
    angle = position / base ** (2 * pair / 64)
    assert math.isclose(row[2 * pair], math.sin(angle), abs_tol=1e-9)
    assert math.isclose(row[2 * pair + 1], math.cos(angle), abs_tol=1e-9)


def test_shift_of_sinusoids_is_a_linear_map():
    """The paper's reason for them (sec. 3.5): PE(p + k) is a linear function of PE(p) for every p."""
    table = sinusoids(torch.arange(200), 16)
    shift = torch.linalg.lstsq(table[:100], table[7:107]).solution
    torch.testing.assert_close(table[50:150] @ shift, table[57:157], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "kind",
    [
        lambda: SinusoidalPositions(8, 100.0, 14, first=3),
        lambda: LearnedPositions(8, 14),
        lambda: SinusoidalGridPositions(8, 100.0, (3, 4), 2),
        lambda: TextGridPositions(8, 2, (3, 4)),
    ],
)
def test_range_of_positions_equals_a_tensor_of_them(kind, dtype):
    encoding, x = kind().requires_grad_(False), torch.randn(2, 5, 8, dtype=dtype)
    assert encoding.is_added and not RotaryPositions(8, 100.0).is_added and not AlibiPositions(2).is_added
    assert torch.equal(encoding.embed(x, range(9, 14)), encoding.embed(x, torch.arange(9, 14)))
    if dtype == torch.float32:
        with pytest.raises(RuntimeError, match="exceeds"):
            encoding.embed(x[:, :1], range(14, 15))


@given(offset=st.integers(0, 1000))
def test_rotary_scores_depend_on_distance_only(offset):
    q, k = torch.randn(1, 2, 6, 8, dtype=torch.float64), torch.randn(1, 2, 6, 8, dtype=torch.float64)
    rotary = RotaryPositions(8, 10_000.0)

    def scores(start):
        rotation = rotary.rotation(torch.arange(6) + start)
        return apply_rotary(q, rotation) @ apply_rotary(k, rotation).transpose(-1, -2)

    torch.testing.assert_close(scores(0), scores(offset), atol=1e-9, rtol=0)
    torch.testing.assert_close(apply_rotary(q, rotary.rotation(torch.arange(6) + offset)).norm(dim=-1), q.norm(dim=-1))


def test_alibi_bias_falls_linearly_with_distance():
    assert alibi_slopes(8) == [2.0 ** -(i + 1) for i in range(8)]
    assert len(alibi_slopes(12)) == 12 and alibi_slopes(12)[8:] == [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    bias = AlibiPositions(8).bias(torch.tensor([5]), torch.arange(8))
    torch.testing.assert_close(bias[3, 0], -0.0625 * torch.tensor([5.0, 4, 3, 2, 1, 0, 1, 2]))


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_equal_transformers_t5(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-400, 401)
    for buckets, max_distance in ((32, 128), (8, 20)):
        theirs = t5.T5Attention._relative_position_bucket(
            distance, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
        )
        assert torch.equal(relative_position_bucket(distance, buckets, max_distance, causal), theirs)


def test_relative_bias_has_one_value_per_head_and_distance():
    relative = RelativePositions(4, 32, 128, causal=False)
    bias = relative.bias(torch.arange(6), torch.arange(6))
    assert bias.shape == (4, 6, 6)
    assert torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1])

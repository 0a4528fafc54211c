"""Laws of sampling: the distribution, independence of rounding, the repetition penalty, and checked settings."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.sampling import Sampler, SamplingParams, apply_repetition_penalty, exponential_times
from regard.errors import UserError


def test_samples_follow_the_distribution_with_temperature_top_k_and_top_p():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = torch.arange(20_000)
    log_p = p.log().expand(len(rows), -1)

    def frequencies(**settings):
        sampled = Sampler(seed=3, **settings)(log_p, rows, 0)
        return torch.bincount(sampled, minlength=4) / len(rows)

    torch.testing.assert_close(frequencies(), p, atol=0.015, rtol=0)
    torch.testing.assert_close(frequencies(temperature=0.5), p.square() / p.square().sum(), atol=0.015, rtol=0)
    torch.testing.assert_close(frequencies(top_k=2), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0)
    torch.testing.assert_close(frequencies(top_p=1e-320), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(frequencies(top_p=0.6), torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0)
    torch.testing.assert_close(frequencies(top_k=2, top_p=0.6), torch.tensor([1.0, 0, 0, 0]))  # top_p of what top_k leaves
    torch.testing.assert_close(frequencies(top_p=0.01), torch.tensor([1.0, 0, 0, 0]), atol=0.0, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5}, {"top_k": 40}, {"top_p": 0.9}])
def test_rounding_does_not_change_samples(settings):
    torch.manual_seed(0)
    logits, rows = 2 * torch.randn(2_000, 4_000), torch.arange(2_000)
    noisy = logits + 1e-5 * torch.randn_like(logits)
    sampled = [Sampler(seed=3, **settings)(given.log_softmax(-1), rows, 0) for given in (logits, noisy)]
    assert torch.equal(*sampled) and len(sampled[0].unique()) > 30


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_impossible_tokens_are_never_sampled(seed, only):
    log_p = torch.full((50, 4), -torch.inf)
    log_p[:, only] = 0
    assert set(Sampler(seed=seed, temperature=1e-6)(log_p, torch.arange(50), 1).tolist()) == {only}


def key_for(bits):
    """The key that gives token 0 these 64 bits: splitmix64 inverted."""

    def undo_xorshift(z, by):
        x = z
        for _ in range(64 // by):
            x = z ^ (x >> by)
        return x

    state = undo_xorshift(bits, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    state = undo_xorshift(state, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    state = (undo_xorshift(state, 30) - 0x9E3779B97F4A7C15) % 2**64
    return state - 2**64 if state >= 2**63 else state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_random_bits_give_finite_exponential_times(dtype):
    keys = torch.tensor([key_for(0), key_for(2**63), key_for(2**64 - 1)])
    shortest, median, longest = exponential_times(keys, torch.zeros(1, 1).long(), dtype)[:, 0]
    assert 0 < shortest < 1e-15 and median == pytest.approx(np.log(2)) and 16 < longest < torch.inf


@given(st.integers(1, 4), st.integers(0, 6), st.floats(0.3, 3.0), st.integers(0, 1000))
def test_repetition_penalty_equals_transformers(rows, length, penalty, seed):
    from transformers import RepetitionPenaltyLogitsProcessor

    torch.manual_seed(seed)
    logits, generated = torch.randn(rows, 9), torch.randint(9, (rows, length))
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(generated, logits.clone())
    assert torch.equal(apply_repetition_penalty(logits, generated, penalty), theirs)
    padded = torch.cat([torch.full((rows, 3), -1), generated], dim=1)
    assert torch.equal(apply_repetition_penalty(logits, padded, penalty), theirs), "padding is not a token"


def test_repetition_penalty_applies_once_and_never_raises_a_logit():
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    assert apply_repetition_penalty(logits, torch.tensor([[0, 1, 0, 0, 3]]), 2.0).tolist() == [[1.0, -4.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_tokens": 0}, "max_tokens = 0: must be between 1 and 1000000000"),
        ({"max_tokens": 10**20}, "max_tokens = 100000000000000000000: "),
        ({"temperature": 0.0}, "temperature = 0.0: must be between 0.000001 and 1000"),
        ({"temperature": -1.0}, "temperature = -1.0: "),
        ({"temperature": math.nan}, "temperature = nan: "),
        ({"temperature": math.inf}, "temperature = inf: "),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p = 0.0: must be more than 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p = 1.1: "),
        ({"temperature": 1.0, "top_p": math.nan}, "top_p = nan: "),
        ({"top_k": -1}, "top_k = -1: must be between 0"),
        ({"top_k": 5}, "top_k = 5: restricts sampling, and nothing is sampled without a temperature"),
        ({"top_p": 0.9}, "top_p = 0.9: restricts sampling"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: must be between 0.001 and 1000"),
        ({"repetition_penalty": -1.2}, "repetition_penalty = -1.2: "),
        ({"repetition_penalty": math.inf}, "repetition_penalty = inf"),
        ({"stop": ["a", ""]}, "stop = '': an empty string"),
        ({"stop": ""}, "stop = '': an empty string"),
        ({"number": 0, "temperature": 1.0}, "number = 0: must be between 1 and 10000"),
        ({"number": 2}, "number = 2: all texts would be the same without a temperature"),
        ({"seed": 10**30}, "seed = 1000000000000000000000000000000: must have at most 18 digits"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError) as refused:
        SamplingParams(**settings)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_single_stop_string_need_not_be_a_list():
    assert SamplingParams(stop="end").stops == ("end",) and SamplingParams(stop=["a", "b"]).stops == ("a", "b")

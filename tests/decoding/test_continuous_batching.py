"""Laws of continuous batching: an output does not depend on what joins or leaves the batch, or when."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.beam import beam_search
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import Sampler, greedy
from regard.recipe import DecoderModel, PositionSettings, RecurrentDecoderModel, RecurrentModel, TransformerModel, UniversalModel
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS, EOS

V = 11
SMALL = dict(width=8, heads=2, feed_forward=16, max_length=60)
TRANSLATORS = [
    TransformerModel(preset="tiny", tie="none", **SMALL),
    TransformerModel(preset="tiny", tie="none", positions=PositionSettings(kind="relative"), key_value_heads=1, **SMALL),
    UniversalModel(kind="universal", encoder_layers=2, decoder_layers=2, **SMALL),
    RecurrentModel(kind="recurrent", cell="lstm", width=8, attention="additive", decoder="bahdanau", max_length=60),
    RecurrentModel(kind="recurrent", cell="gru", width=8, attention="none", max_length=60),
]
LANGUAGE_MODELS = [
    DecoderModel(kind="transformer", layers=2, window=4, **SMALL),
    DecoderModel(kind="transformer", layers=2, positions=PositionSettings(kind="rotary"), **SMALL),
    RecurrentDecoderModel(kind="recurrent", cell="gru", width=8, layers=1, attention="dot", max_length=60),
]


@st.composite
def arrivals(draw):
    """When each request arrives, its input, its settings, and when it is cancelled."""
    return [
        {
            "arrives": draw(st.integers(0, 6)),
            "length": draw(st.integers(1, 6)),
            "limit": draw(st.integers(1, 14)),
            "beam": draw(st.sampled_from([1, 2, 2, 3])),
            "alpha": draw(st.sampled_from([0.0, 0.6])),
            "number": draw(st.integers(1, 2)),
            "seed": draw(st.sampled_from([None, None, None, 1])),
            "cancelled_after": draw(st.sampled_from([None, None, None, 1, 3])),
        }
        for _ in range(draw(st.integers(1, 8)))
    ]


def perturb(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.double().eval()


def make_request(one, inputs, prefix):
    choose = greedy if one["seed"] is None else Sampler(seed=one["seed"], sequence_ids=np.array([7]))
    beam = one["beam"] if one["seed"] is None else 1
    return DecodingRequest(
        inputs, one["limit"], prefix, beam=beam, alpha=one["alpha"], number=min(one["number"], beam), choose=choose
    )


def decode_alone(model, request):
    limits = torch.tensor([request.limit])
    prefix = None if request.prefix is None else torch.tensor([request.prefix])
    if request.beam > 1:
        return beam_search(
            model, request.inputs, limits, beam=request.beam, alpha=request.alpha, number=request.number, prefix=prefix
        )[0]
    return greedy_or_sample(model, request.inputs, limits, request.choose, request.alpha, prefix=prefix)


def simulate(model, plan, requests):
    """Let every request arrive and leave as planned; return those that are done and those that were cancelled."""
    batcher, done, age = ContinuousBatcher(model, torch.device("cpu")), [], {}
    for now in range(200):
        arriving = [request for one, request in zip(plan, requests) if one["arrives"] == now]
        if arriving:
            batcher.add(arriving)
        age |= dict.fromkeys(arriving, now)
        cancelled = {
            request
            for one, request in zip(plan, requests)
            if one["cancelled_after"] is not None and request in age and now - age[request] >= one["cancelled_after"]
        }
        if len(batcher):
            done += batcher.step(cancelled.__contains__)
        if now > 12 and not len(batcher):
            return done, cancelled
    raise AssertionError("the simulation does not end")


def check(model, plan, requests):
    done, cancelled = simulate(model, plan, requests)
    assert set(requests) == set(done) | cancelled and len(done) == len(set(done))
    for request in done:
        expected = decode_alone(model, request)
        assert [one.tokens for one in request.hypotheses] == [one.tokens for one in expected]
        np.testing.assert_allclose([one.score for one in request.hypotheses], [one.score for one in expected], atol=1e-8)


@given(st.sampled_from(range(len(TRANSLATORS))), arrivals(), st.integers(0, 1000))
def test_translations_equal_those_decoded_alone(which, plan, seed):
    torch.manual_seed(seed)
    settings = TRANSLATORS[which]
    model = perturb(find_task("translate", settings.kind).models[settings.kind](settings, V, V))
    check(
        model,
        plan,
        [make_request(one, (torch.randint(4, V, (1, one["length"])), torch.tensor([one["length"]])), None) for one in plan],
    )


@given(st.sampled_from(range(len(LANGUAGE_MODELS))), arrivals(), st.integers(0, 1000))
def test_generated_texts_equal_those_decoded_alone(which, plan, seed):
    torch.manual_seed(seed)
    settings = LANGUAGE_MODELS[which]
    model = perturb(find_task("language", settings.kind).models[settings.kind](settings, V))
    check(model, plan, [make_request(one, None, [BOS, *torch.randint(4, V, (one["length"],)).tolist()]) for one in plan])


def endless(module, inputs, logits):
    """Make the end token impossible."""
    return logits.index_fill(-1, torch.tensor([EOS]), -1e9)


@pytest.mark.parametrize("beam", [1, 3])
def test_cache_of_an_endless_batch_does_not_grow(beam):
    torch.manual_seed(0)
    model = find_task("translate", "transformer").models["transformer"](TRANSLATORS[0], V, V).eval()
    model.output.register_forward_hook(endless)
    batcher, lengths = ContinuousBatcher(model, torch.device("cpu")), []
    for now in range(200):
        if now % 3 == 0:
            batcher.add([DecodingRequest((torch.randint(4, V, (1, 5)), torch.tensor([5])), 10, beam=beam)])
        batcher.step()
        state = batcher.batch.state if beam == 1 else batcher.searches[beam].state
        lengths.append(state.caches[0].length)
    assert max(lengths) <= 14 and state.caches[0].capacity <= 60


def test_on_token_can_end_a_request():
    torch.manual_seed(0)
    model = find_task("translate", "transformer").models["transformer"](TRANSLATORS[0], V, V).eval()
    model.output.register_forward_hook(endless)
    received = []
    request = DecodingRequest(
        (torch.tensor([[5, 6]]), torch.tensor([2])),
        30,
        on_token=lambda token, log_p, active: received.append(token) or len(received) < 4,
    )
    batcher = ContinuousBatcher(model, torch.device("cpu"))
    batcher.add([request])
    while len(batcher):
        batcher.step()
    assert request.tokens == received == request.hypotheses[0].tokens and len(received) == 4

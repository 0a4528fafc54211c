"""Laws of writing together: whoever joins, and whenever, a text is what it is alone; who leaves takes nothing with them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.beam import beam_search
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.greedy import greedy, greedy_or_sample
from regard.decoding.sampling import Sampler
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
WRITERS = [
    DecoderModel(kind="transformer", layers=2, window=4, **SMALL),
    DecoderModel(kind="transformer", layers=2, positions=PositionSettings(kind="rotary"), **SMALL),
    RecurrentDecoderModel(kind="recurrent", cell="gru", width=8, layers=1, attention="dot", max_length=60),
]


@st.composite
def texts(draw):
    """Who comes when, with what, and wants what."""
    return [
        {
            "arrives": draw(st.integers(0, 6)),
            "length": draw(st.integers(1, 6)),
            "limit": draw(st.integers(1, 14)),
            "beam": draw(st.sampled_from([1, 2, 2, 3])),
            "alpha": draw(st.sampled_from([0.0, 0.6])),
            "number": draw(st.integers(1, 2)),
            "seed": draw(st.sampled_from([None, None, None, 1])),
            "leaves": draw(st.sampled_from([None, None, None, 1, 3])),
        }
        for _ in range(draw(st.integers(1, 8)))
    ]


def peaked(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.double().eval()


def asked(one, inputs, prefix):
    choose = greedy if one["seed"] is None else Sampler(seed=one["seed"], sequence_ids=np.array([7]))
    beam = one["beam"] if one["seed"] is None else 1
    return DecodingRequest(
        inputs, one["limit"], prefix, beam=beam, alpha=one["alpha"], number=min(one["number"], beam), choose=choose
    )


def alone(model, request):
    limits = torch.tensor([request.limit])
    prefix = None if request.prefix is None else torch.tensor([request.prefix])
    if request.beam > 1:
        return beam_search(
            model, request.inputs, limits, beam=request.beam, alpha=request.alpha, number=request.number, prefix=prefix
        )[0]
    return greedy_or_sample(model, request.inputs, limits, request.choose, request.alpha, prefix=prefix)


def play(model, wanted, requests):
    """Let everyone come and go in their time; who has been served."""
    both, done, age = ContinuousBatcher(model, torch.device("cpu")), [], {}
    for now in range(200):
        coming = [request for one, request in zip(wanted, requests) if one["arrives"] == now]
        if coming:
            both.add(coming)
        age |= dict.fromkeys(coming, now)
        leaving = {
            request
            for one, request in zip(wanted, requests)
            if one["leaves"] is not None and request in age and now - age[request] >= one["leaves"]
        }
        if len(both):
            done += both.step(leaving.__contains__)
        if now > 12 and not len(both):
            return done, leaving
    raise AssertionError("nobody ends it")


def check(model, wanted, requests):
    done, left = play(model, wanted, requests)
    assert set(requests) == set(done) | left and len(done) == len(set(done))
    for request in done:
        expected = alone(model, request)
        assert [one.tokens for one in request.hypotheses] == [one.tokens for one in expected]
        np.testing.assert_allclose([one.score for one in request.hypotheses], [one.score for one in expected], atol=1e-8)


@given(st.sampled_from(range(len(TRANSLATORS))), texts(), st.integers(0, 1000))
def test_translations_are_what_they_are_alone(which, wanted, seed):
    torch.manual_seed(seed)
    settings = TRANSLATORS[which]
    model = peaked(find_task("translate", settings.kind).models[settings.kind](settings, V, V))
    check(
        model,
        wanted,
        [asked(one, (torch.randint(4, V, (1, one["length"])), torch.tensor([one["length"]])), None) for one in wanted],
    )


@given(st.sampled_from(range(len(WRITERS))), texts(), st.integers(0, 1000))
def test_texts_that_go_on_from_prompts_are_what_they_are_alone(which, wanted, seed):
    torch.manual_seed(seed)
    settings = WRITERS[which]
    model = peaked(find_task("language", settings.kind).models[settings.kind](settings, V))
    check(model, wanted, [asked(one, None, [BOS, *torch.randint(4, V, (one["length"],)).tolist()]) for one in wanted])


def endless(module, inputs, logits):
    """Nothing ends by itself."""
    return logits.index_fill(-1, torch.tensor([EOS]), -1e9)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_batch_that_never_ends_needs_no_more_memory_than_its_texts(beam):
    torch.manual_seed(0)
    model = find_task("translate", "transformer").models["transformer"](TRANSLATORS[0], V, V).eval()
    model.output.register_forward_hook(endless)
    both, lengths = ContinuousBatcher(model, torch.device("cpu")), []
    for now in range(200):
        if now % 3 == 0:
            both.add([DecodingRequest((torch.randint(4, V, (1, 5)), torch.tensor([5])), 10, beam=beam)])
        both.step()
        state = both.walks.state if beam == 1 else both.searches[beam].state
        lengths.append(state.caches[0].length)
    assert max(lengths) <= 14 and state.caches[0].capacity <= 60


def test_a_text_that_hears_enough_ends():
    torch.manual_seed(0)
    model = find_task("translate", "transformer").models["transformer"](TRANSLATORS[0], V, V).eval()
    model.output.register_forward_hook(endless)
    heard = []
    request = DecodingRequest(
        (torch.tensor([[5, 6]]), torch.tensor([2])),
        30,
        on_token=lambda token, log_p, going: heard.append(token) or len(heard) < 4,
    )
    both = ContinuousBatcher(model, torch.device("cpu"))
    both.add([request])
    while len(both):
        both.step()
    assert request.tokens == heard == request.hypotheses[0].tokens and len(heard) == 4

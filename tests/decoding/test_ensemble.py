"""Laws of ensembles: the probability of each token is the mean of the members', in every search, alone or in a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.beam import beam_search
from regard.decoding.continuous_batching import ContinuousBatcher, DecodingRequest
from regard.decoding.ensemble import Ensemble
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import Sampler, greedy
from regard.recipe import DecoderModel, RecurrentDecoderModel, RecurrentModel, TransformerModel, UniversalModel
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS, EOS

V = 11
SMALL = dict(width=8, heads=2, feed_forward=16, max_length=60)
TRANSLATORS = [
    TransformerModel(preset="tiny", tie="none", **SMALL),
    RecurrentModel(kind="recurrent", cell="lstm", width=8, attention="additive", decoder="bahdanau", max_length=60),
    UniversalModel(kind="universal", encoder_layers=2, decoder_layers=2, **SMALL),
]
LANGUAGE_MODELS = [
    DecoderModel(kind="transformer", layers=2, **SMALL),
    RecurrentDecoderModel(kind="recurrent", cell="gru", width=8, layers=1, max_length=60),
]


def build(task, settings, *sizes):
    model = find_task(task, settings.kind).models[settings.kind](settings, *sizes)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


@st.composite
def problems(draw):
    """Two or three translators of different kinds, some sentences, and the most tokens of each translation."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    kinds = draw(st.lists(st.sampled_from(TRANSLATORS), min_size=2, max_size=3))
    members = [build("translate", settings, V, V) for settings in kinds]
    B, S = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    lengths = torch.tensor([draw(st.integers(1, S)) for _ in range(B)])
    limits = torch.tensor([draw(st.integers(1, 9)) for _ in range(B)])
    return members, (torch.randint(4, V, (B, S)), lengths), limits


@torch.no_grad()
def mean_log_probability(members, inputs, row, tokens):
    """Sum over the tokens of log of the mean of p under each member, written out; the end token included."""
    source, lengths = inputs[0][row : row + 1], inputs[1][row : row + 1]
    target, read = [*tokens, EOS], torch.tensor([[BOS, *tokens]])
    p = sum(member(source, lengths, read).softmax(-1)[0] for member in members) / len(members)
    return sum(float(p[i, token].log()) for i, token in enumerate(target))


@given(problems(), st.integers(1, 4), st.sampled_from([0.0, 0.6]))
def test_score_of_an_ensemble_is_the_mean_probability_of_its_members(problem, beam, alpha):
    members, inputs, limits = problem
    for row, found in enumerate(beam_search(Ensemble(members).eval(), inputs, limits, beam=beam, alpha=alpha, number=beam)):
        for one in found:
            assert one.log_probability == pytest.approx(mean_log_probability(members, inputs, row, one.tokens), abs=1e-5)


@given(problems())
def test_forward_pass_of_an_ensemble_equals_its_greedy_steps(problem):
    members, (source, lengths), limits = problem
    ensemble = Ensemble(members).eval()
    for row, found in enumerate(greedy_or_sample(ensemble, (source, lengths), limits, greedy)):
        with torch.no_grad():
            log_p = ensemble(
                source=source[row : row + 1], lengths=lengths[row : row + 1], target=torch.tensor([[BOS, *found.tokens]])
            )
        total = sum(float(log_p[0, i, token]) for i, token in enumerate([*found.tokens, EOS]))
        assert found.log_probability == pytest.approx(total, abs=1e-5)


@given(problems(), st.integers(1, 3))
def test_ensemble_of_copies_decodes_as_the_model_itself(problem, copies):
    (model, *_), inputs, limits = problem
    alone = beam_search(model, inputs, limits, beam=3, alpha=0.6, number=3)
    together = beam_search(Ensemble([model] * copies).eval(), inputs, limits, beam=3, alpha=0.6, number=3)
    for one, other in zip(alone, together):
        assert [found.tokens for found in one] == [found.tokens for found in other]
        np.testing.assert_allclose([found.score for found in one], [found.score for found in other], atol=1e-6)


@given(problems(), st.sampled_from([1, 3]))
def test_sentences_that_join_an_ensemble_later_are_decoded_as_alone(problem, beam):
    members, (source, lengths), limits = problem
    ensemble, requests = Ensemble(members).eval(), []
    batcher = ContinuousBatcher(ensemble, torch.device("cpu"))
    for row, length in enumerate(lengths.tolist()):
        inputs = source[row : row + 1, :length], lengths[row : row + 1]
        requests.append((inputs, DecodingRequest(inputs, int(limits[row]), beam=beam, alpha=0.6)))
        batcher.add([requests[-1][1]])
        batcher.step()
    while len(batcher):
        batcher.step()
    for row, (inputs, request) in enumerate(requests):
        alone = beam_search(ensemble, inputs, limits[row : row + 1], beam=beam, alpha=0.6)[0]
        assert [one.tokens for one in request.hypotheses] == [one.tokens for one in alone]


@given(st.integers(0, 1000), st.integers(1, 5))
def test_language_models_sample_together_from_their_mean_probability(seed, length):
    torch.manual_seed(seed)
    members = [build("language", settings, V) for settings in LANGUAGE_MODELS]
    prompt, limits = torch.tensor([[BOS, *torch.randint(4, V, (length,)).tolist()]]), torch.tensor([6])
    choose = Sampler(seed=seed, sequence_ids=np.array([0]))
    (found,) = greedy_or_sample(Ensemble(members).eval(), None, limits, choose, prefix=prompt)
    with torch.no_grad():
        read = torch.cat([prompt, torch.tensor([found.tokens], dtype=torch.long)], dim=1)
        p = sum(member(read).softmax(-1)[0, length:] for member in members) / 2
    total = sum(float(p[i, token].log()) for i, token in enumerate([*found.tokens, EOS]))
    assert found.log_probability == pytest.approx(total, abs=1e-5)

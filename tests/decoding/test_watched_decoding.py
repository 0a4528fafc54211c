"""Attention recorded during a search equals, along the rows of each output, the attention of one pass over that output."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.watch import watch
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import Sampler, greedy
from regard.errors import UserError
from regard.recipe import DecoderModel, PositionSettings, RecurrentDecoderModel, RecurrentModel, TransformerModel, UniversalModel
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS

V = 11
SMALL = dict(width=8, heads=2, feed_forward=16, max_length=40)
TRANSLATORS = [
    TransformerModel(preset="tiny", tie="none", **SMALL),
    TransformerModel(preset="tiny", tie="none", positions=PositionSettings(kind="relative"), key_value_heads=1, **SMALL),
    UniversalModel(kind="universal", encoder_layers=2, decoder_layers=2, **SMALL),
    RecurrentModel(kind="recurrent", cell="lstm", width=8, attention="additive", decoder="bahdanau", max_length=40),
    RecurrentModel(kind="recurrent", cell="gru", width=8, attention="general", decoder="luong", max_length=40),
]
LANGUAGE_MODELS = [
    DecoderModel(kind="transformer", layers=2, **SMALL),
    DecoderModel(kind="transformer", layers=2, positions=PositionSettings(kind="rotary"), **SMALL),
    RecurrentDecoderModel(kind="recurrent", cell="gru", width=8, layers=1, attention="dot", max_length=40),
]


def search(model, inputs, limits, beam, **options):
    if beam == 0:
        return [[found] for found in greedy_or_sample(model, inputs, limits, greedy, **options)]
    if beam == 1:
        return [[found] for found in greedy_or_sample(model, inputs, limits, Sampler(seed=1), **options)]
    return beam_search(model, inputs, limits, beam=beam, number=beam, alpha=0.6, **options)


@pytest.mark.parametrize("settings", TRANSLATORS, ids=lambda settings: settings.kind)
@pytest.mark.parametrize("beam", [0, 1, 2, 4])
def test_attention_recorded_while_translating_equals_teacher_forcing(settings, beam):
    torch.manual_seed(beam)
    model = find_task("translate", settings.kind).models[settings.kind](settings, V, V).double().eval()
    inputs = torch.randint(4, V, (3, 6)), torch.tensor([6, 3, 1])
    with watch(model) as seen:
        found = search(model, inputs, torch.tensor([9, 4, 7]), beam)
    plain = search(model, inputs, torch.tensor([9, 4, 7]), beam)
    assert [[(h.tokens, h.score) for h in row] for row in found] == [[(h.tokens, h.score) for h in row] for row in plain]
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            with torch.no_grad(), watch(model) as forced:
                model(inputs[0][row : row + 1], inputs[1][row : row + 1], torch.tensor([[BOS, *hypothesis.tokens]]))
            for name in seen.names():
                torch.testing.assert_close(seen.for_hypothesis(hypothesis, name), forced[name][0], atol=1e-10, rtol=0)
            cross = [forced[name][0] for name in forced.names() if forced.kinds[name] == "cross"]  # (H, T, S) each
            torch.testing.assert_close(seen.of(hypothesis), torch.stack(cross), atol=1e-10, rtol=0)


@given(st.sampled_from(range(len(LANGUAGE_MODELS))), st.integers(0, 4), st.integers(0, 100))
def test_attention_recorded_while_generating_from_prefixes_equals_teacher_forcing(which, beam, seed):
    torch.manual_seed(seed)
    model = (
        find_task("language", LANGUAGE_MODELS[which].kind)
        .models[LANGUAGE_MODELS[which].kind](LANGUAGE_MODELS[which], V)
        .double()
        .eval()
    )
    prefix = torch.tensor([[BOS, 5, 6, 7], [-1, -1, BOS, 8], [-1, -1, -1, BOS]])
    with watch(model) as seen:
        found = search(model, None, torch.tensor([4, 6, 5]), beam, prefix=prefix)
    for own_prefix, hypotheses in zip(prefix.tolist(), found):
        for hypothesis in hypotheses:
            with torch.no_grad(), watch(model) as forced:
                model(torch.tensor([[token for token in own_prefix if token >= 0] + hypothesis.tokens]))
            for name in seen.names():
                torch.testing.assert_close(seen.for_hypothesis(hypothesis, name, own_prefix), forced[name][0], atol=1e-10, rtol=0)


def test_two_searches_in_one_record_are_refused_until_it_is_cleared():
    model = find_task("translate", "transformer").models["transformer"](TRANSLATORS[0], V, V).eval()
    inputs, limits, place = (torch.tensor([[5, 6]]), torch.tensor([2])), torch.tensor([5]), "decoder.blocks.0.self_attention"
    with watch(model) as seen:
        search(model, inputs, limits, 2)
        ((best, *_),) = search(model, inputs, limits, 2)
        with pytest.raises(UserError, match="as in a search"):
            seen[place]
        with pytest.raises(UserError, match="more than one search"):
            seen.for_hypothesis(best, place)
        seen.clear()
        ((best, *_),) = search(model, inputs, limits, 2)
        assert seen.for_hypothesis(best, place).shape[1] == len(best.tokens) + 1
    with pytest.raises(UserError, match="has no rows"):
        seen.for_hypothesis(SimpleNamespace(rows=[]), place)


def test_the_attention_of_a_translation_is_asked_for_by_the_translation(tiny_run):
    """With a beam, (layers, heads, target, source) of the text that was returned."""
    with watch(tiny_run.model) as seen:
        best, second = tiny_run.translate("The dog sleeps.", beam=3, number=2)
    settings = tiny_run.recipe.model
    for result in (best, second):
        weights = seen.of(result)
        assert weights.shape[:3] == (settings.decoder_layers, settings.heads, len(result.tokens) + 1)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    assert seen.of(best, "causal").shape[2:] == (len(best.tokens) + 1,) * 2
    with pytest.raises(UserError, match="nothing of it was recorded; there is causal, cross, self"):
        seen.of(best, "across")

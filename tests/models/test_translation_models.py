"""Laws of every translation model, for all kinds and settings."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.modules import attention_modules
from regard.attention.watch import watch
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.decoding.sampling import greedy
from regard.errors import UserError
from regard.recipe import PositionSettings, RecurrentModel, TransformerModel, UniversalModel
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS, EOS

V = 13


@st.composite
def recurrent(draw):
    return RecurrentModel(
        kind="recurrent",
        cell=draw(st.sampled_from(["rnn", "lstm", "gru"])),
        encoder_layers=draw(st.integers(1, 2)),
        decoder_layers=draw(st.integers(1, 2)),
        width=8,
        bidirectional=draw(st.booleans()),
        attention=draw(st.sampled_from(["none", "dot", "scaled", "general", "additive", "cosine"])),
        decoder=draw(st.sampled_from(["bahdanau", "luong"])),
        input_feeding=draw(st.booleans()),
        attention_width=draw(st.sampled_from([None, 5])),
        tie=draw(st.sampled_from(["all", "target", "none"])),
        max_length=32,
    )


POSITION_KINDS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


@st.composite
def transformers(draw, kinds=POSITION_KINDS):
    heads = draw(st.sampled_from([1, 2, 4]))
    shape = dict(
        encoder_layers=draw(st.integers(1, 2)),
        decoder_layers=draw(st.integers(1, 2)),
        width=8 * heads,
        heads=heads,
        key_width=draw(st.sampled_from([None, 6])),
        value_width=draw(st.sampled_from([None, 5])),
        key_value_heads=draw(st.sampled_from([None, 1])),
        feed_forward=16,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from(["relu", "gelu", "swiglu", "geglu"])),
        norm=draw(st.sampled_from(["layer", "rms", "batch"])),
        residual=draw(st.booleans()),
        scale_scores=draw(st.booleans()),
        norm_first=draw(st.booleans()),
        scale_embedding=draw(st.booleans()),
        scale_output=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        tie=draw(st.sampled_from(["all", "target", "none"])),
        positions=PositionSettings(kind=draw(st.sampled_from(kinds)), sines_first=draw(st.booleans())),
        max_length=32,
    )
    if draw(st.booleans()):
        shape["encoder_widths"] = [12] * shape["encoder_layers"]
    return TransformerModel(**shape)


SMALL = dict(width=8, heads=2, feed_forward=16, max_length=32)


@st.composite
def universal(draw):
    kind = draw(st.sampled_from(["sinusoidal", "rotary", "relative"]))
    return UniversalModel(
        kind="universal",
        encoder_layers=draw(st.integers(1, 4)),
        decoder_layers=draw(st.integers(1, 4)),
        norm_first=draw(st.booleans()),
        halting=draw(st.sampled_from(["none", "act"])),
        positions=PositionSettings(kind=kind),
        threshold=draw(st.sampled_from([0.5, 0.99])),
        **SMALL,
    )


@st.composite
def models(draw, kinds=None):
    settings = draw(st.one_of(recurrent(), transformers(), universal()) if kinds is None else transformers(kinds))
    torch.manual_seed(draw(st.integers(0, 1000)))
    return find_task("translate", settings.kind).models[settings.kind](settings, V, V).double().eval()


def sentences(B=3, S=6, T=5):
    lengths = torch.tensor([S, *torch.randint(1, S + 1, (B - 1,)).tolist()])
    return torch.randint(4, V, (B, S)), lengths, torch.randint(4, V, (B, T))


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_every_kind_of_translation_model_is_covered():
    assert set(find_task("translate").models) == {"recurrent", "transformer", "universal"}


@given(models())
def test_cached_equals_uncached(model):
    source, lengths, target = sentences()
    state, parts = model.start((source, lengths), capacity=2), []
    for start, end in ((0, 1), (1, 3), (3, 5)):
        logits, state = model.step(target[:, start:end], state)
        parts.append(logits)
    close(torch.cat(parts, 1), model(source, lengths, target))


@given(models())
def test_no_logits_are_computed_during_prefill(model):
    source, lengths, target = sentences()
    model.output.register_forward_hook(lambda *_: pytest.fail("logits of the prefix"))
    model.start((source, lengths), target)


@given(models())
def test_padding_does_not_change_logits_and_batched_equals_one_by_one(model):
    source, lengths, target = sentences()
    together = model(source, lengths, target)
    for b, length in enumerate(lengths.tolist()):
        close(together[b], model(source[b : b + 1, :length], lengths[b : b + 1], target[b : b + 1])[0])


@given(models(), st.integers(1, 4))
def test_later_tokens_do_not_change_earlier_logits(model, position):
    source, lengths, target = sentences()
    changed = target.clone()
    changed[:, position:] = torch.randint(4, V, changed[:, position:].shape)
    close(model(source, lengths, target)[:, :position], model(source, lengths, changed)[:, :position])


@given(models(), st.data())
def test_reordered_and_kept_states_equal_decoding_from_the_start(model, data):
    """For the chosen hypotheses."""
    source, lengths, target = sentences(B=2)
    state = model.start((source, lengths))
    _, state = model.step(target[:, :2], state)
    state = state.reorder(torch.tensor([0, 0, 1, 1]))  # two hypotheses each
    a, b = torch.randint(4, V, (4, 1)), torch.randint(4, V, (4, 1))
    _, state = model.step(a, state)
    rows = torch.tensor(
        [data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1)), *(data.draw(st.integers(2, 3)) for _ in range(2))]
    )
    state = state.reorder(rows)
    kept = data.draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    state = state.keep(torch.tensor(kept))
    chosen = torch.cat([torch.arange(2) + 2 * k for k in kept])
    logits, state = model.step(b[chosen], state)
    written = torch.cat([target[:, :2].repeat_interleave(2, 0), a], 1)[rows][chosen]
    whole = torch.cat([written, b[chosen]], 1)
    owner = torch.tensor(kept).repeat_interleave(2)
    close(logits[:, -1], model(source[owner], lengths[owner], whole)[:, -1])


@given(models(kinds=["none"]))
def test_without_positions_the_encoder_is_permutation_equivariant(model):
    source, lengths, target = sentences()
    lengths[:] = source.size(1)
    order = torch.randperm(source.size(1))
    close(model(source, lengths, target), model(source[:, order], lengths, target))


def test_with_positions_the_order_matters():
    model = (
        find_task("translate", "transformer")
        .models["transformer"](TransformerModel(preset="tiny", width=16, heads=2), V, V)
        .eval()
    )
    source, lengths, target = sentences()
    lengths[:] = source.size(1)
    assert (model(source, lengths, target) - model(source.flip(1), lengths, target)).abs().max() > 1e-3


def rescore(model, source, lengths, row, tokens, prefix=(BOS,)):
    with torch.no_grad():
        logits = model(source[row : row + 1], lengths[row : row + 1], torch.tensor([[*prefix, *tokens]]))
        log_p = logits.log_softmax(-1)[0, len(prefix) - 1 :]
    return sum(float(log_p[i, token]) for i, token in enumerate([*tokens, EOS]))


@given(models(), st.integers(2, 4))
def test_beam_search_equals_greedy_with_one_beam_and_scores_equal_rescoring(model, beam):
    source, lengths, _ = sentences()
    limits = torch.tensor([6, 4, 5])
    greedy_outputs = greedy_or_sample(model, (source, lengths), limits, greedy)
    narrow = beam_search(model, (source, lengths), limits, beam=1)
    wide = beam_search(model, (source, lengths), limits, beam=beam, alpha=0.6, number=2)
    for row in range(3):
        assert greedy_outputs[row].tokens == narrow[row][0].tokens
        for h in wide[row]:
            assert h.log_probability == pytest.approx(rescore(model, source, lengths, row, h.tokens), abs=1e-5)


@given(models())
def test_padded_prefixes_continue_as_if_decoded_alone(model):
    source, lengths, _ = sentences()
    prefixes = [[BOS], [BOS, 5, 6], [BOS, 7]]
    padded = torch.tensor([[-1] * (3 - len(prefix)) + prefix for prefix in prefixes])
    found = greedy_or_sample(model, (source, lengths), torch.tensor([5, 5, 5]), greedy, prefix=padded)
    for row, prefix in enumerate(prefixes):
        expected = rescore(model, source, lengths, row, found[row].tokens, prefix)
        assert found[row].log_probability == pytest.approx(expected, abs=1e-5)


@given(models(), st.integers(1, 3), st.integers(1, 4))
def test_joined_states_continue_as_if_decoded_alone(model, first, second):
    source, lengths, target = sentences()
    parts = [(source[:2], lengths[:2], target[:2, :first]), (source[2:, :4], lengths[2:].clamp(max=4), target[2:, :second])]
    states = [model.step(written, model.start((ids, lens)))[1] for ids, lens, written in parts]
    joined = type(states[0]).join(states)
    for _ in range(2):
        new = torch.randint(4, V, (3, 1))
        logits, joined = model.step(new, joined)
        parts = [(ids, lens, torch.cat([written, rows], 1)) for (ids, lens, written), rows in zip(parts, (new[:2], new[2:]))]
        close(logits[:, -1], torch.cat([model(*part)[:, -1] for part in parts]))


@given(models())
def test_watched_equals_unwatched_and_weights_sum_to_one(model):
    inputs = sentences()
    plain = model(*inputs)
    attends = attention_modules(model, kinds="cross")
    with nullcontext() if attends else pytest.raises(UserError, match="no attention"), watch(model, kinds="cross") as seen:
        assert torch.equal(model(*inputs), plain)
    if attends:
        weights = seen.stack()  # (L, B, H, T, S)
        assert weights.shape[1] == 3 and weights.shape[3:] == (5, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        assert weights[:, 1, :, :, inputs[1][1] :].eq(0).all()

"""Whatever is recorded part by part is what the whole map says; and a budget is kept, in what is left and on the way there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from regard.attention import lazy_maps as recording
from regard.attention.core import attention_weights
from regard.attention.lazy_maps import REDUCTIONS, WORKSPACE_DIVISOR, MemoryBudget, iterate_chunks, parse_bytes, record_map
from regard.attention.maps import weights_map
from regard.attention.masks import Mask
from regard.attention.multihead import Attention
from regard.attention.scores import AdditiveScore
from regard.attention.watch import watch
from regard.errors import UserError
from regard.recipe import EncoderModel
from regard.tasks import find_task


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(recording, "LEAST", 100)


@st.composite
def attentions(draw):
    """q, k and what is said about them: masks and biases of every shape that attend takes."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    B, H, T, S = (draw(st.integers(1, most)) for most in (3, 4, 9, 9))
    S = max(S, T)
    groups = draw(st.sampled_from([groups for groups in (1, 2, 4) if H % groups == 0]))
    q, k = torch.randn(B, H, T, 4), torch.randn(B, groups, S, 4)
    mask = draw(
        st.sampled_from(
            [
                None,
                Mask(causal=True),
                Mask(lengths=torch.randint(0, S + 1, (B,))),
                Mask(window=2, starts=torch.randint(0, S, (B,))),
                Mask(causal=True, prefix=torch.randint(0, S, (B,))),
                Mask(documents=torch.randint(0, 2, (B, S)), causal=True),
                Mask(allowed=torch.rand(T, S) > 0.5),
                Mask(allowed=torch.rand(1, H, T, S) > 0.5),
                Mask(allowed=torch.rand(B, 1, 1, S) > 0.5),
                Mask(allowed=torch.rand(B, H, T, S) > 0.5),
            ]
        )
    )
    bias = draw(st.sampled_from([None, torch.randn(H, T, S), torch.randn(B, H, T, S), torch.randn(1, 1, S), torch.randn(T, S)]))
    place = Attention(
        scale=draw(st.sampled_from([None, 0.3])), score=AdditiveScore(4) if draw(st.booleans()) and groups == H else None
    )
    return q, k, place, mask, bias


@given(attentions(), st.data())
@torch.no_grad()
def test_weights_in_parts_are_the_written_out_ones_of_the_chosen_heads_and_rows(asked, data):
    q, k, place, mask, bias = asked
    expected = attention_weights(q, k, score=place.score, scale=place.scale, mask=mask, bias=bias)
    heads = data.draw(st.lists(st.integers(0, q.size(1) - 1), min_size=1, unique=True))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, q.size(2) - 1), min_size=1)))
    options = {"mask": mask, "bias": bias}
    found = [record_map(weights_map(q, k, place, **options)), record_map(weights_map(q, k, place, heads, **options).only(rows))]
    torch.testing.assert_close(found[0].parts["weights"], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1].parts["weights"], expected[:, heads][:, :, rows], atol=1e-6, rtol=0)
    if mask is not None and (allowed := mask.dense(q.size(2), k.size(2))) is not None:
        assert expected.masked_select(~allowed).eq(0).all(), "also where nothing is allowed"


@given(attentions(), st.integers(1, 6))
@torch.no_grad()
def test_reductions_are_those_of_the_whole_map(asked, size):
    q, k, place, mask, bias = asked
    whole = weights_map(q, k, place, mask=mask, bias=bias)
    w = record_map(whole).parts["weights"].numpy()
    *_, T, S = w.shape
    size = min(size, S)
    top = record_map(whole, "top", size)
    dense = top.dense()
    assert ((dense == 0) | np.isclose(dense, w, atol=1e-6)).all() and (np.count_nonzero(dense, axis=-1) <= size).all()
    np.testing.assert_allclose(np.sort(dense.sum(-1)), np.sort(np.sort(w)[..., -size:].sum(-1)), atol=1e-5)
    np.testing.assert_allclose(top.remainder(), w.sum(-1) - dense.sum(-1), atol=1e-5)
    blocks = record_map(whole, "blocks", size).dense()
    for t in range(0, T, size):
        for s in range(0, S, size):
            block = np.s_[:, :, t : t + size, s : s + size]
            np.testing.assert_allclose(blocks[block] - w[block].mean((2, 3), keepdims=True), 0, atol=1e-6)
    rows = record_map(whole, "rows", size).dense()
    np.testing.assert_allclose(rows[:, :, ::size], w[:, :, ::size], atol=1e-6)
    assert np.isnan(np.delete(rows, np.s_[::size], axis=2)).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = -np.nansum(w * np.log(w), axis=-1)
    np.testing.assert_allclose(record_map(whole, "entropy").parts["entropy"], expected, atol=1e-5)


@given(st.tuples(*(st.integers(1, 9) for _ in range(4))), st.integers(1, 500), st.integers(1, 4))
def test_parts_are_disjoint_and_cover_everything(shape, numbers, multiple):
    B, H, T, S = shape
    counted = np.zeros((B, T), int)
    for batch, rows in iterate_chunks(shape, numbers, multiple):
        counted[batch, rows] += 1
        assert rows.start % multiple == 0
        size = (batch.stop - batch.start) * (rows.stop - rows.start)
        assert size * H * S <= numbers or (batch.stop - batch.start == 1 and rows.stop - rows.start <= multiple)
    assert (counted == 1).all()


def bert(layers=3, length=64, **settings):
    made = EncoderModel(kind="transformer", layers=layers, width=16, heads=2, feed_forward=16, max_length=length, **settings)
    return find_task("encode", "transformer").models["transformer"](made, 20).eval()


@given(st.integers(1, 60_000), st.sampled_from(REDUCTIONS), st.booleans(), st.booleans(), st.integers(1, 3))
def test_a_budget_is_kept_and_what_is_dropped_is_said(budget, keep, gradients, states, calls):
    model, source = bert(), torch.randint(20, (2, 23))
    with watch(model, budget=budget, keep=keep, gradients=gradients, states=states) as seen:
        for _ in range(calls):
            model(source, torch.tensor([23, 9])).sum().backward()
    assert seen.nbytes <= budget and len(seen.names()) == 3
    whole = {name for name in seen.names() if all(kept.kind == "weights" for kept in seen.recorded(name))}
    assert {name for name in seen.dropped if "(" not in name} == set(seen.names()) - whole
    for name in set(seen.names()) - whole:
        with pytest.raises(UserError, match="the budget dropped"):
            seen[name]


def test_everything_is_whole_where_it_fits_and_shares_are_equal_where_not():
    model, source, lengths = bert(), torch.randint(20, (2, 40)), torch.tensor([40, 40])
    size = 3 * 2 * 2 * 40 * 40 * 4
    with watch(model, budget=size * (WORKSPACE_DIVISOR + 1) // WORKSPACE_DIVISOR) as seen:
        model(source, lengths)
    assert not seen.dropped and seen.nbytes == size
    for keep in REDUCTIONS:
        with watch(model, budget=size // 2, keep=keep) as seen:
            model(source, lengths)
        assert len({(kept.kind, kept.size) for name in seen.names() for kept in seen.recorded(name)}) == 1
        assert seen.recorded(seen.names()[0])[0].kind == keep and len(seen.dropped) == 3


def peak(work):
    """What some work gives, and the most bytes that were alive at once meanwhile."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        made = work()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return made, int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max(initial=0))


MASKS = [None, Mask(lengths=torch.tensor([999, 400])), Mask(causal=True, lengths=torch.tensor([999, 400]), window=500)]


@pytest.mark.parametrize("mask", MASKS, ids=["none", "lengths", "three"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_record_takes_a_tenth_of_itself_besides(dtype, mask):
    """No copy of the whole, no mask of the whole."""
    q, k = torch.randn(2, 2, 2, 1000, 16).to(dtype)
    kept, most = peak(lambda: record_map(weights_map(q, k, Attention(), mask=mask)))
    assert kept.nbytes == 2 * 2 * 1000 * 1000 * dtype.itemsize and kept.nbytes < most <= 1.1 * kept.nbytes


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("keep", REDUCTIONS)
def test_a_budget_holds_while_the_record_is_made(keep, signed):
    whole = replace(weights_map(*torch.randn(2, 2, 2, 400, 8), Attention(), mask=MASKS[2]), signed=signed)
    for budget in (500_000, 1_000_000):
        kept, most = peak(lambda budget=budget: MemoryBudget(budget, 1, keep).record(whole, first=True))
        assert kept.nbytes <= most <= budget
        assert kept.kind == (keep if (keep, signed) != ("entropy", True) else "nothing")


@pytest.mark.parametrize("keep", REDUCTIONS)
def test_two_thousand_positions_are_watched_within_their_budget(keep):
    """The full maps of its layers take 128 MB."""
    model, source, lengths = bert(layers=2, length=2000), torch.randint(20, (2, 2000)), torch.tensor([2000, 900])
    (expected, without), budget = peak(lambda: model(source, lengths)), 6_000_000
    with watch(model, budget=budget, keep=keep) as seen:
        watched, most = peak(lambda: model(source, lengths))
    assert torch.equal(watched, expected) and len(seen.dropped) == 2
    assert seen.nbytes < budget and most <= without + budget


@torch.no_grad()
def test_masks_and_biases_of_single_heads_go_with_their_heads():
    q, k, allowed, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8), torch.rand(1, 4, 5, 5) > 0.5, torch.randn(4, 5, 5)
    expected = attention_weights(q, k, mask=Mask(allowed=allowed), bias=bias)
    kept = record_map(weights_map(q, k, Attention(), [3, 1], mask=Mask(allowed=allowed), bias=bias))
    torch.testing.assert_close(kept.parts["weights"], expected[:, [3, 1]])


@torch.no_grad()
def test_what_is_taken_between_two_maps_is_not_given_twice():
    budget, whole = MemoryBudget(40_000, 2), weights_map(*torch.randn(2, 1, 2, 64, 8), Attention())
    first = budget.record(whole, first=True)
    assert budget.take(budget.left - 1200) and not budget.take(40_000)
    second = budget.record(whole, first=True)
    assert second.nbytes < first.nbytes and budget.left >= 0


def test_half_precision_is_recorded_as_it_is_and_rounded_once():
    q, k = torch.randn(2, 2, 5, 8).bfloat16(), torch.randn(2, 2, 7, 8).bfloat16()
    kept = record_map(weights_map(q, k, Attention(), mask=Mask(lengths=torch.tensor([7, 0])))).parts["weights"]
    expected = attention_weights(q, k, mask=Mask(lengths=torch.tensor([7, 0])))
    assert kept.dtype == torch.bfloat16 and torch.equal(kept, expected.bfloat16()) and kept[1].eq(0).all()


@pytest.mark.parametrize("text, size", [("200MB", 200 * 10**6), ("1 GiB", 2**30), ("1.5kb", 1500), (77, 77), ("12", 12)])
def test_budgets_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1MB", "0", 0, True, "1TB", "1e9", None, "0.0GB", float("nan")])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(UserError, match="budget = "):
        parse_bytes(text)
    with pytest.raises(UserError, match="keep = 'best'"):
        MemoryBudget("1MB", 3, "best")

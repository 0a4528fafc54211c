"""Maps recorded in chunks equal the whole map; a memory budget holds for the record and for its workspace."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from regard.attention import lazy_maps
from regard.attention.calls import ProjectedCall
from regard.attention.core import attention_weights
from regard.attention.lazy_maps import (
    REDUCTIONS,
    WORKSPACE_DIVISOR,
    MemoryBudget,
    iterate_chunks,
    parse_bytes,
    record_map,
    weights_map,
)
from regard.attention.masks import Mask
from regard.attention.multihead import Attention
from regard.attention.scores import AdditiveScore
from regard.attention.watch import watch
from regard.errors import UserError
from regard.recipe import EncoderModel
from regard.tasks import find_task


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(lazy_maps, "MIN_WORKSPACE", 100)


@st.composite
def attentions(draw):
    """q, k, an attention module, and masks and biases of every shape that attend takes."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    B, H, T, S = (draw(st.integers(1, largest)) for largest in (3, 4, 9, 9))
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
    module = Attention(
        scale=draw(st.sampled_from([None, 0.3])), score=AdditiveScore(4) if draw(st.booleans()) and groups == H else None
    )
    return q, k, module, mask, bias


@given(attentions(), st.data())
@torch.no_grad()
def test_weights_in_chunks_equal_the_written_out_ones_of_chosen_heads_and_rows(problem, data):
    q, k, module, mask, bias = problem
    expected = attention_weights(q, k, score=module.score, scale=module.scale, mask=mask, bias=bias)
    heads = data.draw(st.lists(st.integers(0, q.size(1) - 1), min_size=1, unique=True))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, q.size(2) - 1), min_size=1)))
    options = {"score": module.score, "scale": module.scale, "mask": mask, "bias": bias}
    call = ProjectedCall(name="", kind="self", q=q, k=k, v=k, **options)
    found = [record_map(weights_map(q, k, **options)), record_map(call.lazy_weights(heads).select_rows(rows))]
    torch.testing.assert_close(found[0].parts["weights"], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1].parts["weights"], expected[:, heads][:, :, rows], atol=1e-6, rtol=0)
    if mask is not None and (allowed := mask.dense(q.size(2), k.size(2))) is not None:
        assert expected.masked_select(~allowed).eq(0).all(), "also where nothing is allowed"


@given(attentions(), st.integers(1, 6))
@torch.no_grad()
def test_reductions_in_chunks_equal_those_of_the_whole_map(problem, size):
    q, k, module, mask, bias = problem
    lazy = weights_map(q, k, score=module.score, scale=module.scale, mask=mask, bias=bias)
    w = record_map(lazy).parts["weights"].numpy()
    *_, T, S = w.shape
    size = min(size, S)
    top = record_map(lazy, "top", size)
    dense = top.dense()
    assert ((dense == 0) | np.isclose(dense, w, atol=1e-6)).all() and (np.count_nonzero(dense, axis=-1) <= size).all()
    np.testing.assert_allclose(np.sort(dense.sum(-1)), np.sort(np.sort(w)[..., -size:].sum(-1)), atol=1e-5)
    np.testing.assert_allclose(top.remainder(), w.sum(-1) - dense.sum(-1), atol=1e-5)
    blocks = record_map(lazy, "blocks", size).dense()
    for t in range(0, T, size):
        for s in range(0, S, size):
            block = np.s_[:, :, t : t + size, s : s + size]
            np.testing.assert_allclose(blocks[block] - w[block].mean((2, 3), keepdims=True), 0, atol=1e-6)
    rows = record_map(lazy, "rows", size).dense()
    np.testing.assert_allclose(rows[:, :, ::size], w[:, :, ::size], atol=1e-6)
    assert np.isnan(np.delete(rows, np.s_[::size], axis=2)).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = -np.nansum(w * np.log(w), axis=-1)
    np.testing.assert_allclose(record_map(lazy, "entropy").parts["entropy"], expected, atol=1e-5)


@given(st.tuples(*(st.integers(1, 9) for _ in range(4))), st.integers(1, 500), st.integers(1, 4))
def test_chunks_are_disjoint_and_cover_the_map(shape, entries, multiple):
    B, H, T, S = shape
    counted = np.zeros((B, T), int)
    for batch, rows in iterate_chunks(shape, entries, multiple):
        counted[batch, rows] += 1
        assert rows.start % multiple == 0
        size = (batch.stop - batch.start) * (rows.stop - rows.start)
        assert size * H * S <= entries or (batch.stop - batch.start == 1 and rows.stop - rows.start <= multiple)
    assert (counted == 1).all()


def bert(layers=3, length=64, **settings):
    settings = EncoderModel(kind="transformer", layers=layers, width=16, heads=2, feed_forward=16, max_length=length, **settings)
    return find_task("encode", "transformer").models["transformer"](settings, 20).eval()


@given(st.integers(1, 60_000), st.sampled_from(REDUCTIONS), st.booleans(), st.booleans(), st.integers(1, 3))
def test_budget_holds_and_dropped_maps_are_named(budget, keep, gradients, states, calls):
    model, source = bert(), torch.randint(20, (2, 23))
    with watch(model, budget=budget, keep=keep, gradients=gradients, states=states) as seen:
        for _ in range(calls):
            model(source, torch.tensor([23, 9])).sum().backward()
    assert seen.nbytes <= budget and len(seen.names()) == 3
    whole = {name for name in seen.names() if all(call.kind == "weights" for call in seen.recorded(name))}
    assert {name for name in seen.dropped if "(" not in name} == set(seen.names()) - whole
    for name in set(seen.names()) - whole:
        with pytest.raises(UserError, match="the budget dropped"):
            seen[name]


def test_maps_are_whole_if_they_fit_and_reduced_alike_if_not():
    model, source, lengths = bert(), torch.randint(20, (2, 40)), torch.tensor([40, 40])
    size = 3 * 2 * 2 * 40 * 40 * 4
    with watch(model, budget=size * (WORKSPACE_DIVISOR + 1) // WORKSPACE_DIVISOR) as seen:
        model(source, lengths)
    assert not seen.dropped and seen.nbytes == size
    for keep in REDUCTIONS:
        with watch(model, budget=size // 2, keep=keep) as seen:
            model(source, lengths)
        assert len({(call.kind, call.size) for name in seen.names() for call in seen.recorded(name)}) == 1
        assert seen.recorded(seen.names()[0])[0].kind == keep and len(seen.dropped) == 3


def peak_memory(work):
    """The result of a function, and the largest number of bytes alive during it."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = work()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return result, int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max(initial=0))


MASKS = [None, Mask(lengths=torch.tensor([999, 400])), Mask(causal=True, lengths=torch.tensor([999, 400]), window=500)]


@pytest.mark.parametrize("mask", MASKS, ids=["none", "lengths", "three"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workspace_of_a_whole_record_is_a_tenth_of_it(dtype, mask):
    """Neither the map nor the mask is copied whole."""
    q, k = torch.randn(2, 2, 2, 1000, 16).to(dtype)
    recorded, peak = peak_memory(lambda: record_map(weights_map(q, k, mask=mask)))
    assert recorded.nbytes == 2 * 2 * 1000 * 1000 * dtype.itemsize and recorded.nbytes < peak <= 1.1 * recorded.nbytes


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("keep", REDUCTIONS)
def test_budget_holds_while_the_record_is_computed(keep, signed):
    lazy = replace(weights_map(*torch.randn(2, 2, 2, 400, 8), mask=MASKS[2]), signed=signed)
    for budget in (500_000, 1_000_000):
        recorded, peak = peak_memory(lambda budget=budget: MemoryBudget(budget, 1, keep).record(lazy, first=True))
        assert recorded.nbytes <= peak <= budget
        assert recorded.kind == (keep if (keep, signed) != ("entropy", True) else "nothing")


def test_early_maps_are_computed_in_the_bytes_that_later_ones_have_not_taken_yet():
    q, k = torch.randn(2, 2, 2, 400, 8)
    whole, lazy, chunks = 2 * 2 * 400 * 400 * 4, weights_map(q, k), []
    counted = replace(lazy, compute=lambda *chunk: chunks[-1].append(chunk) or lazy.compute(*chunk))
    budget = MemoryBudget(4 * whole, 8, "top")

    def record():
        chunks.append([])
        return budget.record(counted, first=True)

    records, peak = peak_memory(lambda: [record() for _ in range(8)])
    assert {(one.kind, one.size) for one in records} == {("top", records[0].size)}
    assert sum(one.nbytes for one in records) < peak <= 4 * whole
    numbers = [len(of_map) for of_map in chunks]
    assert numbers == sorted(numbers) and numbers[0] <= 2 and numbers[-1] > 3 * numbers[0]


@pytest.mark.parametrize("keep", REDUCTIONS)
def test_watching_2000_positions_within_a_budget(keep):
    """The full maps of its layers take 128 MB."""
    model, source, lengths = bert(layers=2, length=2000), torch.randint(20, (2, 2000)), torch.tensor([2000, 900])
    (expected, without), budget = peak_memory(lambda: model(source, lengths)), 6_000_000
    with watch(model, budget=budget, keep=keep) as seen:
        watched, peak = peak_memory(lambda: model(source, lengths))
    assert torch.equal(watched, expected) and len(seen.dropped) == 2
    assert seen.nbytes < budget and peak <= without + budget


@torch.no_grad()
def test_masks_and_biases_per_head_follow_the_chosen_heads():
    q, k, allowed, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8), torch.rand(1, 4, 5, 5) > 0.5, torch.randn(4, 5, 5)
    expected = attention_weights(q, k, mask=Mask(allowed=allowed), bias=bias)
    recorded = record_map(
        ProjectedCall(name="", kind="self", q=q, k=k, v=k, mask=Mask(allowed=allowed), bias=bias).lazy_weights([3, 1])
    )
    torch.testing.assert_close(recorded.parts["weights"], expected[:, [3, 1]])


@torch.no_grad()
def test_reserved_bytes_are_not_given_to_maps():
    budget, lazy = MemoryBudget(40_000, 2), weights_map(*torch.randn(2, 1, 2, 64, 8))
    first = budget.record(lazy, first=True)
    assert budget.reserve(budget.left - 1200) and not budget.reserve(40_000)
    second = budget.record(lazy, first=True)
    assert second.nbytes < first.nbytes and budget.left >= 0


def test_half_precision_weights_are_rounded_once():
    q, k = torch.randn(2, 2, 5, 8).bfloat16(), torch.randn(2, 2, 7, 8).bfloat16()
    recorded = record_map(weights_map(q, k, mask=Mask(lengths=torch.tensor([7, 0])))).parts["weights"]
    expected = attention_weights(q, k, mask=Mask(lengths=torch.tensor([7, 0])))
    assert recorded.dtype == torch.bfloat16 and torch.equal(recorded, expected.bfloat16()) and recorded[1].eq(0).all()


@pytest.mark.parametrize("text, size", [("200MB", 200 * 10**6), ("1 GiB", 2**30), ("1.5kb", 1500), (77, 77), ("12", 12)])
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1MB", "0", 0, True, "1TB", "1e9", None, "0.0GB", float("nan")])
def test_invalid_budgets_are_rejected(text):
    with pytest.raises(UserError, match="budget = "):
        parse_bytes(text)
    with pytest.raises(UserError, match="keep = 'best'"):
        MemoryBudget("1MB", 3, "best")

"""Each field of a mask hides what it promises, for every query and key; True = may look."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.masks import CAUSAL, NO_MASK, GridPattern, Mask


def dense(mask, T, S, B=1):
    """The mask as booleans (B, T, S)."""
    found = mask.dense(T, S)
    return torch.ones(B, T, S, dtype=torch.bool) if found is None else found.expand(B, 1, T, S)[:, 0]


@given(T=st.integers(1, 6), more=st.integers(0, 5), window=st.integers(1, 6), data=st.data())
def test_dense_mask_equals_the_definition_of_each_field(T, more, window, data):
    S = T + more
    length, start, prefix = (data.draw(st.integers(0, S)) for _ in range(3))
    documents = torch.tensor([data.draw(st.lists(st.integers(0, 2), min_size=S, max_size=S))])
    for i in range(T):
        for j in range(S):
            query = S - T + i  # queries are the last T positions
            assert dense(CAUSAL, T, S)[0, i, j] == (j <= query)
            assert dense(Mask(lengths=torch.tensor([length])), T, S)[0, i, j] == (j < length)
            assert dense(Mask(starts=torch.tensor([start])), T, S)[0, i, j] == (j >= start)
            assert dense(Mask(window=window), T, S)[0, i, j] == (abs(j - query) < window)
            assert dense(Mask(documents=documents), T, S)[0, i, j] == (documents[0, j] == documents[0, query])
            assert dense(Mask(causal=True, prefix=torch.tensor([prefix])), T, S)[0, i, j] == (j <= query or j < prefix)


@st.composite
def interval_masks(draw):
    """A mask of any conditions under which a query sees one interval of keys, with its numbers of queries and keys."""
    T, B = draw(st.integers(1, 8)), 3
    S = T + draw(st.integers(0, 6))
    per_sentence = st.lists(st.integers(0, S + 2), min_size=B, max_size=B).map(torch.tensor)
    runs = st.lists(st.integers(0, 1), min_size=S, max_size=S).map(lambda steps: torch.tensor(steps).cumsum(0) % 5 * 7 - 3)
    documents = torch.stack([draw(runs) for _ in range(B)]) if draw(st.booleans()) else None
    mask = Mask(
        causal=draw(st.booleans()),
        lengths=draw(per_sentence) if draw(st.booleans()) else None,
        starts=draw(per_sentence) if draw(st.booleans()) else None,
        window=draw(st.integers(1, S + 1)) if draw(st.booleans()) else None,
        prefix=draw(per_sentence) if draw(st.booleans()) else None,
        documents=documents,
    )
    return mask, T, S, B


@given(interval_masks())
def test_intervals_equal_the_dense_mask(given):
    mask, T, S, B = given
    intervals = mask.intervals(T, S)
    if intervals is None:  # a document number came back later in the row
        assert mask.documents is not None
        assert any(len(row.unique()) != len(row.unique_consecutive()) for row in mask.documents)
        return
    first, end = intervals.unbind(-1)
    assert first.shape == end.shape and first.shape in ((1, T), (B, T)) and first.min() >= 0 and end.max() <= S
    keys = torch.arange(S)
    visible = (keys >= first[..., None]) & (keys < end[..., None])  # (B, T, S)
    assert torch.equal(visible.expand(B, T, S), dense(mask, T, S, B))


@pytest.mark.parametrize(
    "mask",
    [
        Mask(documents=torch.tensor([[0, 1, 0, 2]])),
        Mask(allowed=torch.ones(4, 4, dtype=torch.bool)),
        Mask(causal=True, grid=GridPattern(1, 2, "row")),
    ],
    ids=["scattered documents", "dense", "grid"],
)
def test_masks_that_are_no_intervals_give_none(mask):
    assert mask.intervals(4, 4) is None


def test_and_combines_both_masks():
    one, other = Mask(causal=True, lengths=torch.tensor([3, 5])), Mask(lengths=torch.tensor([4, 2]), window=2)
    assert torch.equal(dense(one & other, 5, 5, 2), dense(one, 5, 5, 2) & dense(other, 5, 5, 2))


def test_structure_names_the_conditions_without_reading_tensors():
    assert NO_MASK.structure == frozenset() and NO_MASK.dense(3, 3) is None
    assert CAUSAL.structure == {"causal"}
    assert Mask(lengths=torch.tensor([0])).structure == {"lengths"}


def test_select_batch_selects_sentences():
    mask = Mask(causal=True, lengths=torch.tensor([1, 2, 3]))
    assert torch.equal(dense(mask.select_batch(torch.tensor([2, 0])), 3, 3, 2), dense(mask, 3, 3, 3)[[2, 0]])

"""A mask says what each field promises, for every query and key; True = may look."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.masks import CAUSAL, NO_MASK, Mask


def seen(mask, T, S, B=1):
    dense = mask.dense(T, S)
    return torch.ones(B, T, S, dtype=torch.bool) if dense is None else dense.expand(B, 1, T, S)[:, 0]


@given(T=st.integers(1, 6), more=st.integers(0, 5), window=st.integers(1, 6), data=st.data())
def test_each_structure_by_its_definition(T, more, window, data):
    S = T + more
    length, start, prefix = (data.draw(st.integers(0, S)) for _ in range(3))
    documents = torch.tensor([data.draw(st.lists(st.integers(0, 2), min_size=S, max_size=S))])
    for i in range(T):
        for j in range(S):
            place = S - T + i  # queries are the last T positions
            assert seen(CAUSAL, T, S)[0, i, j] == (j <= place)
            assert seen(Mask(lengths=torch.tensor([length])), T, S)[0, i, j] == (j < length)
            assert seen(Mask(starts=torch.tensor([start])), T, S)[0, i, j] == (j >= start)
            assert seen(Mask(window=window), T, S)[0, i, j] == (abs(j - place) < window)
            assert seen(Mask(documents=documents), T, S)[0, i, j] == (documents[0, j] == documents[0, place])
            assert seen(Mask(causal=True, prefix=torch.tensor([prefix])), T, S)[0, i, j] == (j <= place or j < prefix)


def test_and_is_both():
    one, other = Mask(causal=True, lengths=torch.tensor([3, 5])), Mask(lengths=torch.tensor([4, 2]), window=2)
    assert torch.equal(seen(one & other, 5, 5, 2), seen(one, 5, 5, 2) & seen(other, 5, 5, 2))


def test_structure_is_known_without_looking_at_tensors():
    assert NO_MASK.structure == frozenset() and NO_MASK.dense(3, 3) is None
    assert CAUSAL.structure == {"causal"}
    assert Mask(lengths=torch.tensor([0])).structure == {"lengths"}


def test_rows_choose_sentences():
    mask = Mask(causal=True, lengths=torch.tensor([1, 2, 3]))
    assert torch.equal(seen(mask.rows(torch.tensor([2, 0])), 3, 3, 2), seen(mask, 3, 3, 3)[[2, 0]])

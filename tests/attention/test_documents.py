"""Documents packed into one row: nothing looks across them, and attending within them alone is attending under the mask."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention import core
from regard.attention.core import attend
from regard.attention.masks import Mask
from regard.attention.sparse_attention import locate_documents


@st.composite
def numbered(draw, rows=3):
    """Rows of short documents, one after another; or numbers in any order."""
    T = draw(st.integers(6, 24))
    number = st.lists(st.integers(-2, 7), min_size=T, max_size=T)
    return torch.tensor([sorted(found) if draw(st.booleans()) else found for found in (draw(number) for _ in range(rows))])


@given(numbered(), st.booleans(), st.sampled_from([(4, 4), (4, 2)]))
def test_within_documents_equals_the_written_out_equation(documents, causal, heads):
    rows, T = documents.shape
    q, k, v = (
        torch.randn(rows, h, T, width, dtype=torch.float64, requires_grad=True)
        for h, width in ((heads[0], 6), (heads[1], 6), (heads[1], 5))
    )
    mask = Mask(causal=causal, documents=documents)
    plain = attend(q, k, v, mask=mask, weights=True)[0]
    within = core.attend_documents(q, k, v, mask.packed, causal=causal)
    seed = torch.randn_like(plain)
    for one, other in zip(
        (within, *torch.autograd.grad((within * seed).sum(), (q, k, v))),
        (plain, *torch.autograd.grad((plain * seed).sum(), (q, k, v))),
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "mask, bias, expected",
    [
        (Mask(documents=torch.arange(32)[None] // 4), False, 1),
        (Mask(causal=True, documents=torch.arange(32)[None] // 4), False, 1),
        (Mask(documents=torch.arange(32)[None] // 30), False, 0),
        (Mask(window=3, documents=torch.arange(32)[None] // 4), False, 0),
        (Mask(documents=torch.arange(32)[None] // 4), True, 0),
    ],
    ids=["short", "causal", "long", "window", "bias"],
)
def test_the_structure_decides_the_path_and_the_path_nothing(mask, bias, expected, monkeypatch):
    taken, within = [], core.attend_documents
    monkeypatch.setattr(core, "attend_documents", lambda *given, **options: taken.append(1) or within(*given, **options))
    q, k, v = (torch.randn(1, 2, 32, 4, dtype=torch.float64) for _ in range(3))
    added = torch.randn(2, 32, 32, dtype=torch.float64) if bias else None
    torch.testing.assert_close(
        attend(q, k, v, mask=mask, bias=added), attend(q, k, v, mask=mask, bias=added, weights=True)[0], atol=1e-10, rtol=0
    )
    assert len(taken) == expected


@given(numbered())
def test_places_are_counted_within_documents(documents):
    found = locate_documents(documents)
    for row, places in zip(documents.tolist(), found.place.tolist()):
        assert places == [row[:i].count(number) for i, number in enumerate(row)]
    assert found.starts[-1] == documents.numel() and found.longest == int(found.starts.diff().max())

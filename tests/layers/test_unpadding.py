"""A stack runs without its padding: the vectors of real tokens stay the same."""

import pytest
import torch

from regard.attention.masks import NO_MASK, Mask
from regard.layers.unpadding import MAX_FILLED, has_hooks, is_observed, run_without_padding
from regard.models.bert import TextEmbedder
from regard.recipe import EncoderModel


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(1)
    settings = EncoderModel(kind="transformer", layers=2, width=16, heads=2, feed_forward=32, max_length=32)
    return TextEmbedder(settings, 20).eval().encoder.stack


@pytest.mark.parametrize("lengths", [[9, 4, 1], [1, 1, 1], [3, 9, 9], [9, 9, 9]])
@torch.no_grad()
def test_packed_rows_give_the_vectors_of_padded_rows(stack, lengths):
    seen = []

    def run(x, mask):
        seen.append((tuple(x.shape[:2]), mask))
        return stack._forward(x, mask)

    x, mask = torch.randn(3, 9, 16), Mask(lengths=torch.tensor(lengths))
    real = torch.arange(9) < mask.lengths[:, None]
    found = run_without_padding(run, x, mask, may_pack=lambda: True)
    torch.testing.assert_close(found[real], stack._forward(x, mask)[real], atol=1e-5, rtol=1e-5)
    packed = sum(lengths) <= MAX_FILLED * 27
    assert seen[0][0] == ((1, sum(lengths)) if packed else (3, 9))
    assert (seen[0][1] is NO_MASK) == (min(lengths) == 9)
    assert not packed or (found[~real] == 0).all()


@torch.no_grad()
def test_observed_rows_stay_where_they_are(stack):
    x, mask = torch.randn(2, 9, 16), Mask(lengths=torch.tensor([9, 2]))
    assert not is_observed(stack, x)
    hook = next(stack.layers()).register_forward_hook(lambda module, inputs, output: None)
    assert is_observed(stack, x)
    hook.remove()
    shapes = []
    run_without_padding(lambda x, mask: (shapes.append(x.shape), x)[1], x, mask, may_pack=lambda: False)
    assert shapes == [(2, 9, 16)]


@torch.no_grad()
def test_rows_without_padding_are_not_searched_for_hooks():
    """It takes the host as long as launching several layers."""
    x, mask = torch.randn(2, 9, 16), Mask(lengths=torch.tensor([9, 9]))
    run_without_padding(lambda x, mask: x, x, mask, may_pack=lambda: pytest.fail("asked"))


def test_hooks_of_any_part_are_found(stack):
    for part in stack.modules():
        for register in (part.register_forward_hook, part.register_forward_pre_hook):
            assert not has_hooks(stack)
            hook = register(lambda *_: None)
            assert has_hooks(stack)
            hook.remove()

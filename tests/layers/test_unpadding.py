"""A stack runs without its padding: the vectors of real tokens stay the same."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from regard.attention import core
from regard.attention.edit import edit
from regard.attention.masks import NO_MASK, Mask
from regard.attention.watch import watch
from regard.layers.unpadding import MAX_FILLED, has_hooks, run_without_padding
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
        return stack._run_blocks(x, mask)

    x, mask = torch.randn(3, 9, 16), Mask(lengths=torch.tensor(lengths))
    real = torch.arange(9) < mask.lengths[:, None]
    found = run_without_padding(run, x, mask, may_pack=lambda: True)
    torch.testing.assert_close(found[real], stack._run_blocks(x, mask)[real], atol=1e-5, rtol=1e-5)
    packed = sum(lengths) <= MAX_FILLED * 27
    assert seen[0][0] == ((1, sum(lengths)) if packed else (3, 9))
    assert (seen[0][1] is NO_MASK) == (min(lengths) == 9)
    assert not packed or (found[~real] == 0).all()


@pytest.fixture
def unpadded(monkeypatch):
    """A model that runs without padding on the CPU too, and the shapes of the queries in its fused attention."""
    monkeypatch.setattr(
        "regard.layers.stack.knows_lengths", lambda x, mask: mask.structure == {"lengths"} and not torch.is_grad_enabled()
    )
    torch.manual_seed(1)
    settings = EncoderModel(kind="transformer", layers=2, width=16, heads=2, feed_forward=32, max_length=32)
    model, shapes, attend = TextEmbedder(settings, 20).eval(), [], core.fused_attention
    monkeypatch.setattr(core, "fused_attention", lambda q, *rest: (shapes.append(tuple(q.shape)), attend(q, *rest))[1])
    return model, shapes


IDS, LENGTHS = torch.arange(27).view(3, 9) % 20, torch.tensor([9, 4, 1])
REAL = torch.arange(9) < LENGTHS[:, None]


@torch.no_grad()
def test_watching_leaves_rows_without_padding_and_records_them_with_it(unpadded):
    model, shapes = unpadded
    expected = model(IDS, LENGTHS)
    with watch(model, values=True, queries=True) as seen:
        found = model(IDS, LENGTHS)
    assert torch.equal(found, expected), "to the bit, padding included"
    assert set(shapes) == {(1, 2, 14, 8)}
    with watch(model, states=True) as padded:  # hidden states are recorded where they are, so that rows keep their padding
        model(IDS, LENGTHS)
    assert shapes[-1] == (3, 2, 9, 8)
    for name in seen.names():
        assert seen[name].shape == (3, 2, 9, 9)
        for row, length in enumerate(LENGTHS):
            weights, same = (recording[name][row, :, :length] for recording in (seen, padded))
            torch.testing.assert_close(weights, same, atol=1e-5, rtol=0)
            assert (weights[..., length:] == 0).all()
            scores = seen.scores[name][0][row, :, :length]
            torch.testing.assert_close(scores.softmax(-1), same, atol=1e-5, rtol=0)
        assert seen.values[name][0].shape == seen.queries[name][0].shape == (3, 2, 9, 8)


@torch.no_grad()
def test_lengths_are_read_once_beside_the_kernels_before_the_first_block(unpadded, monkeypatch):
    functions = []
    monkeypatch.setattr(Mask, "start_reading_lengths", lambda mask: functions.append("start"))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            functions.append(func)
            return func(*args, **(kwargs or {}))

    with Functions():
        unpadded[0](IDS, LENGTHS)
    reads = [number for number, function in enumerate(functions) if function in (torch.Tensor.tolist, torch.Tensor.item)]
    assert len(reads) == 1
    assert functions.index("start") < functions.index(torch.Tensor.narrow) < reads[0] < functions.index(F.linear)


def test_lengths_on_the_host_are_read_where_they_are(monkeypatch):
    mask = Mask(lengths=LENGTHS)
    monkeypatch.setattr(torch.Tensor, "to", lambda *_, **__: pytest.fail("copied"))
    mask.start_reading_lengths()
    assert mask.read_lengths() == LENGTHS.tolist()


@torch.no_grad()
def test_editing_rows_without_padding_equals_editing_padded_rows(unpadded, monkeypatch):
    model, shapes = unpadded

    def run():
        with edit(model, lambda name, weights: torch.zeros_like(weights), layers=[0], heads=[1]):
            return model(IDS, LENGTHS)

    found = run()
    assert shapes == [(1, 2, 14, 8)], "the second layer"
    monkeypatch.setattr("regard.layers.stack.knows_lengths", lambda x, mask: False)
    torch.testing.assert_close(found[REAL], run()[REAL], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[REAL], model(IDS, LENGTHS)[REAL], atol=1e-3)


@torch.no_grad()
def test_rows_that_hooks_see_keep_their_padding(unpadded):
    model, shapes = unpadded
    for part in model.encoder.stack.modules():
        with part.register_forward_hook(lambda module, inputs, output: None):
            model(IDS, LENGTHS)
        assert shapes[-1] == (3, 2, 9, 8)


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

"""Watching changes nothing and sees what is there; editing changes only what it says."""

import pytest
import torch

from regard.attention.core import attention_weights
from regard.attention.watch import edit, places, watch
from regard.models.transformer import Transformer
from regard.recipe import Positions, TransformerModel

KINDS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


def tiny(kind="sinusoidal", **settings):
    model = TransformerModel(preset="tiny", width=16, heads=2, feed_forward=32, positions=Positions(kind=kind), **settings)
    return Transformer(model, 30, 30).eval()


@pytest.fixture
def inputs():
    return torch.randint(4, 30, (3, 7)), torch.tensor([7, 5, 2]), torch.randint(4, 30, (3, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_watched_output_equals_unwatched_bit_for_bit(kind, inputs):
    model = tiny(kind)
    plain = model(*inputs)
    with watch(model) as seen:
        watched = model(*inputs)
    assert torch.equal(plain, watched)
    assert torch.equal(plain, model(*inputs)), "nothing is left behind"
    assert len(seen.places()) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_weights_mix_the_values_into_the_output(kind, inputs, monkeypatch):
    """weights · v is what the fused path gave, at every place, also when rows are computed a few at a time."""
    monkeypatch.setattr("regard.attention.record.LEAST", 200)
    model = tiny(kind, key_value_heads=1)
    mixed = {}
    for name, place in places(model).items():
        place.register_forward_hook(lambda module, args, output, name=name: mixed.update({name: (args[2], output)}))
    with watch(model) as seen:
        model(*inputs)
    for name in seen.places():
        v, output = mixed[name]
        torch.testing.assert_close(seen[name] @ v.repeat_interleave(2, 1), output, atol=1e-6, rtol=1e-5)


def test_layers_heads_and_kinds_are_chosen(inputs):
    model = tiny()
    with watch(model, layers=[1], heads=[0], kinds="cross") as seen:
        model(*inputs)
    assert seen.places() == ["decoder.blocks.1.cross_attention"]
    assert seen[seen.places()[0]].shape == (3, 1, 6, 7)
    with watch(model, kinds="cross") as seen:
        model(*inputs)
    assert seen.stack().shape == (2, 3, 2, 6, 7)
    assert seen.stack()[:, 1, :, :, 5:].eq(0).all(), "padding is never looked at"


def test_editing_with_the_same_weights_changes_nothing_and_with_others_something(inputs):
    model = tiny()
    plain = model(*inputs)
    with edit(model, lambda name, weights: weights):
        torch.testing.assert_close(model(*inputs), plain, atol=1e-5, rtol=1e-5)
    with edit(model, lambda name, weights: torch.zeros_like(weights), kinds="cross"):
        assert (model(*inputs) - plain).abs().max() > 0.01
    assert torch.equal(model(*inputs), plain)


def test_weights_in_half_precision_are_computed_in_float32():
    q, k = torch.randn(1, 1, 4, 8).bfloat16(), torch.randn(1, 1, 4, 8).bfloat16()
    assert attention_weights(q, k).dtype == torch.float32

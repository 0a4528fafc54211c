"""Random position offsets while training: what they change, and what they must not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.recipe import PositionSettings, TransformerModel, UniversalModel
from regard.tasks import find_task

V = 13
ABSOLUTE, DISTANCE = ("sinusoidal", "learned"), ("rotary", "alibi", "relative", "none")


def translator(kind, positions, offset, seed=0):
    torch.manual_seed(seed)
    part = {"transformer": TransformerModel, "universal": UniversalModel}[kind]
    settings = part(
        kind=kind,
        encoder_layers=2,
        decoder_layers=2,
        width=8,
        heads=2,
        feed_forward=16,
        max_length=12,
        positions=PositionSettings(kind=positions, random_offset=offset),
    )
    return find_task("translate", kind).models[kind](settings, V, V).double()


def sentences(B=3, S=6, T=5):
    lengths = torch.tensor([S, *torch.randint(1, S + 1, (B - 1,)).tolist()])
    return torch.randint(4, V, (B, S)), lengths, torch.randint(4, V, (B, T))


def forward(model, inputs, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(*inputs)


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


kinds = pytest.mark.parametrize("kind", ["transformer", "universal"])


@kinds
@pytest.mark.parametrize("positions", [*ABSOLUTE, *DISTANCE])
def test_random_offsets_do_not_change_evaluation(kind, positions):
    plain, offset = translator(kind, positions, 0).eval(), translator(kind, positions, 40).eval()
    weights = {name: offset.state_dict()[name][: len(table)] for name, table in plain.state_dict().items()}  # a longer table
    plain.load_state_dict(weights)
    inputs = sentences()
    assert torch.equal(forward(plain, inputs), forward(offset, inputs))


@kinds
@given(positions=st.sampled_from(DISTANCE), offset=st.integers(1, 200), seed=st.integers(0, 100))
def test_random_offsets_do_not_change_relative_positions(kind, positions, offset, seed):
    model, inputs = translator(kind, positions, offset, seed), sentences()
    close(forward(model.train(), inputs), forward(model.eval(), inputs))


@kinds
@pytest.mark.parametrize("positions", ABSOLUTE)
def test_absolute_positions_start_at_a_random_offset_per_row(kind, positions):
    model = translator(kind, positions, 50)
    inputs = [part[:1].expand(8, *part.shape[1:]) for part in sentences()]
    trained, evaluated = forward(model.train(), inputs), forward(model.eval(), inputs)
    assert (trained - evaluated).abs().amax((1, 2)).gt(1e-6).sum() >= 6  # a row may start at 0
    assert len(trained.flatten(1).mul(1e8).round().unique(dim=0)) >= 5
    assert torch.equal(forward(model.train(), inputs), trained), "a pure function of the seed"
    assert not torch.equal(forward(model, inputs, seed=2), trained)


@kinds
def test_position_table_covers_the_longest_sentence_with_the_largest_offset(kind):
    for positions in ABSOLUTE:
        model = translator(kind, positions, 3).train()
        model.random_offsets = lambda source: torch.full((len(source),), 3)
        assert forward(model, (torch.full((2, 12), 5), torch.tensor([12, 12]), torch.full((2, 13), 5))).isfinite().all()


@given(offset=st.integers(1, 100))
def test_random_offsets_range_from_zero_to_the_setting(offset):
    model = translator("transformer", "sinusoidal", offset).train()
    offsets = model.random_offsets(torch.zeros(200 * (offset + 1), 1))
    assert offsets.min() == 0 and offsets.max() == offset


@kinds
def test_source_and_target_share_their_offset(kind):
    model, seen = translator(kind, "sinusoidal", 50).train(), []
    for stack in (model.encoder, model.decoder):
        stack.positions.embed = lambda x, at, segment=None, seen=seen: (seen.append(at[:, 0]), x)[1]
    forward(model, sentences())
    assert all(torch.equal(at, seen[0]) for at in seen) and len(seen[0].unique()) > 1


@kinds
@given(positions=st.sampled_from([*ABSOLUTE, *DISTANCE]), cut=st.integers(1, 4))
def test_masks_hold_with_random_offsets(kind, positions, cut):
    """While training too: padding changes nothing, and later tokens do not change earlier logits."""
    model, (source, lengths, target) = translator(kind, positions, 30).train(), sentences()
    whole = forward(model, (source, lengths, target))
    longer = torch.cat([source, torch.randint(4, V, (3, 4))], 1)
    close(forward(model, (longer, lengths, target)), whole)
    changed = target.clone()
    changed[:, cut:] = torch.randint(4, V, changed[:, cut:].shape)
    close(forward(model, (source, lengths, changed))[:, :cut], whole[:, :cut])

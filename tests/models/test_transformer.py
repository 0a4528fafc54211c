"""The Transformer's laws, and its parity with torch.nn.Transformer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.layers.block import Block, Shape
from regard.models.transformer import Transformer
from regard.recipe import Positions, TransformerModel

V = 23
KINDS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


@st.composite
def models(draw, kinds=KINDS):
    heads = draw(st.sampled_from([1, 2, 4]))
    shape = dict(
        encoder_layers=draw(st.integers(1, 2)), decoder_layers=draw(st.integers(1, 2)), width=8 * heads, heads=heads,
        key_width=draw(st.sampled_from([None, 6])), value_width=draw(st.sampled_from([None, 5])),
        key_value_heads=draw(st.sampled_from([None, 1])), feed_forward=16,
        activation=draw(st.sampled_from(["relu", "gelu", "swiglu"])), norm=draw(st.sampled_from(["layer", "rms", "batch"])),
        residual=draw(st.booleans()), scale_scores=draw(st.booleans()), norm_first=draw(st.booleans()),
        tie=draw(st.sampled_from(["all", "target", "none"])),
        positions=Positions(kind=draw(st.sampled_from(kinds))), max_length=32)
    if draw(st.booleans()):
        shape["encoder_widths"] = [12] * shape["encoder_layers"]
    torch.manual_seed(draw(st.integers(0, 1000)))
    return Transformer(TransformerModel(**shape), V, V).double().eval()


def sentences(B=3, S=7, T=6):
    lengths = torch.tensor([S, *torch.randint(1, S + 1, (B - 1,)).tolist()])
    return torch.randint(4, V, (B, S)), lengths, torch.randint(4, V, (B, T))


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-12)


@given(models())
def test_cached_equals_uncached_whatever_the_size_of_the_steps(model):
    source, lengths, target = sentences()
    state, parts = model.start((source, lengths), room=2), []
    for start, end in ((0, 1), (1, 3), (3, 6)):
        logits, state = model.step(target[:, start:end], state)
        parts.append(logits)
    close(torch.cat(parts, 1), model(source, lengths, target))


@given(models())
def test_padding_changes_nothing_and_batched_equals_one_by_one(model):
    source, lengths, target = sentences()
    together = model(source, lengths, target)
    for b, length in enumerate(lengths.tolist()):
        alone = model(source[b:b + 1, :length], lengths[b:b + 1], target[b:b + 1])
        close(together[b], alone[0])


@given(models(), st.integers(1, 5))
def test_later_words_cannot_change_earlier_logits(model, place):
    source, lengths, target = sentences()
    changed = target.clone()
    changed[:, place:] = torch.randint(4, V, changed[:, place:].shape)
    close(model(source, lengths, target)[:, :place], model(source, lengths, changed)[:, :place])


@given(models(kinds=["none"]))
def test_without_positions_the_encoder_is_permutation_equivariant(model):
    source, lengths, target = sentences()
    lengths[:] = source.size(1)
    order = torch.randperm(source.size(1))
    close(model(source, lengths, target), model(source[:, order], lengths, target))


def test_with_positions_order_matters():
    model = Transformer(TransformerModel(preset="tiny", width=16, heads=2), V, V).eval()
    source, lengths, target = sentences()
    lengths[:] = source.size(1)
    assert (model(source, lengths, target) - model(source.flip(1), lengths, target)).abs().max() > 1e-3


@given(models(), st.data())
def test_reorder_keep_and_join_are_what_they_say(model, data):
    """Decoding after any of them equals decoding the chosen hypotheses from the start."""
    source, lengths, target = sentences(B=2)
    state = model.start((source, lengths))
    _, state = model.step(target[:, :2], state)
    state = state.reorder(torch.tensor([0, 0, 1, 1]))                             # two hypotheses each
    a, b = torch.randint(4, V, (4, 1)), torch.randint(4, V, (4, 1))
    _, state = model.step(a, state)
    rows = torch.tensor([data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1)),
                         *(data.draw(st.integers(2, 3)) for _ in range(2))])
    state = state.reorder(rows)
    kept = data.draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    state = state.keep(torch.tensor(kept))
    chosen = torch.cat([torch.arange(2) + 2 * k for k in kept])
    logits, state = model.step(b[chosen], state)
    written = torch.cat([target[:, :2].repeat_interleave(2, 0), a], 1)[rows][chosen]
    whole = torch.cat([written, b[chosen]], 1)
    owner = torch.tensor(kept).repeat_interleave(2)
    close(logits[:, -1], model(source[owner], lengths[owner], whole)[:, -1])


@given(models(), st.integers(1, 3), st.integers(1, 4))
def test_joined_states_go_on_as_if_alone(model, first, second):
    source, lengths, target = sentences(B=3)
    parts = [(source[:2], lengths[:2], target[:2, :first]), (source[2:, :5], lengths[2:].clamp(max=5), target[2:, :second])]
    states = []
    for ids, lens, written in parts:
        _, state = model.step(written, model.start((ids, lens)))
        states.append(state)
    joined = type(states[0]).join(states)
    for _ in range(2):
        new = torch.randint(4, V, (3, 1))
        logits, joined = model.step(new, joined)
        parts = [(ids, lens, torch.cat([written, rows], 1)) for (ids, lens, written), rows in zip(parts, (new[:2], new[2:]))]
        close(logits[:, -1], torch.cat([model(*part)[:, -1] for part in parts]))


def copy_attention(ours, theirs):
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.to_q.weight, ours.to_k.weight, ours.to_v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.to_q.bias, ours.to_k.bias, ours.to_v.bias]))
        theirs.out_proj.load_state_dict(ours.to_out.state_dict())


def copy_layer(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    norms = [ours.around_self, ours.around_feed_forward]
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.around_cross)
    for number, residual in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_outputs_and_gradients_agree_with_torch_nn_transformer(norm_first, activation):
    """The same settings and copied weights: float32, 1e-5."""
    ours = Transformer(TransformerModel(encoder_layers=3, decoder_layers=2, width=32, heads=4, feed_forward=64,
                                        norm_first=norm_first, activation=activation), V, V)
    options = dict(d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, activation=activation, batch_first=True,
                   norm_first=norm_first)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 3, nn.LayerNorm(32) if norm_first else None,
                                    enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2, nn.LayerNorm(32) if norm_first else None)
    for stack, theirs in ((ours.encoder, encoder), (ours.decoder, decoder)):
        for block, layer in zip(stack.blocks, theirs.layers):
            copy_layer(block, layer)
    source, lengths, target = sentences()
    x = ours.encoder.positions.embed(ours.source_embedding(source), torch.arange(7)).detach().requires_grad_()
    y = ours.decoder.positions.embed(ours.target_embedding(target), torch.arange(6)).detach()
    hidden = torch.arange(7) >= lengths[:, None]
    later = nn.Transformer.generate_square_subsequent_mask(6)
    memory = encoder(x, src_key_padding_mask=hidden)
    decoded = decoder(y, memory, tgt_mask=later, memory_key_padding_mask=hidden, tgt_is_causal=True)
    expected = decoded @ ours.output.weight.T
    torch.testing.assert_close(ours(source, lengths, target), expected, atol=1e-5, rtol=1e-5)

    ours(source, lengths, target).square().mean().backward()
    expected.square().mean().backward()
    for block, layer in zip(ours.encoder.blocks, encoder.layers):
        torch.testing.assert_close(block.feed_forward.inner.weight.grad, layer.linear1.weight.grad, atol=1e-5, rtol=1e-5)
        mine, theirs = block.self_attention, layer.self_attn
        torch.testing.assert_close(mine.to_q.weight.grad, theirs.in_proj_weight.grad[:32], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine.to_out.weight.grad, theirs.out_proj.weight.grad, atol=1e-5, rtol=1e-5)
    for block, layer in zip(ours.decoder.blocks, decoder.layers):
        mine, theirs = block.cross_attention, layer.multihead_attn
        torch.testing.assert_close(mine.to_v.weight.grad, theirs.in_proj_weight.grad[64:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(block.around_cross.norm.weight.grad, layer.norm2.weight.grad, atol=1e-5, rtol=1e-5)


@settings(max_examples=10)
@given(st.booleans(), st.sampled_from(["layer", "rms"]))
def test_a_block_may_change_the_width(norm_first, norm):
    block = Block(Shape(12, 3, 20, norm=norm, norm_first=norm_first), out_width=18)
    assert block(torch.randn(2, 5, 12)).shape == (2, 5, 18)
    assert block.around_self.skip.weight.shape == (18, 12)


def test_tied_weights_are_one_tensor():
    shared = Transformer(TransformerModel(preset="tiny"), V, V)
    assert shared.output.weight is shared.source_embedding.table.weight is shared.target_embedding.table.weight
    target = Transformer(TransformerModel(preset="tiny", tie="target"), V, V)
    assert target.output.weight is target.target_embedding.table.weight is not target.source_embedding.table.weight
    words = Transformer(TransformerModel(preset="tiny", tie="embeddings"), V, V)
    assert words.source_embedding.table.weight is words.target_embedding.table.weight is not words.output.weight
    free = Transformer(TransformerModel(preset="tiny", tie="none"), V, V)
    assert free.output.weight is not free.target_embedding.table.weight

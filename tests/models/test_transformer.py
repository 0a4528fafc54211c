"""Parity of the Transformer with torch.nn.Transformer; test_translation_models.py has its other laws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.layers.block import Block, BlockConfig
from regard.models.transformer import Transformer
from regard.recipe import TransformerModel

V = 23


def sentences(B=3, S=7, T=6):
    lengths = torch.tensor([S, *torch.randint(1, S + 1, (B - 1,)).tolist()])
    return torch.randint(4, V, (B, S)), lengths, torch.randint(4, V, (B, T))


def copy_attention(ours, theirs):
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_layer(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    norms = [ours.self_residual, ours.feed_forward_residual]
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_residual)
    for number, residual in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_outputs_and_gradients_equal_torch_nn_transformer(norm_first, activation):
    """The same settings and copied weights: float32, 1e-5."""
    ours = Transformer(
        TransformerModel(
            encoder_layers=3, decoder_layers=2, width=32, heads=4, feed_forward=64, norm_first=norm_first, activation=activation
        ),
        V,
        V,
    )
    options = dict(
        d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), 3, nn.LayerNorm(32) if norm_first else None, enable_nested_tensor=False
    )
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
        torch.testing.assert_close(mine.q_proj.weight.grad, theirs.in_proj_weight.grad[:32], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine.out_proj.weight.grad, theirs.out_proj.weight.grad, atol=1e-5, rtol=1e-5)
    for block, layer in zip(ours.decoder.blocks, decoder.layers):
        mine, theirs = block.cross_attention, layer.multihead_attn
        torch.testing.assert_close(mine.v_proj.weight.grad, theirs.in_proj_weight.grad[64:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(block.cross_residual.norm.weight.grad, layer.norm2.weight.grad, atol=1e-5, rtol=1e-5)


@settings(max_examples=10)
@given(st.booleans(), st.sampled_from(["layer", "rms"]))
def test_block_can_change_the_width(norm_first, norm):
    block = Block(BlockConfig(12, 3, 20, norm=norm, norm_first=norm_first), out_width=18)
    assert block(torch.randn(2, 5, 12)).shape == (2, 5, 18)
    assert block.self_residual.skip.weight.shape == (18, 12)


def test_tied_weights_are_one_tensor():
    shared = Transformer(TransformerModel(preset="tiny"), V, V)
    assert shared.output.weight is shared.source_embedding.table.weight is shared.target_embedding.table.weight
    target = Transformer(TransformerModel(preset="tiny", tie="target"), V, V)
    assert target.output.weight is target.target_embedding.table.weight is not target.source_embedding.table.weight
    words = Transformer(TransformerModel(preset="tiny", tie="embeddings"), V, V)
    assert words.source_embedding.table.weight is words.target_embedding.table.weight is not words.output.weight
    free = Transformer(TransformerModel(preset="tiny", tie="none"), V, V)
    assert free.output.weight is not free.target_embedding.table.weight

"""SwitchOut and dropout of embeddings."""

import torch

from regard.layers.block import embedding_dropout
from regard.recipe import Regularization


def test_switchout_replaces_tokens_by_others_of_the_batch_while_training():
    torch.manual_seed(1)
    switchout = embedding_dropout(Regularization(switchout=0.3, embedding_dropout=0.0))
    tokens = torch.arange(400.0).view(8, 50, 1).expand(-1, -1, 6)  # (B, T, D), every token has its own number
    replaced = switchout(tokens)
    assert replaced.eq(replaced[..., :1]).all() and set(replaced.unique().tolist()) <= set(range(400))
    assert 0.2 < replaced.ne(tokens)[..., 0].float().mean() < 0.4
    assert switchout.eval()(tokens).equal(tokens)

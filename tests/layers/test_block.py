"""What a stack does to the embeddings it is given."""

import torch

from regard.layers.block import embedding_dropout
from regard.recipe import Regularization


def test_some_words_are_switched_for_others_of_the_batch_while_training():
    torch.manual_seed(1)
    switch = embedding_dropout(Regularization(switchout=0.3, embedding_dropout=0.0))
    words = torch.arange(400.0).view(8, 50, 1).expand(-1, -1, 6)  # (B, T, D), each word another number
    seen = switch(words)
    assert seen.eq(seen[..., :1]).all() and set(seen.unique().tolist()) <= set(range(400))
    assert 0.2 < seen.ne(words)[..., 0].float().mean() < 0.4
    assert switch.eval()(words).equal(words)

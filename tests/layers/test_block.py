"""What a block's stack does to the embeddings it is given."""

import pytest
import torch

from regard.layers.block import embedding_dropout
from regard.recipe import Regularize


def test_word_dropout_leaves_out_whole_words_while_training():
    torch.manual_seed(1)
    drop = embedding_dropout(Regularize(word_dropout=0.3, embedding_dropout=0.0))
    words = drop(torch.ones(8, 50, 6)).flatten(0, 1)                              # (B · T, D)
    assert words.eq(words[:, :1]).all()
    assert sorted(words[:, 0].unique().tolist()) == [0.0, pytest.approx(1 / 0.7)]
    assert 0.15 < words.eq(0).float().mean() < 0.45
    assert drop.eval()(torch.ones(1, 2, 3)).equal(torch.ones(1, 2, 3))

"""What is compiled says what is not; what comes seldom is not compiled."""

import numpy as np
import pytest
import torch
from torch import nn

from regard.batches.batch import Batch
from regard.recipe import Regularization
from regard.training.cuda_graphs import CompiledObjective
from regard.training.losses import CrossEntropy


class Reads(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def batch(rows):
    return Batch({"x": torch.randn(rows, 3)}, torch.arange(rows) % 2, np.arange(rows))


@pytest.mark.parametrize("alike, compiled", [(True, [4, 4, 8, 8]), (False, [4, 3, 4, 8, 4, 8])])
def test_the_shape_that_nearly_all_have_is_compiled_or_every_one(monkeypatch, alike, compiled):
    seen = []

    def library(fn, dynamic):
        assert dynamic != alike
        return lambda model, given: (seen.append(len(given.labels)), fn(model, given))[1]

    monkeypatch.setattr(torch, "compile", library)
    say = CrossEntropy(Regularization(label_smoothing=0.0))
    loss, model = CompiledObjective(say, alike), Reads(3, 2)
    for rows in (4, 3, 4, 8, 4, 8):
        given = batch(rows)
        assert torch.equal(loss(model, given), say(model, given))
    assert seen == compiled


def test_compiled_it_is_the_same_loss_and_the_same_gradients():
    torch.manual_seed(0)
    say, model, given = CrossEntropy(Regularization(label_smoothing=0.1)), Reads(3, 2), batch(5)
    found = []
    for objective in (say, CompiledObjective(say, uniform=True)):
        loss = objective(model, given)
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for plain, compiled in zip(*found):
        torch.testing.assert_close(compiled, plain)

"""A compiled objective equals the eager one; rare shapes are not compiled."""

import numpy as np
import pytest
import torch
from torch import nn

from regard.batches.batch import Batch
from regard.recipe import Regularization
from regard.training.cuda_graphs import CompiledObjective
from regard.training.losses import CrossEntropy


class LinearModel(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def batch(rows):
    return Batch({"x": torch.randn(rows, 3)}, torch.arange(rows) % 2, np.arange(rows))


@pytest.mark.parametrize("uniform, compiled", [(True, [4, 4, 8, 8]), (False, [4, 3, 4, 8, 4, 8])])
def test_uniform_batches_compile_only_the_largest_shape(monkeypatch, uniform, compiled):
    seen = []

    def fake_compile(fn, dynamic):
        assert dynamic != uniform
        return lambda model, given: (seen.append(len(given.labels)), fn(model, given))[1]

    monkeypatch.setattr(torch, "compile", fake_compile)
    eager = CrossEntropy(Regularization(label_smoothing=0.0))
    loss, model = CompiledObjective(eager, uniform), LinearModel(3, 2)
    for rows in (4, 3, 4, 8, 4, 8):
        given = batch(rows)
        assert torch.equal(loss(model, given), eager(model, given))
    assert seen == compiled


def test_compiled_loss_and_gradients_equal_eager():
    torch.manual_seed(0)
    eager, model, given = CrossEntropy(Regularization(label_smoothing=0.1)), LinearModel(3, 2), batch(5)
    found = []
    for objective in (eager, CompiledObjective(eager, uniform=True)):
        loss = objective(model, given)
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for plain, compiled in zip(*found):
        torch.testing.assert_close(compiled, plain)

"""A compiled objective equals the eager one; rare shapes are not compiled."""

import numpy as np
import pytest
import torch
from torch import nn

from regard.batches.batch import Batch
from regard.models.bert import TextEmbedder
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.recipe import DecoderModel, EncoderModel, Regularization, TransformerModel
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


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder", "encoder"])
def test_the_objective_of_a_transformer_is_one_graph(kind):
    """Nothing between the ids and the loss leaves the compiled graph: what is fused stays fused."""
    block = {"width": 16, "heads": 2, "feed_forward": 32, "max_length": 32}
    ids, lengths = torch.randint(4, 20, (3, 8)), torch.tensor([8, 5, 1])
    model, inputs = {
        "encoder-decoder": lambda: (
            Transformer(TransformerModel(encoder_layers=1, decoder_layers=1, **block), 20, 20),
            {"source": ids, "lengths": lengths, "target": ids},
        ),
        "decoder": lambda: (Gpt(DecoderModel(kind="transformer", layers=1, **block), 20), {"target": ids}),
        "encoder": lambda: (
            TextEmbedder(EncoderModel(kind="transformer", layers=1, **block), 20),
            {"source": ids, "lengths": lengths},
        ),
    }[kind]()
    torch._dynamo.reset()
    found = torch._dynamo.explain(CrossEntropy(Regularization(label_smoothing=0.1)))(model.train(), Batch(inputs, ids % 16, None))
    assert found.graph_count == 1, found.break_reasons

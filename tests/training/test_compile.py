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
from regard.run.train import train as regard_train
from regard.training.cuda_graphs import CompiledObjective, batch_shape
from regard.training.losses import CrossEntropy

BLOCK = {"width": 16, "heads": 2, "feed_forward": 32}
RECIPES = {
    "classify": {
        "data": {
            "size": 24,
            "label_attribute": "kind",
            "world": {"kind": "shapes", "number": 28, "held_out": 4, "shapes": [1, 1]},
        },
        "model": {"kind": "vit", "layers": 1, "patch_size": 8, **BLOCK},
        "train": {"images_per_batch": 12},
    },
    "translate": {
        "data": {"world": {"number": 60, "held_out": 6}},
        "tokens": {"size": 200},
        "model": {"preset": "tiny", "max_length": 64, **BLOCK},
        "train": {"tokens_per_batch": 256},
    },
}


class LinearModel(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def batch(rows):
    return Batch({"x": torch.randn(rows, 3)}, torch.arange(rows) % 2, np.arange(rows))


@pytest.fixture
def compiled_sizes(monkeypatch):
    """Compile nothing; return the list of the batch sizes that would have been computed by compiled code."""
    seen = []
    monkeypatch.setattr(
        torch, "compile", lambda fn, dynamic: lambda model, given: (seen.append(len(given.labels)), fn(model, given))[1]
    )
    return seen


@pytest.mark.parametrize("only, compiled", [(batch_shape([batch(8)]), [8, 8]), (None, [4, 3, 4, 8, 4, 8])])
def test_uniform_batches_compile_only_their_shape(compiled_sizes, only, compiled):
    eager = CrossEntropy(Regularization(label_smoothing=0.0))
    loss, model = CompiledObjective(eager, only), LinearModel(3, 2)
    for rows in (4, 3, 4, 8, 4, 8):
        given = batch(rows)
        assert torch.equal(loss(model, given), eager(model, given))
    assert compiled_sizes == compiled


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_what_is_compiled_does_not_depend_on_where_a_run_resumes(compiled_sizes, tmp_path, task):
    """A typical batch is compiled before the first step, also of a resumed run; then the same batches are compiled or eager."""
    train = {"steps": 6, "save_every": 1, "evaluate_every": 6, "log_every": 6, "keep_checkpoints": 6, "compile": True}
    recipe = {"task": task, **RECIPES[task], "train": {**train, **RECIPES[task]["train"]}}
    regard_train(recipe, tmp_path, device="cpu")
    first, *whole = compiled_sizes
    assert (set(whole) == {first}) == (task == "classify") and first != 1, "batches of one shape: only these"
    weights = (tmp_path / "model.safetensors").read_bytes()
    for step in (1, 2, 3):
        compiled_sizes.clear()
        regard_train(tmp_path, resume=True, start=str(step), device="cpu")
        assert compiled_sizes[0] == first and whole[-len(compiled_sizes[1:]) :] == compiled_sizes[1:]
        assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_compiled_loss_and_gradients_equal_eager():
    torch.manual_seed(0)
    eager, model, given = CrossEntropy(Regularization(label_smoothing=0.1)), LinearModel(3, 2), batch(5)
    found = []
    for objective in (eager, CompiledObjective(eager, batch_shape([given]))):
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

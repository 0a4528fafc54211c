"""Packed texts have the logits and loss that they have alone, for all position encodings."""

import numpy as np
import pytest
import torch

from regard.batches.batches import Batches, sequential_batches
from regard.batches.language_rows import LanguageModelRows, PackedRows
from regard.batches.masked_rows import MaskedRows
from regard.batches.ragged import Ragged
from regard.batches.token_store import TokenStore
from regard.recipe import DecoderModel, EncoderModel, Masking, PositionSettings, Regularization
from regard.tasks import find_task
from regard.tokens.special_tokens import BOS_AND_EOS
from regard.training.losses import CrossEntropy

V, MAX_LENGTH = 40, 24
TEXTS = [np.random.default_rng(i).integers(5, V, 1 + 5 * i % 13).tolist() for i in range(40)]
SHAPE = dict(kind="transformer", layers=2, width=16, heads=4, feed_forward=32, max_length=MAX_LENGTH)
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


def build_model(task, kind, **more):
    torch.manual_seed(5)
    settings = (DecoderModel if task == "language" else EncoderModel)(**SHAPE, positions=PositionSettings(kind=kind), **more)
    model = find_task(task, "transformer").models["transformer"](settings, V).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def rows_of(task):
    side = TokenStore(Ragged.from_rows(TEXTS))
    return (
        LanguageModelRows(side)
        if task == "language"
        else MaskedRows(side, Masking(fraction=0.4), 4, V, special_tokens=BOS_AND_EOS)
    )


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize(
    "task, more",
    [("language", {}), ("language", {"window": 3, "key_value_heads": 2}), ("masked", {"segments": 2, "embedding_norm": True})],
    ids=["gpt", "window", "bert"],
)
@torch.no_grad()
def test_packed_logits_equal_those_of_each_text_alone(task, more, kind):
    model, texts, name = build_model(task, kind, **more).eval(), rows_of(task), "target" if task == "language" else "source"
    packed = PackedRows(texts, MAX_LENGTH)
    batch = packed.batch(np.arange(len(packed)), 1, 2)
    assert (batch.inputs["documents"] == 0).any() and batch.inputs["documents"].max() > 2, (
        "some positions are padding, some rows have several texts"
    )
    logits = model(**batch.inputs)
    for row in range(len(packed)):
        for number, text in enumerate(packed.plan(1, 2)[row], start=1):
            here = batch.inputs["documents"][row] == number
            alone = texts.batch(np.array([text]), 1, 2)
            assert torch.equal(batch.inputs[name][row, here], alone.inputs[name][0])
            torch.testing.assert_close(logits[row, here], model(**alone.inputs)[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("task", ["language", "masked"])
def test_packed_loss_and_gradient_equal_those_of_the_texts(task):
    model, texts = build_model(task, "relative"), rows_of(task)
    loss_fn = CrossEntropy(Regularization(label_smoothing=0.1, dropout=0.0))
    batches = Batches(PackedRows(texts, MAX_LENGTH), 3 * MAX_LENGTH, seed=1)
    losses = [
        sum(loss_fn(model, batches.batch(2, i)) for i in range(len(batches.plan(2)))),
        sum(loss_fn(model, texts.batch(np.array([i]), 1, 2)) for i in range(len(TEXTS))),
    ]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)  # losses are computed in float32
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in losses]
    for one, other in zip(*gradients):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_packed_texts_do_not_see_each_other():
    model, packed = build_model("masked", "learned").eval(), PackedRows(rows_of("masked"), MAX_LENGTH)
    inputs = packed.batch(np.arange(len(packed)), 1, 2).inputs
    before = model(**inputs)
    others = inputs["documents"] != 1
    changed = model(**{**inputs, "source": torch.where(others, torch.randint_like(inputs["source"], 5, V), inputs["source"])})
    torch.testing.assert_close(before[~others], changed[~others], atol=1e-12, rtol=0)
    assert not torch.allclose(before[others], changed[others])


@torch.no_grad()
def test_unpacked_evaluation_loss_equals_the_packed_one():
    """Batches of texts of equal length have no padding either."""
    model, texts = build_model("language", "rotary").eval(), rows_of("language")
    loss_fn = CrossEntropy(Regularization(label_smoothing=0.0))
    packed = PackedRows(texts, MAX_LENGTH)
    torch.testing.assert_close(
        sum(loss_fn(model, batch) for batch in sequential_batches(texts, 64)),
        loss_fn(model, packed.batch(np.arange(len(packed)), 0, 0)),
        rtol=1e-5,
        atol=0,
    )

"""A packed text is said as it would be alone: logits and loss, whatever the positions, whatever is packed beside it."""

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

V, ROOM = 40, 24
TEXTS = [np.random.default_rng(i).integers(5, V, 1 + 5 * i % 13).tolist() for i in range(40)]
SHAPE = dict(kind="transformer", layers=2, width=16, heads=4, feed_forward=32, max_length=ROOM)
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


def built(task, kind, **more):
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
def test_packed_logits_are_those_of_each_text_alone(task, more, kind):
    model, texts, name = built(task, kind, **more).eval(), rows_of(task), "target" if task == "language" else "source"
    packed = PackedRows(texts, ROOM)
    batch = packed.batch(np.arange(len(packed)), 1, 2)
    assert (batch.inputs["documents"] == 0).any() and batch.inputs["documents"].max() > 2, "some room is left, some is shared"
    logits = model(**batch.inputs)
    for row in range(len(packed)):
        for number, text in enumerate(packed.plan(1, 2)[row], start=1):
            here = batch.inputs["documents"][row] == number
            alone = texts.batch(np.array([text]), 1, 2)
            assert torch.equal(batch.inputs[name][row, here], alone.inputs[name][0])
            torch.testing.assert_close(logits[row, here], model(**alone.inputs)[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("task", ["language", "masked"])
def test_the_loss_and_its_gradient_are_those_of_the_texts(task):
    model, texts = built(task, "relative"), rows_of(task)
    say = CrossEntropy(Regularization(label_smoothing=0.1, dropout=0.0))
    batches = Batches(PackedRows(texts, ROOM), 3 * ROOM, seed=1)
    losses = [
        sum(say(model, batches.batch(2, i)) for i in range(len(batches.plan(2)))),
        sum(say(model, texts.batch(np.array([i]), 1, 2)) for i in range(len(TEXTS))),
    ]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)  # objectives count in float32
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in losses]
    for one, other in zip(*gradients):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_is_beside_a_text_cannot_be_seen():
    model, packed = built("masked", "learned").eval(), PackedRows(rows_of("masked"), ROOM)
    inputs = packed.batch(np.arange(len(packed)), 1, 2).inputs
    before = model(**inputs)
    others = inputs["documents"] != 1
    changed = model(**{**inputs, "source": torch.where(others, torch.randint_like(inputs["source"], 5, V), inputs["source"])})
    torch.testing.assert_close(before[~others], changed[~others], atol=1e-12, rtol=0)
    assert not torch.allclose(before[others], changed[others])


@torch.no_grad()
def test_evaluation_needs_no_packing():
    """Batches of texts of one length have no padding either; their loss is the packed one."""
    model, texts = built("language", "rotary").eval(), rows_of("language")
    say = CrossEntropy(Regularization(label_smoothing=0.0))
    packed = PackedRows(texts, ROOM)
    torch.testing.assert_close(
        sum(say(model, batch) for batch in sequential_batches(texts, 64)),
        say(model, packed.batch(np.arange(len(packed)), 0, 0)),
        rtol=1e-5,
        atol=0,
    )

"""Losses and gradients are finite for all-padding and one-token batches, in fp32, bf16 and fp16."""

import contextlib

import numpy as np
import pytest
import torch

from regard.batches.batch import IGNORE_INDEX, Batch
from regard.recipe import (
    DecoderModel,
    EncoderClassifierModel,
    EncoderModel,
    PositionSettings,
    RecurrentModel,
    Regularization,
    TransformerModel,
    UniversalModel,
)
from regard.tasks import find_task
from regard.training.losses import CrossEntropy

V = 13
SHAPE = dict(width=16, heads=2, feed_forward=32)
TRANSLATORS = {
    **{
        f"transformer, {kind}": TransformerModel(preset="tiny", **SHAPE, positions=PositionSettings(kind=kind))
        for kind in ("sinusoidal", "rotary", "alibi", "relative")
    },
    "transformer, batch norm": TransformerModel(preset="tiny", **SHAPE, norm="batch"),
    "transformer, RMS norm first": TransformerModel(preset="tiny", **SHAPE, norm="rms", norm_first=True),
    "universal": UniversalModel(kind="universal", **SHAPE),
    "additive": RecurrentModel(kind="recurrent", width=16),
    "general": RecurrentModel(kind="recurrent", width=16, attention="general", decoder="luong"),
    "cosine": RecurrentModel(kind="recurrent", width=16, attention="cosine"),
}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCHES = {"all padding": (5, 0), "one token": (1, 1), "some rows padding": (5, None)}


def build(name):
    if name in TRANSLATORS:
        return find_task("translate", TRANSLATORS[name].kind).models[TRANSLATORS[name].kind](
            TRANSLATORS[name], V, V, Regularization()
        )
    if name == "GPT":
        return find_task("language", "transformer").models["transformer"](
            DecoderModel(kind="transformer", layers=1, **SHAPE), V, Regularization()
        )
    return find_task("masked", "transformer").models["transformer"](
        EncoderModel(kind="transformer", layers=1, **SHAPE), V, Regularization()
    )


def build_batch(name, size, real):
    """A batch of three rows; padding has no labels."""
    lengths = torch.tensor([0, 1, size]) if real is None else torch.full((3,), real)
    is_real = torch.arange(size) < lengths[:, None]
    labels = torch.where(is_real, torch.randint(4, V, (3, size)), IGNORE_INDEX)
    ids = torch.where(is_real, torch.randint(4, V, (3, size)), 0)
    inputs = {"target": ids} if name == "GPT" else {"source": ids, "lengths": lengths}
    return Batch({**inputs, **({"target": ids} if name in TRANSLATORS else {})}, labels, np.arange(3))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("name", [*TRANSLATORS, "GPT", "BERT"])
def test_loss_and_gradients_are_finite(name, kind, precision):
    dtype = PRECISIONS[precision]
    model, batch = build(name).train(), build_batch(name, *BATCHES[kind])
    with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
        loss = CrossEntropy(Regularization())(model, batch)
    assert loss.isfinite()
    (loss / max(1, batch.label_count())).backward()
    for parameter, p in model.named_parameters():
        assert p.grad is None or p.grad.isfinite().all(), parameter


@pytest.mark.parametrize("pool", ["first", "first_relu", "mean", "max"])
@pytest.mark.parametrize("kind", BATCHES)
def test_classifier_of_empty_texts_is_finite(pool, kind):
    model = find_task("classify", "transformer").models["transformer"](
        EncoderClassifierModel(kind="transformer", layers=1, pool=pool, **SHAPE), V, 3, Regularization()
    )
    batch = build_batch("BERT", *BATCHES[kind])
    logits = model(**batch.inputs)
    logits.sum().backward()
    assert logits.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", BATCHES)
def test_span_prediction_in_empty_texts_is_finite(kind):
    model = find_task("answer", "transformer").models["transformer"](
        EncoderModel(kind="transformer", layers=1, **SHAPE), V, Regularization()
    )
    logits = model(**build_batch("BERT", *BATCHES[kind]).inputs).log_softmax(-1)
    assert logits[..., 0].isfinite().all()
    logits[..., 0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

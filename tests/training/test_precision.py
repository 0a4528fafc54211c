"""`train.precision = "auto"` is bf16 where a device gains by it; an explicit setting wins."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from regard.models.transformer import Transformer
from regard.recipe import TransformerModel
from regard.training import precision
from regard.training.precision import choose_precision

CPU = torch.device("cpu")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def translator(**shape):
    with torch.device("meta"):
        return Transformer(TransformerModel(**shape), 99, 99)


@pytest.mark.parametrize(("has", "preset", "expected"), [(True, "base", "bf16"), (True, "tiny", "fp32"), (False, "base", "fp32")])
def test_auto_precision_is_bf16_on_a_cpu_with_bf16_for_wide_models(has, preset, expected, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: has)
    assert choose_precision("auto", translator(preset=preset), CPU) == expected
    assert choose_precision("bf16", translator(preset=preset), CPU) == "bf16"
    assert choose_precision("fp32", translator(preset=preset), CPU) == "fp32"


def test_auto_precision_is_bf16_on_a_gpu_and_width_ignores_the_vocabulary():
    assert choose_precision("auto", nn.Linear(2, 2), torch.device("cuda")) == "bf16"
    assert precision.model_width(nn.Sequential(nn.Linear(32, 9999), nn.Linear(9999, 16))) == 32
    assert precision.model_width(nn.Embedding(2, 2)) == 0 and isinstance(precision.cpu_has_bf16(), bool)


def autocast_gradients(model, context):
    """Return the output and the gradients of a small pass under autocast to bf16."""
    torch.manual_seed(2)
    ids = torch.arange(1, 13, device=DEVICE).view(2, 6)
    with torch.autocast(DEVICE, dtype=torch.bfloat16), context:
        output = model(ids, torch.tensor([6, 4], device=DEVICE), ids)
    gradients = torch.autograd.grad(output.float().square().sum(), list(model.parameters()))
    return output.detach(), *gradients


@pytest.mark.parametrize("norm_first", [False, True])
def test_weights_cast_together_give_the_bits_of_autocast(norm_first):
    torch.manual_seed(1)
    shape = TransformerModel(
        encoder_layers=2, decoder_layers=1, width=16, heads=2, feed_forward=32, norm_first=norm_first, tie="all"
    )
    model = Transformer(shape, 99, 99).to(DEVICE)
    before = dict(model.named_parameters())
    expected = autocast_gradients(model, nullcontext())
    found = autocast_gradients(model, precision.cast_weights(model, torch.bfloat16))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(one.dtype == torch.float32 for one in found[1:])
    assert all(before[name] is weight for name, weight in model.named_parameters()) and len(before) > 20


def test_weights_are_cast_by_two_operations_and_come_back_after_an_error():
    model = Transformer(TransformerModel(encoder_layers=2, decoder_layers=1, width=16, heads=2, feed_forward=32), 99, 99)
    model.encoder.blocks[0].feed_forward.inner.weight.requires_grad_(False)
    before = dict(model.named_parameters())
    with pytest.raises(KeyError), precision.cast_weights(model, torch.bfloat16):
        cast = {name for name, weight in model.named_parameters() if weight.dtype == torch.bfloat16}
        raise KeyError
    assert "encoder.blocks.0.feed_forward.inner.weight" not in cast, "frozen weights get no gradient"
    assert "decoder.blocks.0.cross_attention.k_proj.bias" in cast and len(cast) == 2 * (2 * 6 + 10) - 1
    assert all(before[name] is weight and weight.dtype == torch.float32 for name, weight in model.named_parameters())
    model, counts = Transformer(model.settings, 99, 99).to(DEVICE), []
    for context in (nullcontext(), precision.cast_weights(model, torch.bfloat16)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            autocast_gradients(model, context)
        counts.append({event.key: event.count for event in profile.key_averages()})
    assert counts[1]["aten::_foreach_copy_"] == 2
    assert counts[1]["aten::_to_copy"] == counts[0]["aten::_to_copy"] - 2 * len(cast) - 2

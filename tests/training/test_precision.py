"""`train.precision = "auto"` is bf16 where a device gains by it; an explicit setting wins."""

import pytest
import torch
from torch import nn

from regard.models.transformer import Transformer
from regard.recipe import TransformerModel
from regard.training import precision
from regard.training.precision import choose_precision

CPU = torch.device("cpu")


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

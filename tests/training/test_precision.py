"""The precision that `train.precision` means: bf16 where a device gains by it, and what one says wins."""

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
def test_auto_is_bf16_on_a_cpu_that_has_it_for_wide_models(has, preset, expected, monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: has)
    assert choose_precision("auto", translator(preset=preset), CPU) == expected
    assert choose_precision("bf16", translator(preset=preset), CPU) == "bf16"
    assert choose_precision("fp32", translator(preset=preset), CPU) == "fp32"


def test_auto_is_bf16_on_a_gpu_and_the_vocabulary_does_not_make_a_model_wide():
    assert choose_precision("auto", nn.Linear(2, 2), torch.device("cuda")) == "bf16"
    assert precision.model_width(nn.Sequential(nn.Linear(32, 9999), nn.Linear(9999, 16))) == 32
    assert precision.model_width(nn.Embedding(2, 2)) == 0 and isinstance(precision.cpu_has_bf16(), bool)

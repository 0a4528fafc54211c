"""`train.deterministic`: deterministic algorithms while training, and only then; measured on a GPU elsewhere."""

import os

import pytest
import torch

from regard.errors import UserError
from regard.run.train import train
from regard.training.loop import TrainingLoop
from regard.training.precision import REPEATABLE, deterministic_algorithms

STEPS = {"steps": 2, "evaluate_every": 2, "save_every": 2, "log_every": 1}


def test_training_uses_deterministic_algorithms_and_restores_the_setting(tiny_settings, tmp_path, monkeypatch):
    seen, step = [], TrainingLoop.step
    monkeypatch.setattr(
        TrainingLoop,
        "step",
        lambda self, batches: (seen.append(torch.are_deterministic_algorithms_enabled()), step(self, batches))[1],
    )
    for number, deterministic in enumerate((True, True, False)):
        tiny_settings["train"].update(STEPS, deterministic=deterministic)
        train(tiny_settings, tmp_path / str(number), device="cpu")
        assert not torch.are_deterministic_algorithms_enabled()
    assert seen == [True] * 4 + [False] * 2 and REPEATABLE.items() <= os.environ.items()
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in "01")
    assert one == two


def test_an_operation_without_a_deterministic_implementation_is_refused_by_name():
    refused = pytest.raises(UserError, match=r"train\.deterministic = true: put_ does not have .*; set it to false")
    with refused, deterministic_algorithms(True):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))  # of two values for one place, either may win
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()

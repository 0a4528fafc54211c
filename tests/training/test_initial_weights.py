"""Weights that come from another model."""

import pytest

from regard.training.initial_weights import new_modules


@pytest.mark.parametrize(
    "loaded, new",
    [
        ([], ["decoder", "encoder", "output"]),
        (["encoder.first.weight", "encoder.positions.weight"], ["decoder", "output"]),
        (["encoder.first.weight"], ["decoder", "encoder.positions", "output"]),
        (["encoder.first.weight", "encoder.positions.weight", "decoder.weight", "output.weight"], ["output.bias"]),
    ],
    ids=str,
)
def test_modules_without_loaded_weights_are_named_once(loaded, new):
    names = ["encoder.first.weight", "encoder.positions.weight", "decoder.weight", "output.weight", "output.bias"]
    assert new_modules(names, set(loaded)) == new

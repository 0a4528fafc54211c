"""A recipe that trains in a second."""

import pytest

ADDITION = """
task = "translate"
[data.world]
kind = "addition"
number = 100
held_out = 10
longest = 3
tests = [3]
[tokens]
kind = "characters"
[model]
encoder_layers = 1
decoder_layers = 1
width = 16
heads = 2
feed_forward = 16
max_length = 24
[train]
steps = 2
evaluate_every = 2
save_every = 1
tokens_per_batch = 256
[decode]
beam = 1
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "add.toml"
    path.write_text(ADDITION)
    return path

"""Tiny runs of the models that predict tokens, for the logit lens and the flow view."""

import pytest

STACK = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 64}
GPT2 = {"positions": {"kind": "learned"}, "activation": "gelu_tanh", "norm_first": True, "norm_epsilon": 1e-5, "tie": True}
SHORT = {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3}
WORLD = {"world": {"number": 200, "held_out": 10}}
RECIPES = {
    "gpt": {"task": "language", "model": {**STACK, **GPT2}},
    "bert": {"task": "masked", "model": STACK},
    "post-norm gpt": {"task": "language", "model": {**STACK, "norm_first": False, "positions": {"kind": "rotary"}}},
}
TEXTS = {
    "gpt": "the goat sees",
    "bert": "the [MASK] sees the cake",
    "post-norm gpt": "the goat",
    "translator": "the goat sees the cake",
}


@pytest.fixture(scope="session")
def token_runs(tmp_path_factory, tiny_run):
    """Return runs by name: language models, a masked language model and a translator, with the text that each reads."""
    from regard.run.train import train

    folder = tmp_path_factory.mktemp("token-runs")
    settings = {"data": WORLD, "tokens": {"size": 300}, "train": SHORT}
    runs = {
        name: train({**settings, **recipe}, folder / name.replace(" ", "-"), device="cpu") for name, recipe in RECIPES.items()
    }
    return {name: (run, TEXTS[name]) for name, run in {**runs, "translator": tiny_run}.items()}

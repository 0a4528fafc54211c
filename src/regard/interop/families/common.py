"""What several families share."""

from regard.interop.config import count, number
from regard.interop.family_rules import Settings

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
LAYERS = count(most=512)
LENGTH = count(most=2**20, least=2)
SMALL = number(most=1.0)


def head_width(settings: Settings) -> int:
    return settings["width"] // settings["heads"]


def heads_divide(settings: Settings) -> str | None:
    width, heads = settings["width"], settings["heads"]
    return f"a width of {width} is not divisible by {heads} heads" if width % heads else None


EQUAL_HEADS = {"key_width": head_width, "value_width": head_width, "key_value_heads": lambda settings: settings["heads"]}
"""Heads as published: together as wide as the model, each with its own keys and values."""

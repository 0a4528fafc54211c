"""Value types and rules shared by several families."""

from regard.interop.config import integer, positive_float
from regard.interop.family_rules import FlatSettings

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
LAYERS = integer(maximum=512)
LENGTH = integer(maximum=2**20, minimum=2)
EPSILON = positive_float(maximum=1.0)


def head_width(settings: FlatSettings) -> int:
    return settings["width"] // settings["heads"]


def check_heads_divide_width(settings: FlatSettings) -> str | None:
    width, heads = settings["width"], settings["heads"]
    return f"a width of {width} is not divisible by {heads} heads" if width % heads else None


EQUAL_HEADS = {"key_width": head_width, "value_width": head_width, "key_value_heads": lambda settings: settings["heads"]}
"""Heads as published: all heads together have the model's width, and each has its own keys and values."""

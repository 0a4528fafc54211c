"""Value types and rules shared by several families."""

from collections.abc import Callable
from functools import partial

from regard.interop.config import choice, integer, positive_float
from regard.interop.family_rules import ConfigField, FlatSettings

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
ENCODER_FIELDS = (
    ConfigField("width", "hidden_size", default=768),
    ConfigField("layers", "num_hidden_layers", LAYERS, 12),
    ConfigField("heads", "num_attention_heads", default=12),
    ConfigField("feed_forward", "intermediate_size", default=3072),
    ConfigField("activation", "hidden_act", choice(ACTIVATIONS), "gelu"),
    ConfigField("norm_epsilon", "layer_norm_eps", EPSILON, 1e-12),
)
"""BERT's settings, which ViT has too."""


def head_width(settings: FlatSettings, stack: str = "") -> int:
    return int(settings[f"{stack}width"] // settings[f"{stack}heads"])


def check_heads_divide_width(settings: FlatSettings, stack: str = "") -> str | None:
    width, heads = settings[f"{stack}width"], settings[f"{stack}heads"]
    return f"a width of {width} is not divisible by {heads} heads" if width % heads else None


def equal_heads(stack: str = "") -> dict[str, Callable[[FlatSettings], int]]:
    """Return the settings of heads as published: together they have the model's width, and each has its own keys and values."""
    width = partial(head_width, stack=stack)
    return {
        f"{stack}key_width": width,
        f"{stack}value_width": width,
        f"{stack}key_value_heads": lambda settings: settings[f"{stack}heads"],
    }


EQUAL_HEADS = equal_heads()

"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, GeGLU and pre-norm; most layers see a window.

The first layer does not normalise its input: the norm of the embeddings has done so. Layers with a window rotate by a base
of their own. `local_attention` counts the positions on both sides of a token, ours those on one side and its own: 128 is a
window of 65.

Not supported: scaled rotary positions, an output without bias (`decoder_bias`), and biases in only one of the attention and the
feed-forward layers.
"""

from typing import Any

from regard.interop.config import ConfigFile, boolean, choice, integer
from regard.interop.families.bert import NO_PAIRS
from regard.interop.families.common import ACTIVATIONS, EPSILON, EQUAL_HEADS, LAYERS, LENGTH, check_heads_divide_width
from regard.interop.families.positions import ROPE_THETA, layer_types, read_windows
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    FlatSettings,
    ModelFamily,
    TensorRule,
    head_rules,
    linear_rules,
    linear_rules_by_prefix,
    read_field,
    weight_rule,
)

FULL, LOCAL = "rope_parameters.full_attention", "rope_parameters.sliding_attention"
BASE = ConfigField("positions.base", f"{FULL}.rope_theta", ROPE_THETA, 160_000.0, ("global_rope_theta",))
LOCAL_BASE = ConfigField("positions.local_base", f"{LOCAL}.rope_theta", ROPE_THETA, 10_000.0, ("local_rope_theta",))
LOCAL_ATTENTION = ConfigField("window", "local_attention", integer(), 128)
EVERY = ConfigField("window_layers", "global_attn_every_n_layers", LAYERS, 3)
GATED = {"gelu": "geglu_exact", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "silu": "swiglu", "swish": "swiglu"}


def read_layers(config: ConfigFile, settings: FlatSettings) -> FlatSettings:
    """Return our settings of windows and rotations; where `layer_types` is absent, every third layer sees everything."""
    every = read_field(EVERY, config, settings)
    window = read_field(LOCAL_ATTENTION, config, settings) // 2 + 1
    sliding = [number for number in range(settings["layers"]) if number % every]
    windows = read_windows(ConfigFile({**config.values, "sliding_window": window}, config.path), settings, sliding)
    base, local = (read_field(item, config, settings) for item in (BASE, LOCAL_BASE))
    differs = windows["window"] is not None and local != base
    return {BASE.ours: base, LOCAL_BASE.ours: local if differs else None, **windows}


def rope_by_layer_type(settings: FlatSettings) -> dict[str, Any]:
    """Return their section about rotary positions."""
    base = settings["positions.base"]
    bases = {"full_attention": base, "sliding_attention": settings["positions.local_base"] or base}
    return {name: {"rope_type": "default", "rope_theta": theta} for name, theta in bases.items()}


def chunks(theirs: str, *ours: str) -> list[TensorRule]:
    """Return the rules of layers of ours that are one of theirs, in this order."""
    prefix, count = "encoder.stack.blocks.{i}.", len(ours)
    return [
        rule
        for number, name in enumerate(ours)
        for rule in linear_rules(f"{prefix}{name}", f"layers.{{i}}.{theirs}", chunk=(number, count))
    ]


BLOCK = {
    "self_attention.out_proj": "attn.Wo",
    "self_residual.norm": "attn_norm",
    "feed_forward.outer": "mlp.Wo",
    "feed_forward_residual.norm": "mlp_norm",
}
TRANSFORM = head_rules(("head.transform", "head.dense"), ("head.norm", "head.norm"), ("output", "classifier"))
TRANSFORMED = {"head_transform": True}

MODERNBERT = ModelFamily(
    model_type="modernbert",
    prefix="model.",
    fields=(
        ConfigField("width", "hidden_size", default=768),
        ConfigField("layers", "num_hidden_layers", LAYERS, 22),
        ConfigField("heads", "num_attention_heads", default=12),
        ConfigField("feed_forward", "intermediate_size", default=1152),
        ConfigField("activation", "hidden_activation", choice(GATED), "gelu"),
        ConfigField("max_length", "max_position_embeddings", LENGTH, 8192),
        ConfigField("norm_epsilon", "norm_eps", EPSILON, 1e-5),
        ConfigField("norm", "norm_bias", boolean(true="layer", false="layer_no_bias"), False),
        ConfigField("bias", "attention_bias", boolean(), False),
        ConfigField("bias", "mlp_bias", boolean(), False),
        ConfigField("head_bias", "classifier_bias", boolean(), False),
        ConfigField("head_activation", "classifier_activation", choice(ACTIVATIONS), "gelu"),
        ConfigField("pool", "classifier_pooling", choice({"cls": "first_token", "mean": "mean"}), "cls"),
    ),
    constant={
        "kind": "transformer",
        "norm_first": True,
        "first_norm": False,
        "residual": True,
        "scale_scores": True,
        "embedding_norm": True,
        "positions.kind": "rotary",
        "segments": 0,
    },
    derived=EQUAL_HEADS,
    problem=check_heads_divide_width,
    computed=read_layers,
    required={
        "decoder_bias": (True,),
        f"{FULL}.rope_type": ("default",),
        f"{LOCAL}.rope_type": ("default",),
        "rope_scaling.rope_type": ("default",),
        "rope_scaling.type": ("default",),
    },
    written={
        "rope_parameters": rope_by_layer_type,
        "layer_types": layer_types,
        "local_attention": lambda settings: 2 * ((settings["window"] or 65) - 1),
        "decoder_bias": lambda settings: True,
    },
    rules=(
        weight_rule("encoder.token_embedding", "embeddings.tok_embeddings"),
        *linear_rules("encoder.stack.embedding_norm", "embeddings.norm"),
        *chunks("attn.Wqkv", "self_attention.q_proj", "self_attention.k_proj", "self_attention.v_proj"),
        *chunks("mlp.Wi", "feed_forward.gate", "feed_forward.inner"),
        *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "layers.{i}.", BLOCK),
        *linear_rules("encoder.stack.norm", "final_norm"),
    ),
    architectures={
        "ModernBertForMaskedLM": Architecture(
            "masked",
            (
                *head_rules(("transform", "head.dense"), ("norm", "head.norm")),
                TensorRule("output.bias", "decoder.bias", head=True),
            ),
            omitted=NO_PAIRS,
        ),
        "ModernBertForSequenceClassification": Architecture("classify", TRANSFORM, TRANSFORMED),
        "ModernBertForTokenClassification": Architecture("tag", TRANSFORM, TRANSFORMED),
        "ModernBertForQuestionAnswering": Architecture("answer", TRANSFORM, TRANSFORMED),
        "ModernBertModel": Architecture("encode", bare=True),
    },
    bare="ModernBertModel",
    embedding="embeddings.tok_embeddings.weight",
    output="decoder.weight",
    tie_default=True,
    head_tensors=(r"head\..*", r"decoder\..*", r"classifier\..*"),
)

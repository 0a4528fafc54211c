"""Gemma (Mesnard et al. 2024), Gemma 2 (Riviere et al. 2024) and the text models of Gemma 3 (Kamath et al. 2025).

Llama with GeGLU, RMS norms times 1 + weight, and scaled embeddings; from Gemma 2 on with norms before and after each sub-layer,
and windows in many layers. Gemma 2 caps scores and logits; Gemma 3 normalises queries and keys, and rotates them by another base
in layers with a window.

Not supported: attention in both directions, biases, models that read images (`gemma3`).
"""

from dataclasses import replace
from typing import Any

from regard.interop.config import ConfigFile, choice, integer, positive_float
from regard.interop.families.llama import BLOCK, FIELDS, LLAMA
from regard.interop.families.positions import ROPE_THETA, layer_types, read_rotary, read_windows, rope_parameters
from regard.interop.families.qwen import HEAD_NORMS
from regard.interop.family_rules import ConfigField, FlatSettings, linear_rules_by_prefix, read_field, weight_rule

ACTIVATIONS = choice({"gelu_pytorch_tanh": "geglu", "gelu": "geglu", "gelu_new": "geglu", "silu": "swiglu", "swish": "swiglu"})
"""`gelu` was published by mistake: transformers takes it as the approximation by tanh, too."""
DEFAULTS: dict[str, Any] = {
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "head_dim": 256,
    "intermediate_size": 24576,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
}
DEFAULTS_2 = DEFAULTS | {"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "intermediate_size": 9216}
CAP = positive_float()
Caps = dict[str, tuple[str, float | None]]
"""Their name and default of each of our caps."""
SCALE_WIDTH, PATTERN = integer(), integer()
WINDOW = 4096


def gemma_fields(defaults: dict[str, Any], key_value_heads: int) -> tuple[ConfigField, ...]:
    fields = (replace(item, default=defaults.get(item.theirs, item.default)) for item in FIELDS)
    return (
        *(replace(item, type=ACTIVATIONS) if item.ours == "activation" else item for item in fields),
        ConfigField("key_value_heads", "num_key_value_heads", default=key_value_heads),
    )


def read_scores(config: ConfigFile, settings: FlatSettings, caps: Caps) -> FlatSettings:
    """Return our settings of scaled and capped numbers. Where a cap is absent, its default counts; null is no cap."""
    divisor = config.get("query_pre_attn_scalar")
    width = 256 if divisor is None else config.convert("query_pre_attn_scalar", divisor, SCALE_WIDTH)
    found = {"scale_width": None if width == settings["key_width"] else width}
    for ours, (theirs, default) in caps.items():
        cap = config.values.get(theirs, default)
        found[ours] = None if cap is None else config.convert(theirs, cap, CAP)
    return found


def read_gemma2(config: ConfigFile, settings: FlatSettings) -> FlatSettings:
    """Return our settings of positions, windows, which every other layer has, from the first, and capped scores."""
    windows = read_windows(config, settings, range(0, settings["layers"], 2), WINDOW)
    caps: Caps = {"score_cap": ("attn_logit_softcapping", 50.0), "logit_cap": ("final_logit_softcapping", 30.0)}
    return read_rotary(config, settings) | windows | read_scores(config, settings, caps)


def read_gemma3(config: ConfigFile, settings: FlatSettings) -> FlatSettings:
    """Return our settings of positions, windows, which all layers but every sixth have, and the scale of scores."""
    rotary = read_rotary(config, settings, "rope_parameters.full_attention", theta=1e6)
    sliding = "rope_parameters.sliding_attention"
    if (kind := config.get(f"{sliding}.rope_type")) not in (None, "default"):
        raise config.error(f"{sliding}.rope_type", kind, "is not supported; should be default")
    item = ConfigField("positions.local_base", f"{sliding}.rope_theta", ROPE_THETA, 1e4, aliases=("rope_local_base_freq",))
    base = read_field(item, config, settings)
    same = base == rotary["positions.base"] and rotary["positions.scaling.kind"] == "none"
    pattern = config.get("sliding_window_pattern")
    pattern = 6 if pattern is None else config.convert("sliding_window_pattern", pattern, PATTERN)
    windows = read_windows(config, settings, [i for i in range(settings["layers"]) if (i + 1) % pattern], WINDOW)
    scores = read_scores(config, settings, {"logit_cap": ("final_logit_softcapping", None)})
    return rotary | {item.ours: None if same else base} | windows | scores


def rope_by_layer_type(settings: FlatSettings) -> dict[str, Any]:
    """Return Gemma 3's section about rotary positions."""
    local = settings["positions.local_base"] or settings["positions.base"]
    return {"full_attention": rope_parameters(settings), "sliding_attention": {"rope_type": "default", "rope_theta": local}}


GEMMA = replace(
    LLAMA,
    model_type="gemma",
    fields=gemma_fields(DEFAULTS, 16),
    constant={**LLAMA.constant, "norm": "zero_centered_rms", "bias": False, "scale_embedding": True},
    required={**LLAMA.required, "attention_bias": (False,), "use_bidirectional_attention": (False,)},
    tie_default=True,
    architectures={
        "GemmaForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "GemmaModel": LLAMA.architectures["LlamaModel"],
    },
    bare="GemmaModel",
)
SANDWICH = BLOCK | {
    "self_residual.output_norm": "post_attention_layernorm",
    "feed_forward_residual.norm": "pre_feedforward_layernorm",
    "feed_forward_residual.output_norm": "post_feedforward_layernorm",
}
GEMMA2 = replace(
    GEMMA,
    model_type="gemma2",
    fields=tuple(
        replace(item, theirs="hidden_activation") if item.ours == "activation" else item for item in gemma_fields(DEFAULTS_2, 4)
    ),
    constant={**GEMMA.constant, "sandwich_norm": True},
    computed=read_gemma2,
    written={
        **LLAMA.written,
        "sliding_window": lambda settings: settings["window"],
        "layer_types": layer_types,
        "query_pre_attn_scalar": lambda settings: settings["scale_width"] or settings["key_width"],
        "attn_logit_softcapping": lambda settings: settings["score_cap"],
        "final_logit_softcapping": lambda settings: settings["logit_cap"],
    },
    rules=(
        weight_rule("token_embedding", "embed_tokens"),
        *linear_rules_by_prefix("decoder.blocks.{i}.", "layers.{i}.", SANDWICH | HEAD_NORMS),
        weight_rule("decoder.norm", "norm"),
    ),
    architectures={
        "Gemma2ForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "Gemma2Model": LLAMA.architectures["LlamaModel"],
    },
    bare="Gemma2Model",
)
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    fields=tuple(replace(item, default=131_072) if item.ours == "max_length" else item for item in GEMMA2.fields),
    constant={**GEMMA2.constant, "qk_norm": True},
    computed=read_gemma3,
    required={**GEMMA.required, "attn_logit_softcapping": (None,)},
    written={
        **{name: rule for name, rule in GEMMA2.written.items() if name != "attn_logit_softcapping"},
        "rope_parameters": rope_by_layer_type,
    },
    architectures={
        "Gemma3ForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "Gemma3TextModel": LLAMA.architectures["LlamaModel"],
    },
    bare="Gemma3TextModel",
)

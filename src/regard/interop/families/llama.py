"""Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023): rotary positions, RMS norm, SwiGLU, grouped-query attention.

Not supported: rotary positions scaled by other rules than `linear` and `llama3` (Llama 3.1).
"""

from dataclasses import replace

from regard.interop.config import ConfigFile, boolean, choice
from regard.interop.families.common import EPSILON, LAYERS, LENGTH, head_width
from regard.interop.families.positions import read_rotary, read_windows, rope_parameters
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    FlatSettings,
    ModelFamily,
    linear_rules_by_prefix,
    weight_rule,
)

BLOCK = {
    "self_attention.q_proj": "self_attn.q_proj",
    "self_attention.k_proj": "self_attn.k_proj",
    "self_attention.v_proj": "self_attn.v_proj",
    "self_attention.out_proj": "self_attn.o_proj",
    "self_residual.norm": "input_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.inner": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
    "feed_forward_residual.norm": "post_attention_layernorm",
}
FIELDS = (
    ConfigField("width", "hidden_size", default=4096),
    ConfigField("layers", "num_hidden_layers", LAYERS, 32),
    ConfigField("heads", "num_attention_heads", default=32),
    ConfigField("key_width", "head_dim", default=head_width),
    ConfigField("feed_forward", "intermediate_size", default=11008),
    ConfigField(
        "activation",
        "hidden_act",
        choice({"silu": "swiglu", "swish": "swiglu", "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu"}),
        "silu",
    ),
    ConfigField("norm_epsilon", "rms_norm_eps", EPSILON, 1e-6),
    ConfigField("max_length", "max_position_embeddings", LENGTH, 2048),
)

LLAMA = ModelFamily(
    model_type="llama",
    prefix="model.",
    fields=(
        *FIELDS,
        ConfigField("key_value_heads", "num_key_value_heads", default=lambda settings: settings["heads"]),
        ConfigField("bias", "attention_bias", boolean(), False),
        ConfigField("bias", "mlp_bias", boolean(), False),
    ),
    constant={
        "kind": "transformer",
        "norm": "rms",
        "norm_first": True,
        "residual": True,
        "scale_scores": True,
        "positions.kind": "rotary",
    },
    derived={"value_width": lambda settings: settings["key_width"]},
    computed=read_rotary,
    required={
        "pretraining_tp": (1,),
        "partial_rotary_factor": (1.0,),
        "rope_parameters.partial_rotary_factor": (1.0,),
    },
    written={"rope_parameters": rope_parameters},
    rules=(
        weight_rule("token_embedding", "embed_tokens"),
        *linear_rules_by_prefix("decoder.blocks.{i}.", "layers.{i}.", BLOCK),
        weight_rule("decoder.norm", "norm"),
    ),
    architectures={
        "LlamaForCausalLM": Architecture("language", (weight_rule("output", "lm_head", head=True),)),
        "LlamaModel": Architecture("language", bare=True),
    },
    bare="LlamaModel",
    embedding="embed_tokens.weight",
    output="lm_head.weight",
    tie_values=(True, False),
    tie_default=False,
    ignored_tensors=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)


def read_mistral(config: ConfigFile, settings: FlatSettings) -> FlatSettings:
    """Return our settings of rotary positions and of the window, which all layers have."""
    return read_rotary(config, settings) | read_windows(config, settings, range(settings["layers"]), default=4096)


MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    fields=(*FIELDS, ConfigField("key_value_heads", "num_key_value_heads", default=8)),
    constant={**LLAMA.constant, "bias": False},
    computed=read_mistral,
    written={**LLAMA.written, "sliding_window": lambda settings: settings["window"]},
    architectures={
        "MistralForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "MistralModel": LLAMA.architectures["LlamaModel"],
    },
    bare="MistralModel",
)

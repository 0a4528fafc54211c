"""Llama (Touvron et al. 2023) and Mistral (Jiang et al. 2023): rotary positions, RMS norm, SwiGLU, grouped-query attention.

Not supported: scaled rotary positions (`rope_scaling`), Mistral's sliding window.
"""

from dataclasses import replace

from regard.interop.config import boolean, choice, positive_float
from regard.interop.families.common import EPSILON, LAYERS, LENGTH, head_width
from regard.interop.family_rules import Architecture, ConfigField, ModelFamily, linear_rules_by_prefix, weight_rule

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
    ConfigField("positions.base", "rope_parameters.rope_theta", positive_float(maximum=1e12), 10_000.0, aliases=("rope_theta",)),
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
    required={
        "rope_parameters.rope_type": ("default",),
        "rope_scaling.type": ("default",),
        "rope_scaling.rope_type": ("default",),
        "pretraining_tp": (1,),
        "partial_rotary_factor": (1.0,),
        "rope_parameters.partial_rotary_factor": (1.0,),
    },
    written={"rope_parameters.rope_type": lambda settings: "default", "rope_theta": lambda settings: settings["positions.base"]},
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

MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    fields=(*FIELDS, ConfigField("key_value_heads", "num_key_value_heads", default=8)),
    constant={**LLAMA.constant, "bias": False},
    required={**LLAMA.required, "sliding_window": (None,)},
    written={**LLAMA.written, "sliding_window": lambda settings: None},
    architectures={
        "MistralForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "MistralModel": LLAMA.architectures["LlamaModel"],
    },
    bare="MistralModel",
)

"""Llama (Touvron et al. 2023) and what is built like it: rotary positions, RMS norm, SwiGLU, grouped heads.

What does not fit: other rotations than the plain one (`rope_scaling`), Mistral's sliding window.
"""

from dataclasses import replace

from regard.interop.config import flag, number, words
from regard.interop.families.common import LAYERS, LENGTH, SMALL, head_width
from regard.interop.family_rules import Architecture, Family, Field, layers, tensor

BLOCK = {
    "self_attention.to_q": "self_attn.q_proj",
    "self_attention.to_k": "self_attn.k_proj",
    "self_attention.to_v": "self_attn.v_proj",
    "self_attention.to_out": "self_attn.o_proj",
    "around_self.norm": "input_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.inner": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
    "around_feed_forward.norm": "post_attention_layernorm",
}
FIELDS = (
    Field("width", "hidden_size", default=4096),
    Field("layers", "num_hidden_layers", LAYERS, 32),
    Field("heads", "num_attention_heads", default=32),
    Field("key_width", "head_dim", default=head_width),
    Field("feed_forward", "intermediate_size", default=11008),
    Field(
        "activation",
        "hidden_act",
        words({"silu": "swiglu", "swish": "swiglu", "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu"}),
        "silu",
    ),
    Field("norm_epsilon", "rms_norm_eps", SMALL, 1e-6),
    Field("max_length", "max_position_embeddings", LENGTH, 2048),
    Field("positions.base", "rope_parameters.rope_theta", number(most=1e12), 10_000.0, older=("rope_theta",)),
)

LLAMA = Family(
    model_type="llama",
    prefix="model.",
    fields=(
        *FIELDS,
        Field("key_value_heads", "num_key_value_heads", default=lambda settings: settings["heads"]),
        Field("bias", "attention_bias", flag(), False),
        Field("bias", "mlp_bias", flag(), False),
    ),
    fixed={
        "kind": "transformer",
        "norm": "rms",
        "norm_first": True,
        "residual": True,
        "scale_scores": True,
        "positions.kind": "rotary",
    },
    derived={"value_width": lambda settings: settings["key_width"]},
    demands={
        "rope_parameters.rope_type": ("default",),
        "rope_scaling.type": ("default",),
        "rope_scaling.rope_type": ("default",),
        "pretraining_tp": (1,),
        "partial_rotary_factor": (1.0,),
        "rope_parameters.partial_rotary_factor": (1.0,),
    },
    writes={"rope_parameters.rope_type": lambda settings: "default", "rope_theta": lambda settings: settings["positions.base"]},
    rules=(tensor("words", "embed_tokens"), *layers("decoder.blocks.{i}.", "layers.{i}.", BLOCK), tensor("decoder.norm", "norm")),
    architectures={
        "LlamaForCausalLM": Architecture("language", (tensor("output", "lm_head", head=True),)),
        "LlamaModel": Architecture("language", bare=True),
    },
    bare="LlamaModel",
    embedding="embed_tokens.weight",
    output="lm_head.weight",
    ties=(True, False),
    tied=False,
    ignored=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)

MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    fields=(*FIELDS, Field("key_value_heads", "num_key_value_heads", default=8)),
    fixed={**LLAMA.fixed, "bias": False},
    demands={**LLAMA.demands, "sliding_window": (None,)},
    writes={**LLAMA.writes, "sliding_window": lambda settings: None},
    architectures={
        "MistralForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "MistralModel": LLAMA.architectures["LlamaModel"],
    },
    bare="MistralModel",
)

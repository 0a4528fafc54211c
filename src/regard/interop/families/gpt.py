"""GPT (Radford et al. 2018) and GPT-2 (2019).

Their weight matrices are transposed (Conv1D), and queries, keys and values are one matrix.
"""

from typing import Any

from regard.interop.config import boolean, choice, integer
from regard.interop.families.common import ACTIVATIONS, EPSILON, EQUAL_HEADS, LAYERS, LENGTH, check_heads_divide_width
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    FlatSettings,
    ModelFamily,
    TensorRule,
    linear_rules,
    linear_rules_by_prefix,
    weight_rule,
)


def four_times_width(settings: FlatSettings) -> int:
    return 4 * int(settings["width"])


def block_rules() -> list[TensorRule]:
    ours, theirs = "decoder.blocks.{i}.", "h.{i}."
    qkv = [
        rule
        for k, name in enumerate("qkv")
        for rule in linear_rules(f"{ours}self_attention.{name}_proj", f"{theirs}attn.c_attn", transposed=True, chunk=(k, 3))
    ]
    matrices = {"self_attention.out_proj": "attn.c_proj", "feed_forward.inner": "mlp.c_fc", "feed_forward.outer": "mlp.c_proj"}
    norms = {"self_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}
    return [
        *qkv,
        *linear_rules_by_prefix(ours, theirs, matrices, transposed=True),
        *linear_rules_by_prefix(ours, theirs, norms),
    ]


FIELDS = (
    ConfigField("width", "n_embd", default=768),
    ConfigField("layers", "n_layer", LAYERS, 12),
    ConfigField("heads", "n_head", default=12),
    ConfigField("norm_epsilon", "layer_norm_epsilon", EPSILON, 1e-5),
)
CONSTANT = {"kind": "transformer", "norm": "layer", "bias": True, "residual": True, "positions.kind": "learned"}
LANGUAGE = Architecture("language", (weight_rule("output", "lm_head", head=True),))
COMMON: dict[str, Any] = dict(
    prefix="transformer.",
    derived=EQUAL_HEADS,
    problem=check_heads_divide_width,
    output="lm_head.weight",
    tie_values=(True, False),
    tie_default=True,
    ignored_tensors=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)

GPT2 = ModelFamily(
    model_type="gpt2",
    fields=(
        *FIELDS,
        ConfigField("feed_forward", "n_inner", default=four_times_width),
        ConfigField("activation", "activation_function", choice({"gelu_new": "gelu_tanh", **ACTIVATIONS}), "gelu_new"),
        ConfigField("max_length", "n_positions", LENGTH, 1024),
        ConfigField("scale_scores", "scale_attn_weights", boolean(), True),
    ),
    constant={**CONSTANT, "norm_first": True},
    required={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    rules=(
        weight_rule("token_embedding", "wte"),
        weight_rule("decoder.positions.table", "wpe"),
        *block_rules(),
        *linear_rules("decoder.norm", "ln_f"),
    ),
    architectures={"GPT2LMHeadModel": LANGUAGE, "GPT2Model": Architecture("language", bare=True)},
    bare="GPT2Model",
    embedding="wte.weight",
    **COMMON,
)

GPT = ModelFamily(
    model_type="openai-gpt",
    fields=(
        *FIELDS,
        ConfigField("activation", "afn", choice({"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}), "gelu"),
        ConfigField("max_length", "n_positions", integer(maximum=2**15, minimum=2), 512),
    ),
    constant={**CONSTANT, "norm_first": False, "scale_scores": True},
    rules=(
        weight_rule("token_embedding", "tokens_embed"),
        weight_rule("decoder.positions.table", "positions_embed"),
        *block_rules(),
    ),
    architectures={"OpenAIGPTLMHeadModel": LANGUAGE, "OpenAIGPTModel": Architecture("language", bare=True)},
    bare="OpenAIGPTModel",
    embedding="tokens_embed.weight",
    **{**COMMON, "derived": {**EQUAL_HEADS, "feed_forward": four_times_width}},
)

"""GPT (Radford et al. 2018) and GPT-2 (2019). Their matrices stand the other way round (Conv1D), and three are one."""

from typing import Any

from regard.interop.config import count, flag, words
from regard.interop.families.common import ACTIVATIONS, EQUAL_HEADS, LAYERS, LENGTH, SMALL, heads_divide
from regard.interop.family_rules import Architecture, Family, Field, Rule, Settings, layer, layers, tensor


def four_widths(settings: Settings) -> int:
    return 4 * settings["width"]


def block(norm_of_self: str = "ln_1", norm_of_feed_forward: str = "ln_2") -> list[Rule]:
    ours, theirs = "decoder.blocks.{i}.", "h.{i}."
    fused = [
        rule
        for k, name in enumerate("qkv")
        for rule in layer(f"{ours}self_attention.to_{name}", f"{theirs}attn.c_attn", transposed=True, part=(k, 3))
    ]
    matrices = {"self_attention.to_out": "attn.c_proj", "feed_forward.inner": "mlp.c_fc", "feed_forward.outer": "mlp.c_proj"}
    norms = {"around_self.norm": norm_of_self, "around_feed_forward.norm": norm_of_feed_forward}
    return [*fused, *layers(ours, theirs, matrices, transposed=True), *layers(ours, theirs, norms)]


FIELDS = (
    Field("width", "n_embd", default=768),
    Field("layers", "n_layer", LAYERS, 12),
    Field("heads", "n_head", default=12),
    Field("norm_epsilon", "layer_norm_epsilon", SMALL, 1e-5),
)
FIXED = {"kind": "transformer", "norm": "layer", "bias": True, "residual": True, "positions.kind": "learned"}
LANGUAGE = Architecture("language", (tensor("output", "lm_head", head=True),))
COMMON: dict[str, Any] = dict(
    prefix="transformer.",
    derived=EQUAL_HEADS,
    check=heads_divide,
    output="lm_head.weight",
    ties=(True, False),
    tied=True,
    ignored=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)

GPT2 = Family(
    model_type="gpt2",
    fields=(
        *FIELDS,
        Field("feed_forward", "n_inner", default=four_widths),
        Field("activation", "activation_function", words({"gelu_new": "gelu_tanh", **ACTIVATIONS}), "gelu_new"),
        Field("max_length", "n_positions", LENGTH, 1024),
        Field("scale_scores", "scale_attn_weights", flag(), True),
    ),
    fixed={**FIXED, "norm_first": True},
    demands={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    rules=(tensor("words", "wte"), tensor("decoder.positions.table", "wpe"), *block(), *layer("decoder.norm", "ln_f")),
    architectures={"GPT2LMHeadModel": LANGUAGE, "GPT2Model": Architecture("language", bare=True)},
    bare="GPT2Model",
    embedding="wte.weight",
    **COMMON,
)

GPT = Family(
    model_type="openai-gpt",
    fields=(
        *FIELDS,
        Field("activation", "afn", words({"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}), "gelu"),
        Field("max_length", "n_positions", count(most=2**15, least=2), 512),
    ),
    fixed={**FIXED, "norm_first": False, "scale_scores": True},
    rules=(tensor("words", "tokens_embed"), tensor("decoder.positions.table", "positions_embed"), *block()),
    architectures={"OpenAIGPTLMHeadModel": LANGUAGE, "OpenAIGPTModel": Architecture("language", bare=True)},
    bare="OpenAIGPTModel",
    embedding="tokens_embed.weight",
    **{**COMMON, "derived": {**EQUAL_HEADS, "feed_forward": four_widths}},
)

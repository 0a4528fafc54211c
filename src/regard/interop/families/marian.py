"""Marian (Junczys-Dowmunt et al. 2018), as used by OPUS-MT: the 2017 Transformer with all sines before all cosines.

Not supported: different heads or feed-forward widths in encoder and decoder, two vocabularies.
"""

from regard.interop.config import boolean, choice, integer
from regard.interop.families.common import ACTIVATIONS, EQUAL_HEADS, LAYERS, check_heads_divide_width
from regard.interop.family_rules import Architecture, ConfigField, ModelFamily, TensorRule, linear_rules_by_prefix, weight_rule

BLOCK = {
    "self_attention.q_proj": "self_attn.q_proj",
    "self_attention.k_proj": "self_attn.k_proj",
    "self_attention.v_proj": "self_attn.v_proj",
    "self_attention.out_proj": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
CROSS = {
    "cross_attention.q_proj": "encoder_attn.q_proj",
    "cross_attention.k_proj": "encoder_attn.k_proj",
    "cross_attention.v_proj": "encoder_attn.v_proj",
    "cross_attention.out_proj": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
}

MARIAN = ModelFamily(
    model_type="marian",
    prefix="model.",
    fields=(
        ConfigField("width", "d_model", default=1024),
        ConfigField("encoder_layers", "encoder_layers", LAYERS, 12),
        ConfigField("decoder_layers", "decoder_layers", LAYERS, 12),
        ConfigField("heads", "encoder_attention_heads", default=16),
        ConfigField("heads", "decoder_attention_heads", default=16),
        ConfigField("feed_forward", "encoder_ffn_dim", default=4096),
        ConfigField("feed_forward", "decoder_ffn_dim", default=4096),
        ConfigField("activation", "activation_function", choice(ACTIVATIONS), "gelu"),
        ConfigField("max_length", "max_position_embeddings", integer(maximum=2**15, minimum=2), 1024),
        ConfigField("scale_embedding", "scale_embedding", boolean(), False),
        ConfigField("tie", "share_encoder_decoder_embeddings", boolean(true="all", false="target"), True),
    ),
    constant={
        "kind": "transformer",
        "norm": "layer",
        "norm_epsilon": 1e-5,
        "norm_first": False,
        "bias": True,
        "residual": True,
        "scale_scores": True,
        "scale_output": False,
        "positions.kind": "sinusoidal",
        "positions.base": 10_000.0,
        "positions.sines_first": True,
    },
    derived=EQUAL_HEADS,
    problem=check_heads_divide_width,
    required={"tie_word_embeddings": (True,), "is_encoder_decoder": (True,), "is_decoder": (False,)},
    rules=(
        weight_rule("source_embedding.table", "shared", when=("tie", ("all",))),
        weight_rule("source_embedding.table", "encoder.embed_tokens", when=("tie", ("target",))),
        weight_rule("target_embedding.table", "decoder.embed_tokens", when=("tie", ("target",))),
        *linear_rules_by_prefix("encoder.blocks.{i}.", "encoder.layers.{i}.", BLOCK),
        *linear_rules_by_prefix("decoder.blocks.{i}.", "decoder.layers.{i}.", BLOCK | CROSS),
    ),
    architectures={
        "MarianMTModel": Architecture(
            "translate", (TensorRule("output.bias", "final_logits_bias", leading_ones=1, head=True),), {"output_bias": True}
        ),
        "MarianModel": Architecture("translate", settings={"output_bias": False}, bare=True),
    },
    bare="MarianModel",
    embedding="shared.weight",
    output="lm_head.weight",
    embedding_aliases=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ignored_tensors=(r"(encoder|decoder)\.embed_positions\.weight",),
    decoder_start="decoder_start_token_id",
    suppressed=("pad_token_id",),
)

"""Marian (Junczys-Dowmunt et al. 2018), as OPUS-MT's models are: the 2017 Transformer, its sinusoids in halves.

What does not fit: encoders and decoders of different heads or feed-forward widths, two vocabularies.
"""

from regard.interop.config import count, flag, words
from regard.interop.families.common import ACTIVATIONS, EQUAL_HEADS, LAYERS, heads_divide
from regard.interop.family_rules import Architecture, Family, Field, Rule, layers, tensor

BLOCK = {
    "self_attention.to_q": "self_attn.q_proj",
    "self_attention.to_k": "self_attn.k_proj",
    "self_attention.to_v": "self_attn.v_proj",
    "self_attention.to_out": "self_attn.out_proj",
    "around_self.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "around_feed_forward.norm": "final_layer_norm",
}
CROSS = {
    "cross_attention.to_q": "encoder_attn.q_proj",
    "cross_attention.to_k": "encoder_attn.k_proj",
    "cross_attention.to_v": "encoder_attn.v_proj",
    "cross_attention.to_out": "encoder_attn.out_proj",
    "around_cross.norm": "encoder_attn_layer_norm",
}

MARIAN = Family(
    model_type="marian",
    prefix="model.",
    fields=(
        Field("width", "d_model", default=1024),
        Field("encoder_layers", "encoder_layers", LAYERS, 12),
        Field("decoder_layers", "decoder_layers", LAYERS, 12),
        Field("heads", "encoder_attention_heads", default=16),
        Field("heads", "decoder_attention_heads", default=16),
        Field("feed_forward", "encoder_ffn_dim", default=4096),
        Field("feed_forward", "decoder_ffn_dim", default=4096),
        Field("activation", "activation_function", words(ACTIVATIONS), "gelu"),
        Field("max_length", "max_position_embeddings", count(most=2**15, least=2), 1024),
        Field("scale_embedding", "scale_embedding", flag(), False),
        Field("tie", "share_encoder_decoder_embeddings", flag(yes="all", no="target"), True),
    ),
    fixed={
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
        "positions.halves": True,
    },
    derived=EQUAL_HEADS,
    check=heads_divide,
    demands={"tie_word_embeddings": (True,), "is_encoder_decoder": (True,), "is_decoder": (False,)},
    rules=(
        tensor("source_embedding.table", "shared", when=("tie", ("all",))),
        tensor("source_embedding.table", "encoder.embed_tokens", when=("tie", ("target",))),
        tensor("target_embedding.table", "decoder.embed_tokens", when=("tie", ("target",))),
        *layers("encoder.blocks.{i}.", "encoder.layers.{i}.", BLOCK),
        *layers("decoder.blocks.{i}.", "decoder.layers.{i}.", BLOCK | CROSS),
    ),
    architectures={
        "MarianMTModel": Architecture(
            "translate", (Rule("output.bias", "final_logits_bias", flat=1, head=True),), {"output_bias": True}
        ),
        "MarianModel": Architecture("translate", settings={"output_bias": False}, bare=True),
    },
    bare="MarianModel",
    embedding="shared.weight",
    output="lm_head.weight",
    copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ignored=(r"(encoder|decoder)\.embed_positions\.weight",),
    begin="decoder_start_token_id",
    never=("pad_token_id",),
)

"""T5 (Raffel et al. 2020): v1.0 (ReLU, one table of word vectors) and v1.1 (gated GELU, the output its own).

Whether the output is its own is seen from the tensors, as `transformers` 5 does; whether it is scaled, from the settings.
"""

from regard.interop.config import count, flag, words
from regard.interop.families.common import LAYERS, SMALL
from regard.interop.family_rules import Architecture, Family, Field, Rule, Settings, tensor

ATTENTION = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out": "o"}
GATED = ("geglu", "swiglu")
PLAIN = ("relu", "gelu", "silu")


def stack(name: str, feed_forward: int) -> list[Rule]:
    """The rules of the encoder or the decoder, whose feed-forward layer is the last of so many."""
    ours, theirs = f"{name}.blocks.{{i}}.", f"{name}.block.{{i}}.layer."
    last = f"{theirs}{feed_forward}.DenseReluDense."
    rules = [
        tensor(f"{name}.positions.table", f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        *(tensor(f"{ours}self_attention.{mine}", f"{theirs}0.SelfAttention.{other}") for mine, other in ATTENTION.items()),
        tensor(f"{ours}around_self.norm", f"{theirs}0.layer_norm"),
        tensor(f"{ours}feed_forward.inner", f"{last}wi", when=("activation", PLAIN)),
        tensor(f"{ours}feed_forward.gate", f"{last}wi_0", when=("activation", GATED)),
        tensor(f"{ours}feed_forward.inner", f"{last}wi_1", when=("activation", GATED)),
        tensor(f"{ours}feed_forward.outer", f"{last}wo"),
        tensor(f"{ours}around_feed_forward.norm", f"{theirs}{feed_forward}.layer_norm"),
        tensor(f"{name}.norm", f"{name}.final_layer_norm"),
    ]
    if feed_forward == 2:
        cross = f"{theirs}1.EncDecAttention."
        rules += [tensor(f"{ours}cross_attention.{mine}", f"{cross}{other}") for mine, other in ATTENTION.items()]
        rules.append(tensor(f"{ours}around_cross.norm", f"{theirs}1.layer_norm"))
    return rules


def near_and_far(settings: Settings) -> str | None:
    """Half the buckets count near distances one by one; the others must reach farther."""
    near, far = settings["positions.buckets"] // 2, settings["positions.max_distance"]
    return None if near < far else f"relative_attention_max_distance = {far}: should be more than half the buckets, {near}"


T5 = Family(
    model_type="t5",
    fields=(
        Field("width", "d_model", default=512),
        Field("key_width", "d_kv", default=64),
        Field("feed_forward", "d_ff", default=2048),
        Field("encoder_layers", "num_layers", LAYERS, 6),
        Field("decoder_layers", "num_decoder_layers", LAYERS, lambda settings: settings["encoder_layers"]),
        Field("heads", "num_heads", default=8),
        Field("positions.buckets", "relative_attention_num_buckets", count(most=2**12, least=4), 32),
        Field("positions.max_distance", "relative_attention_max_distance", count(most=2**20, least=2), 128),
        Field("norm_epsilon", "layer_norm_epsilon", SMALL, 1e-6),
        Field(
            "activation",
            "feed_forward_proj",
            words({"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "geglu", "gated-silu": "swiglu"}),
            "relu",
        ),
        Field("max_length", "n_positions", count(most=2**20, least=2), 512),
        Field("scale_output", "scale_decoder_outputs", flag(), True, older=("tie_word_embeddings",)),
    ),
    fixed={
        "kind": "transformer",
        "norm": "rms",
        "norm_first": True,
        "bias": False,
        "residual": True,
        "scale_scores": False,
        "scale_embedding": False,
        "output_bias": False,
        "positions.kind": "relative",
    },
    derived={"value_width": lambda settings: settings["key_width"], "key_value_heads": lambda settings: settings["heads"]},
    demands={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    writes={"tie_word_embeddings": lambda settings: settings["scale_output"]},
    check=near_and_far,
    rules=(tensor("source_embedding.table", "shared"), *stack("encoder", 1), *stack("decoder", 2)),
    architectures={
        "T5ForConditionalGeneration": Architecture("translate", (tensor("output", "lm_head", head=True),)),
        "T5Model": Architecture("translate", bare=True),
    },
    bare="T5Model",
    embedding="shared.weight",
    output="lm_head.weight",
    ties=("all", "embeddings"),
    copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    begin="decoder_start_token_id",
)

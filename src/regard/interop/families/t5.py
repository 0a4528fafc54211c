"""T5 (Raffel et al. 2020), v1.0 (ReLU, tied embeddings) and v1.1 (gated GELU, untied output), and mT5 (Xue et al. 2021).

As in `transformers` 5, the tensors decide whether the output is tied, and the settings whether it is scaled; mT5
never scales it.
"""

from dataclasses import replace

from regard.interop.config import boolean, choice, integer
from regard.interop.families.common import EPSILON, LAYERS
from regard.interop.family_rules import Architecture, ConfigField, FlatSettings, ModelFamily, TensorRule, weight_rule

ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
GATED = ("geglu", "swiglu")
PLAIN = ("relu", "gelu", "silu")


def stack_rules(name: str, feed_forward: int) -> list[TensorRule]:
    """Return the rules of the encoder or decoder; `feed_forward` is the index of its feed-forward sub-layer."""
    ours, theirs = f"{name}.blocks.{{i}}.", f"{name}.block.{{i}}.layer."
    last = f"{theirs}{feed_forward}.DenseReluDense."
    rules = [
        weight_rule(f"{name}.positions.table", f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        *(weight_rule(f"{ours}self_attention.{mine}", f"{theirs}0.SelfAttention.{other}") for mine, other in ATTENTION.items()),
        weight_rule(f"{ours}self_residual.norm", f"{theirs}0.layer_norm"),
        weight_rule(f"{ours}feed_forward.inner", f"{last}wi", when=("activation", PLAIN)),
        weight_rule(f"{ours}feed_forward.gate", f"{last}wi_0", when=("activation", GATED)),
        weight_rule(f"{ours}feed_forward.inner", f"{last}wi_1", when=("activation", GATED)),
        weight_rule(f"{ours}feed_forward.outer", f"{last}wo"),
        weight_rule(f"{ours}feed_forward_residual.norm", f"{theirs}{feed_forward}.layer_norm"),
        weight_rule(f"{name}.norm", f"{name}.final_layer_norm"),
    ]
    if feed_forward == 2:
        cross = f"{theirs}1.EncDecAttention."
        rules += [weight_rule(f"{ours}cross_attention.{mine}", f"{cross}{other}") for mine, other in ATTENTION.items()]
        rules.append(weight_rule(f"{ours}cross_residual.norm", f"{theirs}1.layer_norm"))
    return rules


def check_buckets(settings: FlatSettings) -> str | None:
    """Check that the logarithmic half of the buckets reaches farther than the exact half."""
    exact, farthest = settings["positions.buckets"] // 2, settings["positions.max_distance"]
    problem = f"relative_attention_max_distance = {farthest}: should be more than half the buckets, {exact}"
    return None if exact < farthest else problem


T5 = ModelFamily(
    model_type="t5",
    fields=(
        ConfigField("width", "d_model", default=512),
        ConfigField("key_width", "d_kv", default=64),
        ConfigField("feed_forward", "d_ff", default=2048),
        ConfigField("encoder_layers", "num_layers", LAYERS, 6),
        ConfigField("decoder_layers", "num_decoder_layers", LAYERS, lambda settings: settings["encoder_layers"]),
        ConfigField("heads", "num_heads", default=8),
        ConfigField("positions.buckets", "relative_attention_num_buckets", integer(maximum=2**12, minimum=4), 32),
        ConfigField("positions.max_distance", "relative_attention_max_distance", integer(maximum=2**20, minimum=2), 128),
        ConfigField("norm_epsilon", "layer_norm_epsilon", EPSILON, 1e-6),
        ConfigField(
            "activation",
            "feed_forward_proj",
            choice({"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "geglu", "gated-silu": "swiglu"}),
            "relu",
        ),
        ConfigField("max_length", "n_positions", integer(maximum=2**20, minimum=2), 512),
        ConfigField("scale_output", "scale_decoder_outputs", boolean(), True, aliases=("tie_word_embeddings",)),
    ),
    constant={
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
    required={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    written={"tie_word_embeddings": lambda settings: settings["scale_output"]},
    problem=check_buckets,
    rules=(weight_rule("source_embedding.table", "shared"), *stack_rules("encoder", 1), *stack_rules("decoder", 2)),
    architectures={
        "T5ForConditionalGeneration": Architecture("translate", (weight_rule("output", "lm_head", head=True),)),
        "T5Model": Architecture("translate", bare=True),
    },
    bare="T5Model",
    embedding="shared.weight",
    output="lm_head.weight",
    tie_values=("all", "embeddings"),
    embedding_aliases=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ignored_tensors=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    decoder_start="decoder_start_token_id",
)

MT5_DEFAULTS = {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
MT5 = replace(
    T5,
    model_type="mt5",
    fields=tuple(
        replace(item, default=MT5_DEFAULTS.get(item.theirs, item.default)) for item in T5.fields if item.ours != "scale_output"
    ),
    constant={**T5.constant, "scale_output": False},
    written={},
    architectures={f"M{name}": architecture for name, architecture in T5.architectures.items()},
    bare="MT5Model",
)

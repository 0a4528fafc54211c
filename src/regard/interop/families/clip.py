"""CLIP (Radford et al. 2021): two towers, each with its own settings and tensors.

Not supported: images and patches that are not square. A text's vector is taken at its end token, which early folders find as the
highest token id and today's by eos_token_id; the two must agree.
"""

from typing import Any

from regard.interop.config import ConfigFile, ValueType, choice, int_or_pair, integer
from regard.interop.families.common import ACTIVATIONS, EPSILON, LAYERS, check_heads_divide_width, equal_heads
from regard.interop.family_rules import (
    INTEGER,
    Architecture,
    ConfigField,
    FlatSettings,
    ModelFamily,
    TensorRule,
    linear_rules,
    linear_rules_by_prefix,
    weight_rule,
)
from regard.tokens.special_tokens import SpecialTokens

LEGACY_EOS = 2
"""The eos_token_id of early folders, which look for the highest token id instead."""
BLOCK = {
    "self_attention.q_proj": "self_attn.q_proj",
    "self_attention.k_proj": "self_attn.k_proj",
    "self_attention.v_proj": "self_attn.v_proj",
    "self_attention.out_proj": "self_attn.out_proj",
    "self_residual.norm": "layer_norm1",
    "feed_forward.inner": "mlp.fc1",
    "feed_forward.outer": "mlp.fc2",
    "feed_forward_residual.norm": "layer_norm2",
}
TOWER = {
    "norm": "layer",
    "norm_first": True,
    "bias": True,
    "residual": True,
    "scale_scores": True,
    "positions.kind": "learned",
    "layer_scale": None,
}


def square() -> ValueType:
    """One integer; ours may be a pair of equal ones."""
    side, sides = integer(8192), int_or_pair(8192)

    def one_side(value: object) -> object:
        return side.read(sides.read(value))

    return ValueType(one_side, one_side)


def tower_fields(ours: str, theirs: str, width: int, heads: int) -> tuple[ConfigField, ...]:
    """Return the fields of a tower with these defaults; early folders have its settings in `..._config_dict`."""

    def field(mine: str, other: str, value_type: ValueType, default: Any) -> ConfigField:
        return ConfigField(f"{ours}.{mine}", f"{theirs}.{other}", value_type, default, (f"{theirs}_dict.{other}",))

    return (
        field("width", "hidden_size", INTEGER, width),
        field("layers", "num_hidden_layers", LAYERS, 12),
        field("heads", "num_attention_heads", INTEGER, heads),
        field("feed_forward", "intermediate_size", INTEGER, 4 * width),
        field("activation", "hidden_act", choice(ACTIVATIONS), "quick_gelu"),
        field("norm_epsilon", "layer_norm_eps", EPSILON, 1e-5),
    )


def check_towers(settings: FlatSettings) -> str | None:
    side, patch = settings["data.size"], settings["image.patch_size"]
    problem = f"a patch of {patch} pixels is larger than the image, {side}" if patch > side else None
    return check_heads_divide_width(settings, "image.") or check_heads_divide_width(settings, "text.") or problem


def check_end_token(config: ConfigFile, special_tokens: SpecialTokens, highest: int) -> str | None:
    """Check that the model takes a text's vector at the last token that the tokenizer adds, as ours does."""
    eos = config.get("eos_token_id")
    expected = highest if eos == LEGACY_EOS else eos if isinstance(eos, int) else 49407
    if special_tokens.suffix == (expected,) and expected not in special_tokens.prefix:
        return None
    source = "the highest token" if eos == LEGACY_EOS else "text_config.eos_token_id"
    return f"the tokenizer ends a text with {list(special_tokens.suffix)}, the model looks for {source}, {expected}"


CLIP = ModelFamily(
    model_type="clip",
    fields=(
        *tower_fields("image", "vision_config", 768, 12),
        *tower_fields("text", "text_config", 512, 8),
        ConfigField("data.size", "vision_config.image_size", square(), 224, ("vision_config_dict.image_size",)),
        ConfigField("image.patch_size", "vision_config.patch_size", square(), 32, ("vision_config_dict.patch_size",)),
        ConfigField(
            "text.max_length", "text_config.max_position_embeddings", INTEGER, 77, ("text_config_dict.max_position_embeddings",)
        ),
        ConfigField("projection_width", "projection_dim", INTEGER, 512),
    ),
    constant={
        "kind": "clip",
        **{f"{ours}.{name}": value for ours in ("image", "text") for name, value in TOWER.items()},
        "image.kind": "vit",
        "image.pool": "class",
        "image.distilled": "none",
        "image.embedding_norm": True,
        "image.patch_bias": False,
        "image.stem": "patches",
        "text.causal": True,
        "text.segments": 0,
        "text.embedding_norm": False,
        "text.pool": "end",
        "text.positions.random_offset": 0,
    },
    derived={**equal_heads("image."), **equal_heads("text.")},
    problem=check_towers,
    end_problem=check_end_token,
    required={"vision_config.num_channels": (3,)},
    written={
        "vision_config.num_channels": lambda settings: 3,
        **{f"{part}.projection_dim": lambda settings: settings["projection_width"] for part in ("vision_config", "text_config")},
        **{
            f"{part}.model_type": lambda settings, part=part: f"clip_{part.removesuffix('_config')}_model"  # type: ignore[misc]
            for part in ("vision_config", "text_config")
        },
    },
    rules=(
        TensorRule("image.class_token", "vision_model.embeddings.class_embedding"),
        weight_rule("image.patches", "vision_model.embeddings.patch_embedding"),
        weight_rule("image.stack.positions.table", "vision_model.embeddings.position_embedding"),
        *linear_rules("image.stack.embedding_norm", "vision_model.pre_layrnorm"),
        *linear_rules_by_prefix("image.stack.blocks.{i}.", "vision_model.encoder.layers.{i}.", BLOCK),
        *linear_rules("image.stack.norm", "vision_model.post_layernorm"),
        weight_rule("text.token_embedding", "text_model.embeddings.token_embedding"),
        weight_rule("text.stack.positions.table", "text_model.embeddings.position_embedding"),
        *linear_rules_by_prefix("text.stack.blocks.{i}.", "text_model.encoder.layers.{i}.", BLOCK),
        *linear_rules("text.stack.norm", "text_model.final_layer_norm"),
        weight_rule("image_projection", "visual_projection"),
        weight_rule("text_projection", "text_projection"),
        TensorRule("log_scale", "logit_scale"),
    ),
    architectures={"CLIPModel": Architecture("contrastive")},
    bare="CLIPModel",
    ignored_tensors=(r"(text|vision)_model\.embeddings\.position_ids",),
    image_processor="CLIP",
    image_prefix="image.",
    text_section="text_config",
)

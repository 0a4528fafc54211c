"""CLIP (Radford et al. 2021): two towers, each with settings and tensors of its own.

What does not fit: pictures and patches that are no squares. A text's vector is taken where it ends; how the first folders look
for that place (the highest token) and how today's do (eos_token_id) must come to the same.
"""

from collections.abc import Callable
from typing import Any

from regard.interop.config import Config, Kind, pair, words
from regard.interop.families.common import ACTIVATIONS, LAYERS, SMALL
from regard.interop.family_rules import COUNT, Architecture, Family, Field, Rule, Settings, layer, layers, tensor
from regard.tokens.special import Marks

OLDEST_END = 2
"""The eos_token_id of folders that look for the highest token instead."""
BLOCK = {
    "self_attention.to_q": "self_attn.q_proj",
    "self_attention.to_k": "self_attn.k_proj",
    "self_attention.to_v": "self_attn.v_proj",
    "self_attention.to_out": "self_attn.out_proj",
    "around_self.norm": "layer_norm1",
    "feed_forward.inner": "mlp.fc1",
    "feed_forward.outer": "mlp.fc2",
    "around_feed_forward.norm": "layer_norm2",
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


def square() -> Kind:
    """One whole number, where ours may have two that are the same."""
    sides = pair()

    def write(value: Any) -> int:
        height, width = value if isinstance(value, list | tuple) else (value, value)
        if height != width:
            raise ValueError
        return height

    return Kind(lambda value: sides.read(write(value)), write)


def tower(ours: str, theirs: str, width: int, heads: int) -> tuple[Field, ...]:
    def field(mine: str, other: str, kind: Kind, default: Any) -> Field:
        return Field(f"{ours}.{mine}", f"{theirs}.{other}", kind, default, (f"{theirs}_dict.{other}",))

    return (
        field("width", "hidden_size", COUNT, width),
        field("layers", "num_hidden_layers", LAYERS, 12),
        field("heads", "num_attention_heads", COUNT, heads),
        field("feed_forward", "intermediate_size", COUNT, 4 * width),
        field("activation", "hidden_act", words(ACTIVATIONS), "quick_gelu"),
        field("norm_epsilon", "layer_norm_eps", SMALL, 1e-5),
    )


def equal_heads(ours: str) -> dict[str, Callable[[Settings], Any]]:
    """Heads as published: together as wide as the tower, each with its own keys and values."""

    def width(settings: Settings) -> int:
        return settings[f"{ours}.width"] // settings[f"{ours}.heads"]

    return {
        f"{ours}.key_width": width,
        f"{ours}.value_width": width,
        f"{ours}.key_value_heads": lambda settings: settings[f"{ours}.heads"],
    }


def towers_fit(settings: Settings) -> str | None:
    for ours in ("image", "text"):
        width, heads = settings[f"{ours}.width"], settings[f"{ours}.heads"]
        if width % heads:
            return f"a width of {width} is not divisible by {heads} heads"
    side, patch = settings["data.size"], settings["image.patch"]
    return f"a patch of {patch} pixels is larger than the picture, {side}" if patch > side else None


def ends_fit(config: Config, marks: Marks, highest: int) -> str | None:
    """The vector of a text is taken at its last token; theirs must be taken there too."""
    end = config.at("eos_token_id")
    found = highest if end == OLDEST_END else end if isinstance(end, int) else 49407
    if marks.after == (found,) and found not in marks.before:
        return None
    what = "the highest token" if end == OLDEST_END else "text_config.eos_token_id"
    return f"the tokenizer ends a text with {list(marks.after)}, the model looks for {what}, {found}"


CLIP = Family(
    model_type="clip",
    fields=(
        *tower("image", "vision_config", 768, 12),
        *tower("text", "text_config", 512, 8),
        Field("data.size", "vision_config.image_size", square(), 224, ("vision_config_dict.image_size",)),
        Field("image.patch", "vision_config.patch_size", square(), 32, ("vision_config_dict.patch_size",)),
        Field("text.max_length", "text_config.max_position_embeddings", COUNT, 77, ("text_config_dict.max_position_embeddings",)),
        Field("space", "projection_dim", COUNT, 512),
    ),
    fixed={
        "kind": "clip",
        **{f"{ours}.{name}": value for ours in ("image", "text") for name, value in TOWER.items()},
        "image.kind": "vit",
        "image.pool": "class",
        "image.distilled": "none",
        "image.embedding_norm": True,
        "image.patch_bias": False,
        "text.causal": True,
        "text.pool": "end",
        "text.positions.offset": 0,
    },
    derived={**equal_heads("image"), **equal_heads("text")},
    check=towers_fit,
    ends=ends_fit,
    demands={"vision_config.num_channels": (3,)},
    writes={
        "vision_config.num_channels": lambda settings: 3,
        **{f"{part}.projection_dim": lambda settings: settings["space"] for part in ("vision_config", "text_config")},
        **{
            f"{part}.model_type": lambda settings, part=part: f"clip_{part.removesuffix('_config')}_model"  # type: ignore[misc]
            for part in ("vision_config", "text_config")
        },
    },
    rules=(
        Rule("image.class_token", "vision_model.embeddings.class_embedding"),
        tensor("image.patches", "vision_model.embeddings.patch_embedding"),
        tensor("image.stack.positions.table", "vision_model.embeddings.position_embedding"),
        *layer("image.stack.embedding_norm", "vision_model.pre_layrnorm"),
        *layers("image.stack.blocks.{i}.", "vision_model.encoder.layers.{i}.", BLOCK),
        *layer("image.stack.norm", "vision_model.post_layernorm"),
        tensor("text.words", "text_model.embeddings.token_embedding"),
        tensor("text.stack.positions.table", "text_model.embeddings.position_embedding"),
        *layers("text.stack.blocks.{i}.", "text_model.encoder.layers.{i}.", BLOCK),
        *layer("text.stack.norm", "text_model.final_layer_norm"),
        tensor("image_projection", "visual_projection"),
        tensor("text_projection", "text_projection"),
        Rule("log_scale", "logit_scale"),
    ),
    architectures={"CLIPModel": Architecture("contrast")},
    bare="CLIPModel",
    ignored=(r"(text|vision)_model\.embeddings\.position_ids",),
    processor="CLIP",
    pictures="image.",
    texts="text_config",
)

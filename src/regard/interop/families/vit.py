"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021).

What does not fit: queries, keys and values without biases, other than three colours. A pooler, which no head reads, is kept for
the way back.
"""

from dataclasses import replace

from regard.interop.config import pair, words
from regard.interop.families.common import ACTIVATIONS, EQUAL_HEADS, LAYERS, SMALL, heads_divide
from regard.interop.family_rules import Architecture, Family, Field, Rule, Settings, layer, layers

BLOCK = {
    "self_attention.to_q": "attention.attention.query",
    "self_attention.to_k": "attention.attention.key",
    "self_attention.to_v": "attention.attention.value",
    "self_attention.to_out": "attention.output.dense",
    "around_self.norm": "layernorm_before",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "around_feed_forward.norm": "layernorm_after",
}


def patches_fit(settings: Settings) -> str | None:
    """At least one patch is in the picture."""
    (height, width), (tall, wide) = (
        (side, side) if isinstance(side, int) else side for side in (settings["data.size"], settings["patch"])
    )
    if tall > height or wide > width:
        return f"a patch of {tall} × {wide} pixels is larger than the picture, {height} × {width}"
    return heads_divide(settings)


def on_top(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(rule for ours, theirs in pairs for rule in layer(ours, theirs, head=True))


VIT = Family(
    model_type="vit",
    prefix="vit.",
    fields=(
        Field("width", "hidden_size", default=768),
        Field("layers", "num_hidden_layers", LAYERS, 12),
        Field("heads", "num_attention_heads", default=12),
        Field("feed_forward", "intermediate_size", default=3072),
        Field("activation", "hidden_act", words(ACTIVATIONS), "gelu"),
        Field("norm_epsilon", "layer_norm_eps", SMALL, 1e-12),
        Field("data.size", "image_size", pair(), 224),
        Field("patch", "patch_size", pair(), 16),
    ),
    fixed={
        "kind": "vit",
        "norm": "layer",
        "norm_first": True,
        "bias": True,
        "residual": True,
        "scale_scores": True,
        "positions.kind": "learned",
        "pool": "class",
        "distilled": "none",
        "embedding_norm": False,
        "patch_bias": True,
    },
    derived=EQUAL_HEADS,
    check=patches_fit,
    demands={"qkv_bias": (True,), "num_channels": (3,)},
    writes={"num_channels": lambda settings: 3, "qkv_bias": lambda settings: True},
    rules=(
        Rule("encoder.class_token", "embeddings.cls_token", flat=2),
        *layer("encoder.patches", "embeddings.patch_embeddings.projection"),
        Rule("encoder.stack.positions.table.weight", "embeddings.position_embeddings", flat=1),
        *layers("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK),
        *layer("encoder.stack.norm", "layernorm"),
    ),
    architectures={
        "ViTForImageClassification": Architecture("classify", on_top(("output", "classifier"))),
        "ViTModel": Architecture("read", bare=True),
    },
    bare="ViTModel",
    kept=(r"pooler\..*",),
    heads=(r"classifier\..*",),
    processor="ViT",
    texts=None,
)

TOKEN = {"distilled": "token"}
DEIT = replace(
    VIT,
    model_type="deit",
    prefix="deit.",
    fixed={name: value for name, value in VIT.fixed.items() if name != "distilled"},
    rules=(*VIT.rules, Rule("encoder.distillation_token", "embeddings.distillation_token", flat=2)),
    architectures={
        "DeiTForImageClassification": Architecture("classify", on_top(("output", "classifier")), TOKEN),
        "DeiTForImageClassificationWithTeacher": Architecture(
            "classify",
            on_top(("output", "cls_classifier"), ("distilled_output", "distillation_classifier")),
            {"distilled": "head"},
        ),
        "DeiTModel": Architecture("read", settings=TOKEN, bare=True),
    },
    bare="DeiTModel",
    heads=(r"(cls_|distillation_)?classifier\..*",),
    processor="DeiT",
)

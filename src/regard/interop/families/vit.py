"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021).

Not supported: queries, keys and values without biases; other than three channels. A pooler, which no head uses, is kept and
written again.
"""

from dataclasses import replace

from regard.interop.config import int_or_pair
from regard.interop.families.common import ENCODER_FIELDS, EQUAL_HEADS, check_heads_divide_width
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    FlatSettings,
    ModelFamily,
    TensorRule,
    head_rules,
    linear_rules,
    linear_rules_by_prefix,
)

BLOCK = {
    "self_attention.q_proj": "attention.attention.query",
    "self_attention.k_proj": "attention.attention.key",
    "self_attention.v_proj": "attention.attention.value",
    "self_attention.out_proj": "attention.output.dense",
    "self_residual.norm": "layernorm_before",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "layernorm_after",
}


def check_patch_size(settings: FlatSettings) -> str | None:
    """Check that the image holds at least one patch."""
    (height, width), (patch_height, patch_width) = (
        (size, size) if isinstance(size, int) else size for size in (settings["data.size"], settings["patch_size"])
    )
    if patch_height > height or patch_width > width:
        return f"a patch of {patch_height} × {patch_width} pixels is larger than the image, {height} × {width}"
    return check_heads_divide_width(settings)


VIT = ModelFamily(
    model_type="vit",
    prefix="vit.",
    fields=(
        *ENCODER_FIELDS,
        ConfigField("data.size", "image_size", int_or_pair(), 224),
        ConfigField("patch_size", "patch_size", int_or_pair(), 16),
    ),
    constant={
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
        "stem": "patches",
    },
    derived=EQUAL_HEADS,
    problem=check_patch_size,
    required={"qkv_bias": (True,), "num_channels": (3,)},
    written={"num_channels": lambda settings: 3, "qkv_bias": lambda settings: True},
    rules=(
        TensorRule("encoder.class_token", "embeddings.cls_token", leading_ones=2),
        *linear_rules("encoder.patches", "embeddings.patch_embeddings.projection"),
        TensorRule("encoder.stack.positions.table.weight", "embeddings.position_embeddings", leading_ones=1),
        *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK),
        *linear_rules("encoder.stack.norm", "layernorm"),
    ),
    architectures={
        "ViTForImageClassification": Architecture("classify", head_rules(("output", "classifier"))),
        "ViTModel": Architecture("encode", bare=True),
    },
    bare="ViTModel",
    kept_tensors=(r"pooler\..*",),
    head_tensors=(r"classifier\..*",),
    image_processor="ViT",
    text_section=None,
)

TOKEN = {"distilled": "token"}
DEIT = replace(
    VIT,
    model_type="deit",
    prefix="deit.",
    constant={name: value for name, value in VIT.constant.items() if name != "distilled"},
    rules=(*VIT.rules, TensorRule("encoder.distillation_token", "embeddings.distillation_token", leading_ones=2)),
    architectures={
        "DeiTForImageClassification": Architecture("classify", head_rules(("output", "classifier")), TOKEN),
        "DeiTForImageClassificationWithTeacher": Architecture(
            "classify",
            head_rules(("output", "cls_classifier"), ("distilled_output", "distillation_classifier")),
            {"distilled": "head"},
        ),
        "DeiTModel": Architecture("encode", settings=TOKEN, bare=True),
    },
    bare="DeiTModel",
    head_tensors=(r"(cls_|distillation_)?classifier\..*",),
    image_processor="DeiT",
)

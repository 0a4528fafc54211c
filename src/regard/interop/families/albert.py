"""ALBERT (Lan et al. 2020) and ELECTRA (Clark et al. 2020): BERT with embeddings narrower than its layers.

All layers of ALBERT share their weights; its head of the sentence order is our head of the next sentence. A pretrained ELECTRA is
read as an encoder: the head that finds replaced words is kept and written again. An ELECTRA whose embeddings have its width does
not project them, an ALBERT does.

Not supported: several groups of layers (`num_hidden_groups`) or layers in a group (`inner_group_num`), which no published ALBERT
has; relative positions, decoders.
"""

from dataclasses import replace
from typing import Any

from regard.interop.config import ValueType
from regard.interop.families.bert import (
    BERT,
    BLOCK,
    ENCODER_ONLY,
    FIELDS,
    GELU_HEAD,
    HEAD_ACTIVATION,
    NO_PAIRS,
    POST_NORM,
    QUESTION_ANSWERING,
    embedding_rules,
)
from regard.interop.families.common import EQUAL_HEADS, LENGTH
from regard.interop.family_rules import (
    INTEGER,
    Architecture,
    ConfigField,
    FlatSettings,
    TensorRule,
    head_rules,
    linear_rules,
    linear_rules_by_prefix,
)

CLASSIFIER = head_rules(("output", "classifier"))


def encoder_fields(embedding: ConfigField, **defaults: Any) -> tuple[ConfigField, ...]:
    """Return BERT's fields with other defaults, and the width of the embeddings."""
    fields = (*FIELDS, ConfigField("max_length", "max_position_embeddings", LENGTH, 512))
    return (*(replace(item, default=defaults.get(item.theirs, item.default)) for item in fields), embedding)


ALBERT_BLOCK = {
    "self_attention.q_proj": "attention.query",
    "self_attention.k_proj": "attention.key",
    "self_attention.v_proj": "attention.value",
    "self_attention.out_proj": "attention.dense",
    "self_residual.norm": "attention.LayerNorm",
    "feed_forward.inner": "ffn",
    "feed_forward.outer": "ffn_output",
    "feed_forward_residual.norm": "full_layer_layer_norm",
}
ALBERT_MASKED = (
    *head_rules(("transform", "predictions.dense"), ("norm", "predictions.LayerNorm")),
    TensorRule("output.bias", "predictions.bias", head=True),
)

ALBERT = replace(
    BERT,
    model_type="albert",
    prefix="albert.",
    fields=encoder_fields(
        ConfigField("embedding_width", "embedding_size", default=128),
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_act="gelu_new",
    ),
    constant={**POST_NORM, "share_layers": True},
    required={**ENCODER_ONLY, "num_hidden_groups": (1,), "inner_group_num": (1,)},
    written={"num_hidden_groups": lambda settings: 1, "inner_group_num": lambda settings: 1},
    rules=(
        *embedding_rules(),
        *linear_rules("encoder.stack.projection", "encoder.embedding_hidden_mapping_in"),
        *linear_rules_by_prefix("encoder.stack.blocks.0.", "encoder.albert_layer_groups.0.albert_layers.0.", ALBERT_BLOCK),
        *linear_rules("pool.dense", "pooler"),
    ),
    architectures={
        "AlbertForPreTraining": Architecture(
            "masked", (*ALBERT_MASKED, *head_rules(("next_sentence", "sop_classifier.classifier"))), derived=HEAD_ACTIVATION
        ),
        "AlbertForMaskedLM": Architecture("masked", ALBERT_MASKED, derived=HEAD_ACTIVATION, omitted=NO_PAIRS),
        "AlbertForSequenceClassification": Architecture("classify", CLASSIFIER, {"pool": "first"}),
        "AlbertForTokenClassification": Architecture("tag", CLASSIFIER),
        "AlbertForQuestionAnswering": QUESTION_ANSWERING,
        "AlbertModel": Architecture("encode", inferred={"pool": ("pooler.weight", "first", "mean")}, bare=True),
    },
    bare="AlbertModel",
    output="predictions.decoder.weight",
    head_tensors=(r"predictions\..*", r"sop_classifier\..*"),
)


def embedding_width(settings: FlatSettings) -> int | None:
    """Return the width of ELECTRA's embeddings, None if they are not projected."""
    return None if settings["embedding_width"] == settings["width"] else settings["embedding_width"]


OPTIONAL_INTEGER = ValueType(lambda value: None if value is None else INTEGER.read(value))

ELECTRA = replace(
    BERT,
    model_type="electra",
    prefix="electra.",
    fields=encoder_fields(
        ConfigField("embedding_width", "embedding_size", OPTIONAL_INTEGER, 128),
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    derived={**EQUAL_HEADS, "embedding_width": embedding_width},
    written={"embedding_size": lambda settings: settings["embedding_width"] or settings["width"]},
    rules=(
        *embedding_rules(),
        *linear_rules("encoder.stack.projection", "embeddings_project"),
        *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK),
    ),
    architectures={
        "ElectraForMaskedLM": Architecture(
            "masked",
            (
                *head_rules(("transform", "generator_predictions.dense"), ("norm", "generator_predictions.LayerNorm")),
                TensorRule("output.bias", "generator_lm_head.bias", head=True),
            ),
            GELU_HEAD,
            omitted=NO_PAIRS,
        ),
        "ElectraForSequenceClassification": Architecture(
            "classify", head_rules(("pool.dense", "classifier.dense"), ("output", "classifier.out_proj")), {"pool": "first_gelu"}
        ),
        "ElectraForTokenClassification": Architecture("tag", CLASSIFIER),
        "ElectraForQuestionAnswering": QUESTION_ANSWERING,
        "ElectraForPreTraining": Architecture("encode", settings={"pool": "mean"}),
        "ElectraModel": Architecture("encode", settings={"pool": "mean"}, bare=True),
    },
    bare="ElectraModel",
    output="generator_lm_head.weight",
    kept_tensors=(),
    head_tensors=(r"generator_.*", r"discriminator_predictions\..*"),
)

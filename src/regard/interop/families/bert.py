"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), XLM-R (Conneau et al. 2020), DistilBERT (Sanh et al. 2019).

RoBERTa's classification head is BERT's pooler and linear layer under other names; DistilBERT's has ReLU instead of tanh. XLM-R is
RoBERTa with another vocabulary.
Not supported: relative positions, decoders.
"""

from dataclasses import replace

from regard.interop.config import choice, integer
from regard.interop.families.common import ACTIVATIONS, ENCODER_FIELDS, EQUAL_HEADS, LAYERS, LENGTH, check_heads_divide_width
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    ModelFamily,
    TensorRule,
    head_rules,
    linear_rules,
    linear_rules_by_prefix,
    weight_rule,
)

BLOCK = {
    "self_attention.q_proj": "attention.self.query",
    "self_attention.k_proj": "attention.self.key",
    "self_attention.v_proj": "attention.self.value",
    "self_attention.out_proj": "attention.output.dense",
    "self_residual.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
POST_NORM = {
    "kind": "transformer",
    "norm": "layer",
    "norm_first": False,
    "bias": True,
    "residual": True,
    "scale_scores": True,
    "embedding_norm": True,
    "positions.kind": "learned",
}
FIELDS = (*ENCODER_FIELDS, ConfigField("segments", "type_vocab_size", default=2))
ENCODER_ONLY = {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}
POOLER = tuple(linear_rules("pool.dense", "pooler.dense"))
POOLED = {"pool": ("pooler.dense.weight", "first", "mean")}
HEAD_ACTIVATION = {"head_activation": lambda settings: settings["activation"]}
GELU_HEAD = {"head_activation": "gelu"}
NO_PAIRS = ("pool.", "next_sentence.")


def embedding_rules(skip_rows: int = 0) -> list[TensorRule]:
    return [
        weight_rule("encoder.token_embedding", "embeddings.word_embeddings"),
        weight_rule("encoder.segments", "embeddings.token_type_embeddings"),
        weight_rule("encoder.stack.positions.table", "embeddings.position_embeddings", skip_rows=skip_rows),
        *linear_rules("encoder.stack.embedding_norm", "embeddings.LayerNorm"),
    ]


QUESTION_ANSWERING = Architecture("answer", head_rules(("output", "qa_outputs")))

BERT_MASKED = (
    *head_rules(("transform", "cls.predictions.transform.dense"), ("norm", "cls.predictions.transform.LayerNorm")),
    TensorRule("output.bias", "cls.predictions.bias", head=True),
)

BERT = ModelFamily(
    model_type="bert",
    prefix="bert.",
    fields=(*FIELDS, ConfigField("max_length", "max_position_embeddings", LENGTH, 512)),
    constant=POST_NORM,
    derived=EQUAL_HEADS,
    problem=check_heads_divide_width,
    required=ENCODER_ONLY,
    rules=(*embedding_rules(), *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK), *POOLER),
    architectures={
        "BertForPreTraining": Architecture(
            "masked", (*BERT_MASKED, *head_rules(("next_sentence", "cls.seq_relationship"))), derived=HEAD_ACTIVATION
        ),
        "BertForMaskedLM": Architecture("masked", BERT_MASKED, derived=HEAD_ACTIVATION, omitted=NO_PAIRS),
        "BertForSequenceClassification": Architecture("classify", head_rules(("output", "classifier")), {"pool": "first"}),
        "BertForTokenClassification": Architecture("tag", head_rules(("output", "classifier"))),
        "BertForQuestionAnswering": QUESTION_ANSWERING,
        "BertModel": Architecture("encode", inferred=POOLED, bare=True),
    },
    bare="BertModel",
    embedding="embeddings.word_embeddings.weight",
    output="cls.predictions.decoder.weight",
    tie_default=True,
    ignored_tensors=(r"embeddings\.position_ids",),
    kept_tensors=(r"pooler\..*",),
    head_tensors=(r"cls\..*",),
)

ROBERTA_MASKED = (
    *head_rules(("transform", "lm_head.dense"), ("norm", "lm_head.layer_norm")),
    TensorRule("output.bias", "lm_head.bias", head=True),
)

ROBERTA = replace(
    BERT,
    model_type="roberta",
    prefix="roberta.",
    fields=(*FIELDS, ConfigField("max_length", "max_position_embeddings", integer(maximum=2**20, minimum=2, offset=2), 512)),
    required={**ENCODER_ONLY, "pad_token_id": (1,)},
    rules=(
        *embedding_rules(skip_rows=2),
        *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK),
        *POOLER,
    ),
    architectures={
        "RobertaForMaskedLM": Architecture("masked", ROBERTA_MASKED, GELU_HEAD, omitted=NO_PAIRS),
        "RobertaForSequenceClassification": Architecture(
            "classify", head_rules(("pool.dense", "classifier.dense"), ("output", "classifier.out_proj")), {"pool": "first"}
        ),
        "RobertaForTokenClassification": Architecture("tag", head_rules(("output", "classifier"))),
        "RobertaForQuestionAnswering": QUESTION_ANSWERING,
        "RobertaModel": Architecture("encode", inferred=POOLED, bare=True),
    },
    bare="RobertaModel",
    output="lm_head.decoder.weight",
    head_tensors=(r"lm_head\..*",),
)

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures={f"XLM{name}": architecture for name, architecture in ROBERTA.architectures.items()},
    bare="XLMRobertaModel",
)

DISTIL_BLOCK = {
    "self_attention.q_proj": "attention.q_lin",
    "self_attention.k_proj": "attention.k_lin",
    "self_attention.v_proj": "attention.v_lin",
    "self_attention.out_proj": "attention.out_lin",
    "self_residual.norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_residual.norm": "output_layer_norm",
}

DISTILBERT = ModelFamily(
    model_type="distilbert",
    prefix="distilbert.",
    fields=(
        ConfigField("width", "dim", default=768),
        ConfigField("layers", "n_layers", LAYERS, 6),
        ConfigField("heads", "n_heads", default=12),
        ConfigField("feed_forward", "hidden_dim", default=3072),
        ConfigField("activation", "activation", choice(ACTIVATIONS), "gelu"),
        ConfigField("max_length", "max_position_embeddings", LENGTH, 512),
    ),
    constant={**POST_NORM, "segments": 0, "norm_epsilon": 1e-12},
    derived=EQUAL_HEADS,
    problem=check_heads_divide_width,
    rules=(*embedding_rules(), *linear_rules_by_prefix("encoder.stack.blocks.{i}.", "transformer.layer.{i}.", DISTIL_BLOCK)),
    architectures={
        "DistilBertForMaskedLM": Architecture(
            "masked",
            (
                *head_rules(("transform", "vocab_transform"), ("norm", "vocab_layer_norm")),
                TensorRule("output.bias", "vocab_projector.bias", head=True),
            ),
            derived=HEAD_ACTIVATION,
            omitted=NO_PAIRS,
        ),
        "DistilBertForSequenceClassification": Architecture(
            "classify", head_rules(("pool.dense", "pre_classifier"), ("output", "classifier")), {"pool": "first_relu"}
        ),
        "DistilBertForTokenClassification": Architecture("tag", head_rules(("output", "classifier"))),
        "DistilBertForQuestionAnswering": QUESTION_ANSWERING,
        "DistilBertModel": Architecture("encode", settings={"pool": "mean"}, bare=True),
    },
    bare="DistilBertModel",
    embedding="embeddings.word_embeddings.weight",
    output="vocab_projector.weight",
    tie_default=True,
    ignored_tensors=(r"embeddings\.position_ids",),
    head_tensors=(r"vocab_.*",),
)
"""With `sinusoidal_pos_embds` the table holds the sinusoids, and is read like a learned one."""

"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019).

What fits: RoBERTa's classification head is BERT's pooler and linear layer under other names; DistilBERT's has ReLU for tanh.
What does not: a head that knows masked words by another activation than GELU, relative positions, decoders.
"""

from regard.interop.config import count, words
from regard.interop.families.common import ACTIVATIONS, EQUAL_HEADS, LAYERS, LENGTH, SMALL, heads_divide
from regard.interop.family_rules import Architecture, Family, Field, Rule, layer, layers, tensor

BLOCK = {
    "self_attention.to_q": "attention.self.query",
    "self_attention.to_k": "attention.self.key",
    "self_attention.to_v": "attention.self.value",
    "self_attention.to_out": "attention.output.dense",
    "around_self.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    "around_feed_forward.norm": "output.LayerNorm",
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
FIELDS = (
    Field("width", "hidden_size", default=768),
    Field("layers", "num_hidden_layers", LAYERS, 12),
    Field("heads", "num_attention_heads", default=12),
    Field("feed_forward", "intermediate_size", default=3072),
    Field("activation", "hidden_act", words(ACTIVATIONS), "gelu"),
    Field("norm_epsilon", "layer_norm_eps", SMALL, 1e-12),
    Field("segments", "type_vocab_size", default=2),
)
ENCODER_ONLY = {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}
POOLER = tuple(layer("pool.dense", "pooler.dense"))
POOLED = {"pool": ("pooler.dense.weight", "first", "mean")}
MASKED = {"activation": "gelu"}
NO_PAIRS = ("pool.", "next_sentence.")


def embeddings(front: int = 0) -> list[Rule]:
    return [
        tensor("encoder.words", "embeddings.word_embeddings"),
        tensor("encoder.segments", "embeddings.token_type_embeddings"),
        tensor("encoder.stack.positions.table", "embeddings.position_embeddings", front=front),
        *layer("encoder.stack.embedding_norm", "embeddings.LayerNorm"),
    ]


def on_top(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    """The layers of a head."""
    return tuple(rule for ours, theirs in pairs for rule in layer(ours, theirs, head=True))


POINTER = Architecture("answer", on_top(("output", "qa_outputs")))

BERT_MASKED = (
    *on_top(("transform", "cls.predictions.transform.dense"), ("norm", "cls.predictions.transform.LayerNorm")),
    Rule("output.bias", "cls.predictions.bias", head=True),
)

BERT = Family(
    model_type="bert",
    prefix="bert.",
    fields=(*FIELDS, Field("max_length", "max_position_embeddings", LENGTH, 512)),
    fixed=POST_NORM,
    derived=EQUAL_HEADS,
    check=heads_divide,
    demands=ENCODER_ONLY,
    rules=(*embeddings(), *layers("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK), *POOLER),
    architectures={
        "BertForPreTraining": Architecture("masked", (*BERT_MASKED, *on_top(("next_sentence", "cls.seq_relationship"))), MASKED),
        "BertForMaskedLM": Architecture("masked", BERT_MASKED, MASKED, lacks=NO_PAIRS),
        "BertForSequenceClassification": Architecture("classify", on_top(("output", "classifier")), {"pool": "first"}),
        "BertForTokenClassification": Architecture("tag", on_top(("output", "classifier"))),
        "BertForQuestionAnswering": POINTER,
        "BertModel": Architecture("read", seen=POOLED, bare=True),
    },
    bare="BertModel",
    embedding="embeddings.word_embeddings.weight",
    output="cls.predictions.decoder.weight",
    tied=True,
    ignored=(r"embeddings\.position_ids",),
    kept=(r"pooler\..*",),
    heads=(r"cls\..*",),
)

ROBERTA_MASKED = (
    *on_top(("transform", "lm_head.dense"), ("norm", "lm_head.layer_norm")),
    Rule("output.bias", "lm_head.bias", head=True),
)

ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    fields=(*FIELDS, Field("max_length", "max_position_embeddings", count(most=2**20, least=2, plus=2), 512)),
    fixed=POST_NORM,
    derived=EQUAL_HEADS,
    check=heads_divide,
    demands={**ENCODER_ONLY, "pad_token_id": (1,)},
    rules=(*embeddings(front=2), *layers("encoder.stack.blocks.{i}.", "encoder.layer.{i}.", BLOCK), *POOLER),
    architectures={
        "RobertaForMaskedLM": Architecture("masked", ROBERTA_MASKED, lacks=NO_PAIRS),
        "RobertaForSequenceClassification": Architecture(
            "classify", on_top(("pool.dense", "classifier.dense"), ("output", "classifier.out_proj")), {"pool": "first"}
        ),
        "RobertaForTokenClassification": Architecture("tag", on_top(("output", "classifier"))),
        "RobertaForQuestionAnswering": POINTER,
        "RobertaModel": Architecture("read", seen=POOLED, bare=True),
    },
    bare="RobertaModel",
    embedding="embeddings.word_embeddings.weight",
    output="lm_head.decoder.weight",
    tied=True,
    ignored=(r"embeddings\.position_ids",),
    kept=(r"pooler\..*",),
    heads=(r"lm_head\..*",),
)

DISTIL_BLOCK = {
    "self_attention.to_q": "attention.q_lin",
    "self_attention.to_k": "attention.k_lin",
    "self_attention.to_v": "attention.v_lin",
    "self_attention.to_out": "attention.out_lin",
    "around_self.norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "around_feed_forward.norm": "output_layer_norm",
}

DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert.",
    fields=(
        Field("width", "dim", default=768),
        Field("layers", "n_layers", LAYERS, 6),
        Field("heads", "n_heads", default=12),
        Field("feed_forward", "hidden_dim", default=3072),
        Field("activation", "activation", words(ACTIVATIONS), "gelu"),
        Field("max_length", "max_position_embeddings", LENGTH, 512),
    ),
    fixed={**POST_NORM, "segments": 0, "norm_epsilon": 1e-12},
    derived=EQUAL_HEADS,
    check=heads_divide,
    rules=(*embeddings(), *layers("encoder.stack.blocks.{i}.", "transformer.layer.{i}.", DISTIL_BLOCK)),
    architectures={
        "DistilBertForMaskedLM": Architecture(
            "masked",
            (
                *on_top(("transform", "vocab_transform"), ("norm", "vocab_layer_norm")),
                Rule("output.bias", "vocab_projector.bias", head=True),
            ),
            MASKED,
            lacks=NO_PAIRS,
        ),
        "DistilBertForSequenceClassification": Architecture(
            "classify", on_top(("pool.dense", "pre_classifier"), ("output", "classifier")), {"pool": "first_relu"}
        ),
        "DistilBertForTokenClassification": Architecture("tag", on_top(("output", "classifier"))),
        "DistilBertForQuestionAnswering": POINTER,
        "DistilBertModel": Architecture("read", settings={"pool": "mean"}, bare=True),
    },
    bare="DistilBertModel",
    embedding="embeddings.word_embeddings.weight",
    output="vocab_projector.weight",
    tied=True,
    ignored=(r"embeddings\.position_ids",),
    heads=(r"vocab_.*",),
)
"""With `sinusoidal_pos_embds` the table holds the sinusoids: it is read like any other."""

"""BART (Lewis et al. 2020), mBART (Liu et al. 2020; mBART-50, Tang et al. 2020), M2M100 (Fan et al. 2021) and NLLB (2022);
Pegasus (Zhang et al. 2020), which is Marian's Transformer with the norm before each sub-layer.

BART is the 2017 Transformer with learned positions and a norm of the embeddings; mBART normalises before each sub-layer. So does
M2M100, whose shape NLLB has, with sinusoids that start at position 2. Its frequencies reach 1/10000 exactly,
10000^(-i / (D/2 - 1)) as in tensor2tensor; that is our formula with base = 10000^(D / (D - 2)). It never generates a padding
token (`transformers` may, and would give the tokens after it other positions).

One position of a learned table is left for the first token of an output: the longest text is one shorter than the table.

Not supported: heads for labels and answers, which read the decoder; encoders and decoders with different heads or
feed-forward widths.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.positions import sinusoids
from regard.interop.config import integer
from regard.interop.families.common import check_heads_divide_width
from regard.interop.families.marian import BLOCK, CROSS, MARIAN
from regard.interop.family_rules import (
    Architecture,
    ConfigField,
    FlatSettings,
    TensorRule,
    linear_rules,
    linear_rules_by_prefix,
    weight_rule,
)

FIELDS = tuple(item for item in MARIAN.fields if item.ours not in ("max_length", "tie"))
SHARED = {
    "kind": "transformer",
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "bias": True,
    "residual": True,
    "scale_scores": True,
    "scale_output": False,
    "tie": "all",
}
BLOCKS = (
    weight_rule("source_embedding.table", "shared"),
    *linear_rules_by_prefix("encoder.blocks.{i}.", "encoder.layers.{i}.", BLOCK),
    *linear_rules_by_prefix("decoder.blocks.{i}.", "decoder.layers.{i}.", BLOCK | CROSS),
)
LEARNED = tuple(
    rule
    for stack in ("encoder", "decoder")
    for rule in (
        weight_rule(f"{stack}.positions.table", f"{stack}.embed_positions", skip_rows=2),
        *linear_rules(f"{stack}.embedding_norm", f"{stack}.layernorm_embedding"),
    )
)
LAST_NORMS = tuple(rule for stack in ("encoder", "decoder") for rule in linear_rules(f"{stack}.norm", f"{stack}.layer_norm"))
WITH_BIAS = Architecture(
    "translate", (TensorRule("output.bias", "final_logits_bias", leading_ones=1, head=True),), {"output_bias": True}
)
BARE = Architecture("translate", settings={"output_bias": False}, bare=True)

BART = replace(
    MARIAN,
    model_type="bart",
    fields=(*FIELDS, ConfigField("max_length", "max_position_embeddings", integer(maximum=2**15, minimum=2, offset=1), 1024)),
    constant={**SHARED, "norm_first": False, "embedding_norm": True, "positions.kind": "learned"},
    rules=(*BLOCKS, *LEARNED),
    architectures={"BartForConditionalGeneration": WITH_BIAS, "BartModel": BARE},
    bare="BartModel",
    ignored_tensors=(r"(encoder|decoder)\.version",),
    suppressed=(),
)

MBART = replace(
    BART,
    model_type="mbart",
    constant={**BART.constant, "norm_first": True},
    rules=(*BLOCKS, *LEARNED, *LAST_NORMS),
    architectures={"MBartForConditionalGeneration": WITH_BIAS, "MBartModel": BARE},
    bare="MBartModel",
    language_codes="as written",
)


def position_table(settings: FlatSettings) -> Tensor:
    """Return the sinusoids of every position (T, D), all sines before all cosines."""
    return sinusoids(torch.arange(settings["max_length"]), settings["width"], sines_first=True).float()


PEGASUS = replace(
    MARIAN,
    model_type="pegasus",
    fields=tuple(item for item in MARIAN.fields if item.ours != "tie"),
    constant={**MARIAN.constant, "norm_first": True, "tie": "all"},
    rules=(*BLOCKS, *LAST_NORMS),
    architectures={"PegasusForConditionalGeneration": WITH_BIAS, "PegasusModel": BARE},
    bare="PegasusModel",
    tables={f"model.{stack}.embed_positions.weight": position_table for stack in ("encoder", "decoder")},
    suppressed=(),
)


def tensor2tensor_base(settings: FlatSettings) -> float:
    """Return the base for which the last of our frequencies is 1/10000."""
    width = settings["width"]
    return float(10_000.0 ** (width / max(1, width - 2)))


def check_even_width(settings: FlatSettings) -> str | None:
    width = settings["width"]
    return f"an odd width is not supported: d_model = {width}" if width % 2 else check_heads_divide_width(settings)


M2M100_DEFAULTS = {"activation_function": "relu", "scale_embedding": True}
M2M100 = replace(
    MARIAN,
    model_type="m2m_100",
    fields=tuple(
        replace(item, default=M2M100_DEFAULTS.get(item.theirs, item.default)) for item in MARIAN.fields if item.ours != "tie"
    ),
    constant={
        **SHARED,
        "norm_first": True,
        "positions.kind": "sinusoidal",
        "positions.sines_first": True,
        "positions.first": 2,
        "output_bias": False,
    },
    derived={**MARIAN.derived, "positions.base": tensor2tensor_base},
    problem=check_even_width,
    required={**MARIAN.required, "pad_token_id": (1,)},
    rules=(*BLOCKS, *LAST_NORMS),
    architectures={
        "M2M100ForConditionalGeneration": Architecture("translate"),
        "M2M100Model": Architecture("translate", bare=True),
    },
    bare="M2M100Model",
    ignored_tensors=(r"(encoder|decoder)\.embed_positions\.weights?", r"(encoder|decoder)\.version"),
    language_codes="before",
)

"""Qwen2 (Yang et al. 2024) and Qwen3 (2025): Llama with biases of queries, keys and values, or with norms of each head's queries
and keys instead; the upper layers may have a sliding window.

Not supported: Qwen3 with biases (`attention_bias`), rotary positions scaled by YaRN.
"""

from dataclasses import replace

from regard.interop.config import ConfigFile, boolean, integer
from regard.interop.families.llama import FIELDS, LLAMA
from regard.interop.families.positions import layer_types, read_rotary, read_windows
from regard.interop.family_rules import ConfigField, FlatSettings, linear_rules_by_prefix

DEFAULTS = {"intermediate_size": 22016, "max_position_embeddings": 32768}
QWEN_FIELDS = (
    *(replace(item, default=DEFAULTS.get(item.theirs, item.default)) for item in FIELDS),
    ConfigField("key_value_heads", "num_key_value_heads", default=32),
)
USE_WINDOW, FULL_LAYERS = boolean(), integer(minimum=0)
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen2's tokenizer splits a text into words."""


def read_qwen(config: ConfigFile, settings: FlatSettings) -> FlatSettings:
    """Return our settings of rotary positions and of the windows, which layers from `max_window_layers` on have."""
    used = config.get("use_sliding_window")
    if used is None or not config.convert("use_sliding_window", used, USE_WINDOW):
        config = ConfigFile({**config.values, "sliding_window": None}, config.path)
    full = config.get("max_window_layers")
    full = 28 if full is None else config.convert("max_window_layers", full, FULL_LAYERS)
    return read_rotary(config, settings) | read_windows(config, settings, range(full, settings["layers"]), default=4096)


QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    fields=QWEN_FIELDS,
    constant={**LLAMA.constant, "bias": False, "qkv_bias": True},
    computed=read_qwen,
    written={
        **LLAMA.written,
        "use_sliding_window": lambda settings: settings["window"] is not None,
        "sliding_window": lambda settings: settings["window"],
        "layer_types": layer_types,
    },
    architectures={
        "Qwen2ForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "Qwen2Model": LLAMA.architectures["LlamaModel"],
    },
    bare="Qwen2Model",
    tokenizer_pattern=WORDS,
)
HEAD_NORMS = {"self_attention.q_norm": "self_attn.q_norm", "self_attention.k_norm": "self_attn.k_norm"}
QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    fields=tuple(replace(item, default=128) if item.theirs == "head_dim" else item for item in QWEN_FIELDS),
    constant={**LLAMA.constant, "bias": False, "qk_norm": True},
    required={**LLAMA.required, "attention_bias": (False,)},
    rules=(*LLAMA.rules, *linear_rules_by_prefix("decoder.blocks.{i}.", "layers.{i}.", HEAD_NORMS)),
    architectures={
        "Qwen3ForCausalLM": LLAMA.architectures["LlamaForCausalLM"],
        "Qwen3Model": LLAMA.architectures["LlamaModel"],
    },
    bare="Qwen3Model",
    tokenizer_pattern="",
)

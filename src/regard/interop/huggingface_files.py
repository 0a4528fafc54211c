"""Build the files of a Hugging Face folder for a run of ours: config, tokenizer with its special tokens, preprocessor."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from regard.errors import UserError
from regard.interop.family_rules import FlatSettings, ModelFamily
from regard.interop.preprocessor import write_preprocessor
from regard.tokens.special_tokens import BOS, EOS, MASK_NAME, NO_TOKEN, PAD, SPECIAL_TOKEN_NAMES, UNK, SpecialTokens
from regard.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.tasks.base import Run
    from regard.tasks.classify import ClassifyRun

TOKEN_CONFIG_NAMES = {
    "pad_token": (SPECIAL_TOKEN_NAMES[PAD], "[PAD]"),
    "bos_token": (SPECIAL_TOKEN_NAMES[BOS], "[CLS]"),
    "eos_token": (SPECIAL_TOKEN_NAMES[EOS], "[SEP]"),
    "unk_token": (SPECIAL_TOKEN_NAMES[UNK], "[UNK]"),
    "mask_token": (MASK_NAME, "[MASK]"),
}
CONFIG_TOKENS = ("pad_token", "bos_token", "eos_token")
"""Those that config.json names."""
NORM_EPSILON = {"layer": 1e-5, "layer_no_bias": 1e-5, "batch": 1e-5, "rms": 1e-6, "zero_centered_rms": 1e-6}
DERIVED_DEFAULTS: dict[str, Callable[[FlatSettings], Any]] = {
    "key_width": lambda stack: stack["width"] // stack["heads"],
    "value_width": lambda stack: stack["key_width"],
    "key_value_heads": lambda stack: stack["heads"],
    "norm_epsilon": lambda stack: NORM_EPSILON[stack["norm"]],
    "window_layers": lambda stack: None if stack["window"] is None else list(range(1, stack["layers"], 2)),
}
LABEL_TASKS = ("classify", "tag")
"""Tasks whose runs have labels."""


def resolve_defaults(settings: FlatSettings) -> FlatSettings:
    """Return settings with the defaults that depend on other settings filled in, for each stack of the model."""
    resolved = dict(settings)
    for prefix in dict.fromkeys(name.removesuffix("norm") for name in settings if name.split(".")[-1] == "norm"):
        stack = {name.removeprefix(prefix): value for name, value in resolved.items() if name.startswith(prefix)}
        for name, default in DERIVED_DEFAULTS.items():
            if name in stack and stack[name] is None:
                resolved[prefix + name] = stack[name] = default(stack)
    return resolved


def huggingface_files(run: "Run", family: ModelFamily, architecture: str, settings: FlatSettings) -> dict[str, Any]:
    """Return the JSON files of a folder by name."""
    config = {"architectures": [architecture], **family.write_config(settings), "dtype": "float32"}
    files: dict[str, Any] = {"config.json": config}
    if family.image_processor:
        files["preprocessor_config.json"] = write_preprocessor(settings, family)
    if family.text_section is not None:
        files |= text_files(run, family, settings, config)
    if run.recipe.task == "regress":
        config |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if run.task.name in LABEL_TASKS:
        labels = cast("ClassifyRun", run).labels
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    return files


def text_files(run: "Run", family: ModelFamily, settings: FlatSettings, config: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the tokenizer and of generation; add the vocabulary and the special tokens to `config`."""
    tokenizer, target = run.tokenizers[0], run.tokenizers[-1]
    if tokenizer is not target and tokenizer.to_json() != target.to_json():
        raise UserError(f"{run.folder} has two vocabularies (tokens.joint = false), a Hugging Face folder has one")
    if family.tokenizer_pattern and family.tokenizer_pattern not in split_patterns(tokenizer):
        raise UserError(
            f"{run.folder}: transformers gives every {family.model_type} model the published ones' tokenizer, and this run has "
            f"another; start it from a {family.model_type} folder (train.init_from), which brings its tokenizer"
        )
    special_tokens, names = run._special_tokens, special_token_names(tokenizer)
    if run.recipe.task == "language" and special_tokens.eos != NO_TOKEN:
        names.setdefault("eos_token", str(tokenizer.library.id_to_token(special_tokens.eos)))
    if family.image_processor:
        names |= clip_end_tokens(run, tokenizer)
    ids = {f"{name}_id": tokenizer.library.token_to_id(text) for name, text in names.items() if name in CONFIG_TOKENS}
    text_config = config[family.text_section] if family.text_section else config
    text_config |= {"vocab_size": tokenizer.size, **ids}
    files: dict[str, Any] = {}
    encoder_decoder = family.decoder_start is not None
    decoder_start = {"decoder_start_token_id": special_tokens.bos} if encoder_decoder else {}
    forced = {"forced_bos_token_id": special_tokens.output_prefix[0]} if special_tokens.output_prefix else {}
    if encoder_decoder:
        config |= {**decoder_start, "is_encoder_decoder": True}
    if encoder_decoder or run.recipe.task == "language":
        files["generation_config.json"] = {**ids, **decoder_start, **forced, "suppress_tokens": list(special_tokens.suppressed)}
        if not encoder_decoder:
            special_tokens = SpecialTokens(prefix=(special_tokens.bos,) if special_tokens.bos != NO_TOKEN else (), suffix=())
    segments = ["token_type_ids"] if settings.get("segments", 0) > 1 else []
    return files | {
        "tokenizer.json": tokenizer_json(tokenizer, special_tokens),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": run.recipe.model.max_length,
            **names,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *segments, "attention_mask"],
        },
    }


def clip_end_tokens(run: "Run", tokenizer: Tokenizer) -> dict[str, str]:
    """Return the first and last token of a text, for models that take a text's vector at its end."""
    first, last = run._special_tokens.prefix[0], run._special_tokens.suffix[-1]
    if last == EOS:
        raise UserError(
            f"{run.folder} ends its texts with token {EOS}; transformers then takes a text's vector at its highest id instead; "
            "train with a tokenizer of its own, or one from a clip folder"
        )
    return {"bos_token": str(tokenizer.library.id_to_token(first)), "eos_token": str(tokenizer.library.id_to_token(last))}


def special_token_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names of the special tokens: ours, or those of a pretrained vocabulary."""
    known = {
        name: next((text for text in texts if tokenizer.library.token_to_id(text) is not None), None)
        for name, texts in TOKEN_CONFIG_NAMES.items()
    }
    return {name: text for name, text in known.items() if text is not None}


def split_patterns(tokenizer: Tokenizer) -> list[str]:
    """Return the regular expressions by which a tokenizer splits texts into words."""
    steps = json.loads(tokenizer.to_json()).get("pre_tokenizer") or {}
    return [step["pattern"].get("Regex", "") for step in steps.get("pretokenizers", [steps]) if "pattern" in step]


def tokenizer_json(tokenizer: Tokenizer, special_tokens: SpecialTokens) -> dict[str, Any]:
    """Return tokenizer.json with a post-processor that adds the special tokens as the run does."""

    def special(token: int, segment: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokenizer.library.id_to_token(token), "type_id": segment}}

    def text(name: str, segment: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    prefix, separator, suffix = special_tokens.prefix, special_tokens.separator, special_tokens.suffix
    segment = special_tokens.second_segment
    first = [*map(special, prefix), text("A")]
    second = [*map(special, separator), text("B", segment), *(special(token, segment) for token in suffix)]
    names = {token: tokenizer.library.id_to_token(token) for token in (*prefix, *separator, *suffix)}
    content: dict[str, Any] = json.loads(tokenizer.to_json())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*first, *map(special, suffix)],
        "pair": [*first, *second],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]} for token, name in names.items()},
    }
    return content

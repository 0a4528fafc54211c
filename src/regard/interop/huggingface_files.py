"""A run of ours in the words of a Hugging Face folder: its settings spelled out, its tokenizer with the marks it reads with."""

import json
from typing import Any

from regard.errors import UserError
from regard.interop.family_rules import FlatSettings, ModelFamily
from regard.interop.preprocessor import write_preprocessor
from regard.tokens.special_tokens import BOS, EOS, MASK_NAME, PAD, SPECIAL_TOKEN_NAMES, UNK, SpecialTokens
from regard.tokens.tokenizer import Tokenizer

TOKEN_CONFIG_NAMES = {
    "pad_token": (SPECIAL_TOKEN_NAMES[PAD], "[PAD]"),
    "bos_token": (SPECIAL_TOKEN_NAMES[BOS], "[CLS]"),
    "eos_token": (SPECIAL_TOKEN_NAMES[EOS], "[SEP]"),
    "unk_token": (SPECIAL_TOKEN_NAMES[UNK], "[UNK]"),
    "mask_token": (MASK_NAME, "[MASK]"),
}
CONFIG_TOKENS = ("pad_token", "bos_token", "eos_token")
"""Which of them config.json names."""
NORM_EPSILON = {"layer": 1e-5, "batch": 1e-5, "rms": 1e-6}


def resolve_defaults(settings: FlatSettings) -> FlatSettings:
    """Settings with what they leave open filled in."""
    filled = dict(settings)
    for part in dict.fromkeys(name.removesuffix("norm") for name in settings if name.split(".")[-1] == "norm"):
        mine = {name.removeprefix(part): value for name, value in filled.items() if name.startswith(part)}
        for name, value in {
            "key_width": lambda of: of["width"] // of["heads"],
            "value_width": lambda of: of["key_width"],
            "key_value_heads": lambda of: of["heads"],
            "norm_epsilon": lambda of: NORM_EPSILON[of["norm"]],
        }.items():
            if name in mine and mine[name] is None:
                filled[part + name] = mine[name] = value(mine)
    return filled


def huggingface_files(run: Any, family: ModelFamily, architecture: str, settings: FlatSettings) -> dict[str, Any]:
    """config.json, tokenizer.json or preprocessor_config.json, and their companions."""
    labels = getattr(run, "labels", [])
    labelled = (
        {"id2label": {str(i): label for i, label in enumerate(labels)}, "label2id": {label: i for i, label in enumerate(labels)}}
        if labels
        else {}
    )
    files: dict[str, Any] = {"preprocessor_config.json": write_preprocessor(settings, family)} if family.image_processor else {}
    if family.text_section is None:
        return files | {
            "config.json": {"architectures": [architecture], **family.config(settings), "dtype": "float32", **labelled}
        }
    source, target = run.tokenizers[0], run.tokenizers[-1]
    if source is not target and source.to_json() != target.to_json():
        raise UserError(f"{run.folder} has two vocabularies (tokens.joint = false), a Hugging Face folder has one")
    marks, names = run._special_tokens, special_token_names(source)
    if family.image_processor:
        names |= clip_end_tokens(run, source)
    special = {f"{name}_id": source.library.token_to_id(text) for name, text in names.items() if name in CONFIG_TOKENS}
    config = {"architectures": [architecture], **family.config(settings), "dtype": "float32"}
    files["config.json"] = config
    texts = config[family.text_section] if family.text_section else config
    texts |= {"vocab_size": source.size, **special}
    if family.decoder_start is not None:
        config |= {"decoder_start_token_id": marks.bos, "is_encoder_decoder": True}
    if run.recipe.task == "regress":
        config |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    config |= labelled
    if family.decoder_start is not None or run.recipe.task == "language":
        begin = {"decoder_start_token_id": marks.bos} if family.decoder_start is not None else {}
        files["generation_config.json"] = {**special, **begin, "suppress_tokens": list(marks.suppressed)}
        marks = marks if family.decoder_start is not None else SpecialTokens(prefix=(marks.bos,), suffix=())
    files["tokenizer.json"] = tokenizer_json(source, marks)
    segments = ["token_type_ids"] if settings.get("segments", 0) > 1 else []
    files["tokenizer_config.json"] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.recipe.model.max_length,
        **names,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
    }
    return files


def clip_end_tokens(run: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """What its texts begin and end with, where the vector of a text is taken at its end."""
    begin, end = run._special_tokens.prefix[0], run._special_tokens.suffix[-1]
    if end == EOS:
        raise UserError(
            f"{run.folder} ends its texts with token {EOS}, which transformers takes for the sign of another way to "
            "find their end; train with a tokenizer of its own, or one from a clip folder"
        )
    return {"bos_token": str(tokenizer.library.id_to_token(begin)), "eos_token": str(tokenizer.library.id_to_token(end))}


def special_token_names(tokenizer: Tokenizer) -> dict[str, str]:
    """What the special tokens are called: ours, or those of the vocabulary that a run began from."""
    known = {
        name: next((text for text in texts if tokenizer.library.token_to_id(text) is not None), None)
        for name, texts in TOKEN_CONFIG_NAMES.items()
    }
    return {name: text for name, text in known.items() if text is not None}


def tokenizer_json(tokenizer: Tokenizer, special_tokens: SpecialTokens) -> dict[str, Any]:
    """tokenizer.json, which puts the marks around a text as the run does."""

    def special(number: int, segment: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokenizer.library.id_to_token(number), "type_id": segment}}

    def text(name: str, segment: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    first = [*map(special, special_tokens.prefix), text("A")]
    one = [*first, *map(special, special_tokens.suffix)]
    two = [
        *first,
        *map(special, special_tokens.separator),
        text("B", special_tokens.second_segment),
        *(special(number, special_tokens.second_segment) for number in special_tokens.suffix),
    ]
    names = {
        number: tokenizer.library.id_to_token(number)
        for number in (*special_tokens.prefix, *special_tokens.separator, *special_tokens.suffix)
    }
    made: dict[str, Any] = json.loads(tokenizer.to_json())
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": one,
        "pair": two,
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()},
    }
    return made

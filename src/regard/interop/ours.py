"""A run of ours in the words of a Hugging Face folder: its settings spelled out, its tokenizer with the marks it reads with."""

import json
from typing import Any

from regard.errors import Mistake
from regard.interop.family import Family, Settings
from regard.tokens.special import BOS, EOS, MASK, MASK_TEXT, NO_MARK, PAD, SPECIALS, UNK, Marks
from regard.tokens.tokenizer import Tokenizer

EPSILON = {"layer": 1e-5, "batch": 1e-5, "rms": 1e-6}
THEIRS = {"pad": ("<pad>", "[PAD]"), "unk": ("<unk>", "[UNK]"), "mask": ("<mask>", "[MASK]")}
"""How other vocabularies call them."""


def plain(settings: Settings) -> Settings:
    """Settings with what they leave open filled in."""
    filled = dict(settings)
    for name, value in {"key_width": lambda: filled["width"] // filled["heads"], "value_width": lambda: filled["key_width"],
                        "key_value_heads": lambda: filled["heads"], "norm_epsilon": lambda: EPSILON[filled["norm"]]}.items():
        if name in filled and filled[name] is None:
            filled[name] = value()
    return filled


def files_of_ours(run: Any, family: Family, architecture: str, settings: Settings) -> dict[str, Any]:
    """config.json, tokenizer.json and their companions."""
    source, target = run.tokenizers[0], run.tokenizers[-1]
    if source is not target and source.to_json() != target.to_json():
        raise Mistake(f"{run.folder} has two vocabularies (tokens.joint = false), a Hugging Face folder has one")
    marks, tokens = run.marks, special_tokens(source, run.marks)
    special = {f"{name}_token_id": tokens[name] for name in ("pad", "bos", "eos") if name in tokens}
    config = {"architectures": [architecture], **family.config(settings), "vocab_size": source.size, "dtype": "float32"} | special
    files: dict[str, Any] = {"config.json": config}
    if family.begin is not None:
        config |= {"decoder_start_token_id": marks.begin, "is_encoder_decoder": True}
    if labels := getattr(run, "labels", None):
        config |= {"id2label": {str(i): label for i, label in enumerate(labels)},
                   "label2id": {label: i for i, label in enumerate(labels)}}
    if family.begin is not None or run.recipe.task == "language":
        begin = {"decoder_start_token_id": marks.begin} if family.begin is not None else {}
        files["generation_config.json"] = {**special, **begin, "suppress_tokens": list(marks.never)}
        marks = marks if family.begin is not None else Marks(before=(marks.begin,), after=())
    files["tokenizer.json"] = with_marks(source, marks)
    files["tokenizer_config.json"] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings["max_length"],
        **{f"{name}_token": source.library.id_to_token(number) for name, number in tokens.items()},
        "clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"]}
    return files


def special_tokens(tokenizer: Tokenizer, marks: Marks) -> dict[str, int]:
    """The tokens that have a name in a folder: ours; of a vocabulary that came from elsewhere, those that it has."""
    library = tokenizer.library
    if [library.id_to_token(number) for number in range(len(SPECIALS))] == SPECIALS:
        mask = {"mask": MASK} if library.id_to_token(MASK) == MASK_TEXT else {}
        return {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, **mask}
    known = {name: [library.token_to_id(text) for text in texts] for name, texts in THEIRS.items()}
    found = {name: next((number for number in numbers if number is not None), NO_MARK) for name, numbers in known.items()}
    found = {"eos": marks.end, "bos": marks.before[0] if marks.before else NO_MARK, **found}
    return {name: number for name, number in found.items() if number != NO_MARK}


def with_marks(tokenizer: Tokenizer, marks: Marks) -> dict[str, Any]:
    """tokenizer.json, which puts the marks around a text as the run does."""
    def special(number: int, segment: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokenizer.library.id_to_token(number), "type_id": segment}}

    def text(name: str, segment: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    one = [*map(special, marks.before), text("A"), *map(special, marks.after)]
    two = [*one, text("B", 1), *(special(number, 1) for number in marks.after)]
    names = {number: tokenizer.library.id_to_token(number) for number in (*marks.before, *marks.after)}
    made: dict[str, Any] = json.loads(tokenizer.to_json())
    made["post_processor"] = {"type": "TemplateProcessing", "single": one, "pair": two, "special_tokens": {
        name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()}}
    return made

"""The peers with our weights: random ones, of the true shapes."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from regard.interop.convert import find_family
from regard.interop.ctranslate2 import write_ctranslate2
from regard.interop.family_rules import flatten_settings
from regard.interop.huggingface_files import resolve_defaults
from regard.interop.tensor_names import UnmappedTensors, to_huggingface_tensors
from regard.tokens.special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens


class Numbers:
    """A vocabulary whose tokens are called by their numbers."""

    def __init__(self, size: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
        self.size, self.special_tokens, self.library = size, special_tokens, self

    def id_to_token(self, number: int) -> str:
        return f"t{number}"


def as_transformers(
    model: nn.Module, task: str, vocabulary: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS, **options: Any
) -> nn.Module:
    """The model that `transformers` has for these settings, with these weights."""
    import transformers

    settings = resolve_defaults(flatten_settings(model.settings.model_dump(mode="json")))
    if task == "classify":
        settings["data.size"] = model.encoder.size
    family, name = find_family(task, settings)
    kind = getattr(transformers, name)
    given = {
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": None if special_tokens.bos < 0 else special_tokens.bos,
        "eos_token_id": special_tokens.eos,
        **({"decoder_start_token_id": special_tokens.bos} if family.begin else {}),
    }
    config = kind.config_class(**{**family.config(settings), **given}, **options)
    tensors = to_huggingface_tensors(
        dict(model.named_parameters()), family, family.architectures[name], settings, UnmappedTensors()
    )
    with tempfile.TemporaryDirectory() as place:  # its modules have other names than its files, in some versions
        config.save_pretrained(place)
        save_file(
            {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()},
            Path(place, "model.safetensors"),
            metadata={"format": "pt"},
        )
        theirs, told = kind.from_pretrained(place, dtype=torch.float32, output_loading_info=True)
    assert not told["unexpected_keys"] and not told["mismatched_keys"], told
    assert not [
        name for name in told["missing_keys"] if not any(part in name for part in ("embed_positions", "embed_tokens", "lm_head"))
    ], told
    return theirs.eval()


@contextmanager
def as_ctranslate2(model: nn.Module, vocabulary: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
    """The folder of the model for CTranslate2."""
    with tempfile.TemporaryDirectory() as place:
        yield write_ctranslate2(model, [Numbers(vocabulary, special_tokens)] * 2, Path(place, "model"))  # type: ignore[list-item]


def threads(number: int) -> None:
    torch.set_num_threads(number)

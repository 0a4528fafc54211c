"""Random weights of the published shapes, as regard, `transformers` and CTranslate2 load them."""

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


class NumberedVocabulary:
    """A vocabulary whose tokens are named by their ids."""

    def __init__(self, size: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
        self.size, self.special_tokens, self.library = size, special_tokens, self

    def id_to_token(self, number: int) -> str:
        return f"t{number}"


def to_transformers(
    model: nn.Module, task: str, vocabulary: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS, **options: Any
) -> nn.Module:
    """Return the model of `transformers` with these settings and weights."""
    import transformers

    settings = resolve_defaults(flatten_settings(model.settings.model_dump(mode="json")))
    if task == "classify":
        settings["data.size"] = model.encoder.size
    family, name = find_family(task, settings)
    model_class = getattr(transformers, name)
    tokens = {
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": None if special_tokens.bos < 0 else special_tokens.bos,
        "eos_token_id": special_tokens.eos,
        **({"decoder_start_token_id": special_tokens.bos} if family.decoder_start else {}),
    }
    config = model_class.config_class(**{**family.write_config(settings), **tokens}, **options)
    tensors = to_huggingface_tensors(
        dict(model.named_parameters()), family, family.architectures[name], settings, UnmappedTensors()
    )
    with tempfile.TemporaryDirectory() as folder:  # in some versions its modules have other names than its files
        config.save_pretrained(folder)
        save_file(
            {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()},
            Path(folder, "model.safetensors"),
            metadata={"format": "pt"},
        )
        peer, info = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    expected = ("embed_positions", "embed_tokens", "lm_head")
    assert not [name for name in info["missing_keys"] if not any(part in name for part in expected)], info
    return peer.eval()


@contextmanager
def to_ctranslate2(model: nn.Module, vocabulary: int, special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS):
    """Yield a folder with the model for CTranslate2."""
    with tempfile.TemporaryDirectory() as folder:
        vocabularies = [NumberedVocabulary(vocabulary, special_tokens)] * 2
        yield write_ctranslate2(model, vocabularies, Path(folder, "model"))  # type: ignore[arg-type]

"""Random weights of the published shapes, as regard, `transformers` and CTranslate2 load them; two models in plain PyTorch."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

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
        **({"decoder_start_token_id": special_tokens.bos} if family.decoder_start is not None else {}),
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


class PlainGpt(nn.Module):
    """GPT-2 as one writes it in plain PyTorch, with nanoGPT's choices (Karpathy 2022): one projection for q, k and v, tanh GELU,
    tied output."""

    def __init__(self, vocabulary: int, length: int, layers: int = 12, width: int = 768, heads: int = 12, *, bias: bool = True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class PlainBlock(nn.Module):
    """A pre-norm block of causal self-attention and feed-forward."""

    def __init__(self, width: int, heads: int, bias: bool):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.inner, self.outer = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.outer(F.gelu(self.inner(self.feed_forward_norm(x)), approximate="tanh"))


class PlainTransformer(nn.Module):
    """The base encoder–decoder around `nn.Transformer`, tied embeddings and output."""

    def __init__(self, vocabulary: int, length: int, width: int = 512):
        super().__init__()
        self.width = width
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, dropout=0.0, batch_first=True)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.tokens.weight, std=width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, written = (self.tokens(ids) * self.width**0.5 + self.positions[: ids.size(1)] for ids in (source, target))
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        x = self.transformer(read, written, tgt_mask=causal, tgt_is_causal=True)
        return F.linear(x, self.tokens.weight, self.output_bias)

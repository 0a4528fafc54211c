"""Export to CTranslate2: encoder–decoder and decoder-only Transformers, weight by weight.

Not supported: positions other than sinusoidal, learned and rotary; a head width other than width / heads; grouped heads;
blocks without a residual connection; batch norm; layers of different widths; attention windows.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.files import atomic_folder, require_new_folder
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.tokens.special_tokens import NO_TOKEN
from regard.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.layers.block import Block
    from regard.layers.stack import Stack

INSTALL_EXPORT = "pip install 'regard[export]'"
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELUTanh",
    "geglu_exact": "GELU",
}
GATED = ("swiglu", "geglu", "geglu_exact")
POSITIONS = ("sinusoidal", "learned", "rotary")


def is_ctranslate2_installed() -> bool:
    return importlib.util.find_spec("ctranslate2") is not None


def import_ctranslate2() -> ModuleType:
    """Return the library, set to use AVX-512 where the CPU has it: by itself it uses AVX2 on some processors."""
    if not is_ctranslate2_installed():
        raise UserError(f"CTranslate2 is not installed: {INSTALL_EXPORT}")
    if "avx512f" in cpu_flags():
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    return importlib.import_module("ctranslate2")


def ctranslate2_version() -> str:
    return importlib.metadata.version("ctranslate2")


def cpu_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def unsupported_settings(model: nn.Module, tokenizers: Sequence[Tokenizer]) -> list[str]:
    """Return the settings of a model and its vocabularies that CTranslate2 cannot express."""
    if type(model) not in (Transformer, Gpt):
        return [f"a {type(model).__name__}"]
    settings: Any = model.settings
    head_width = settings.width // settings.heads
    widths = settings.key_width not in (None, head_width) or settings.value_width not in (None, head_width)
    problems = {
        f"positions.kind = {settings.positions.kind!r}": settings.positions.kind not in POSITIONS,
        f"positions.scaling.kind = {settings.positions.scaling.kind!r}": settings.positions.scaling.kind != "none",
        "model.key_width or model.value_width": widths,
        "model.key_value_heads": settings.key_value_heads not in (None, settings.heads),
        "model.qk_norm": settings.qk_norm,
        "model.sandwich_norm": settings.sandwich_norm,
        "model.scale_width": settings.scale_width is not None,
        "model.score_cap": settings.score_cap is not None,
        "model.logit_cap": getattr(settings, "logit_cap", None) is not None,
        "model.residual = false": not settings.residual,
        "model.layer_scale": settings.layer_scale is not None,
        "model.embedding_norm": getattr(settings, "embedding_norm", False),
        f"model.norm = {settings.norm!r}": settings.norm not in ("layer", "rms"),
        "model.encoder_widths": getattr(settings, "encoder_widths", None) is not None,
        "model.window": getattr(settings, "window", None) is not None,
        "outputs that begin with the code of a language": bool(tokenizers[-1].special_tokens.output_prefix),
    }
    return [name for name, present in problems.items() if present]


def write_ctranslate2(model: nn.Module, tokenizers: Sequence[Tokenizer], path: str | Path) -> Path:
    """Write a model in float32 as a new folder that CTranslate2 can open."""
    path = require_new_folder(path)
    import_ctranslate2()
    if problems := unsupported_settings(model, tokenizers):
        raise UserError(f"{path}: CTranslate2 does not support {', '.join(problems[:3])}; use --to hf or --to onnx")
    assert isinstance(model, Transformer | Gpt)
    spec = model_spec(model, tokenizers)
    spec.validate()
    spec.optimize(quantization="float32")
    with atomic_folder(path) as folder:
        spec.save(str(folder))
    return path


def model_spec(model: Transformer | Gpt, tokenizers: Sequence[Tokenizer]) -> Any:
    """Return the model as one of CTranslate2's; where the vocabulary lacks a special token, its first token stands in."""
    from ctranslate2.specs import transformer_spec

    options, tokens = block_options(model), vocabulary_tokens(tokenizers[-1])
    special_tokens = tokenizers[-1].special_tokens
    if isinstance(model, Transformer):
        settings = model.settings
        spec = transformer_spec.TransformerSpec(
            transformer_spec.TransformerEncoderSpec(settings.encoder_layers, settings.heads, **options),
            transformer_spec.TransformerDecoderSpec(settings.decoder_layers, settings.heads, **options),
        )
        fill_stack(spec.encoder, model.encoder, settings)
        spec.encoder.embeddings[0].weight = to_numpy(model.source_embedding.table.weight)
        spec.decoder.embeddings.weight = to_numpy(model.target_embedding.table.weight)
        spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = settings.scale_embedding
        if settings.scale_output:
            spec.decoder.scale_outputs = to_numpy(torch.tensor(settings.width**-0.5))
        spec.register_source_vocabulary(vocabulary_tokens(tokenizers[0]))
        spec.register_target_vocabulary(tokens)
        spec.config.decoder_start_token = tokens[special_tokens.bos]
    else:
        decoder = transformer_spec.TransformerDecoderSpec(
            model.settings.layers, model.settings.heads, with_encoder_attention=False, **options
        )
        spec = transformer_spec.TransformerDecoderModelSpec(decoder)
        spec.decoder.embeddings.weight = to_numpy(model.token_embedding.weight)
        spec.decoder.scale_embeddings = model.settings.scale_embedding
        spec.register_vocabulary(tokens)
    fill_stack(spec.decoder, model.decoder, model.settings)
    fill_linear(spec.decoder.projection, [model.output])
    spec.config.layer_norm_epsilon = model.settings.norm_epsilon or (1e-6 if model.settings.norm == "rms" else 1e-5)
    spec.config.bos_token = tokens[special_tokens.bos] if special_tokens.bos != NO_TOKEN else tokens[0]
    spec.config.eos_token = tokens[special_tokens.eos] if special_tokens.eos != NO_TOKEN else tokens[0]
    spec.config.unk_token = "<unk>" if "<unk>" in tokens else spec.config.eos_token
    return spec


def block_options(model: Transformer | Gpt) -> dict[str, Any]:
    from ctranslate2.specs import common_spec

    settings: Any = model.settings
    options = dict(
        pre_norm=settings.norm_first,
        activation=common_spec.Activation[ACTIVATIONS[settings.activation]],
        ffn_glu=settings.activation in GATED,
        rms_norm=settings.norm == "rms",
    )
    if settings.positions.kind == "rotary":
        options |= dict(rotary_dim=settings.width // settings.heads, rotary_interleave=False, rotary_base=settings.positions.base)
    return options


def vocabulary_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return all tokens in the order of their ids; unused ids get made-up names."""
    tokens = (tokenizer.library.id_to_token(i) for i in range(tokenizer.size))
    return [f"<row {i}>" if token is None else token for i, token in enumerate(tokens)]


def fill_stack(spec: Any, stack: "Stack", settings: Any) -> None:
    if settings.positions.kind != "rotary":
        table: Any = stack.positions.table
        spec.position_encodings.encodings = to_numpy(table.weight if isinstance(table, nn.Embedding) else table)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings  # an encoder requires them even with rotary positions
    if settings.norm_first:
        fill_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.layers()):
        fill_block(layer, block, None if settings.scale_scores else 1.0)


def fill_block(spec: Any, block: "Block", scale: float | None) -> None:
    attention = block.self_attention
    fill_linear(spec.self_attention.linear[0], [attention.q_proj, attention.k_proj, attention.v_proj])
    fill_linear(spec.self_attention.linear[1], [attention.out_proj])
    fill_norm(spec.self_attention.layer_norm, block.self_residual.norm)
    attention_specs = [spec.self_attention]
    if hasattr(spec, "attention"):
        cross = block.cross_attention
        fill_linear(spec.attention.linear[0], [cross.q_proj])
        fill_linear(spec.attention.linear[1], [cross.k_proj, cross.v_proj])
        fill_linear(spec.attention.linear[2], [cross.out_proj])
        fill_norm(spec.attention.layer_norm, block.cross_residual.norm)
        attention_specs.append(spec.attention)
    for attention_spec in attention_specs if scale is not None else ():
        attention_spec.queries_scale = to_numpy(torch.tensor(scale))
    feed_forward = block.feed_forward
    fill_norm(spec.ffn.layer_norm, block.feed_forward_residual.norm)
    fill_linear(spec.ffn.linear_0, [feed_forward.inner if feed_forward.gate is None else feed_forward.gate])
    if feed_forward.gate is not None:
        fill_linear(spec.ffn.linear_0_noact, [feed_forward.inner])
    fill_linear(spec.ffn.linear_1, [feed_forward.outer])


def fill_linear(spec: Any, layers: Sequence[nn.Linear]) -> None:
    """Concatenate layers with the same input into one."""
    spec.weight = to_numpy(torch.cat([layer.weight for layer in layers]))
    if layers[0].bias is not None:
        spec.bias = to_numpy(torch.cat([layer.bias for layer in layers]))


def fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = to_numpy(norm.weight)  # type: ignore[arg-type]
    if hasattr(spec, "beta"):
        spec.beta = to_numpy(norm.bias)  # type: ignore[arg-type]


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().contiguous().numpy()

"""Transformers as CTranslate2 has them: the encoder–decoder and the decoder alone, weight by weight.

What does not fit is said by name: positions that are none of sinusoidal, learned and rotary; heads of another width than
width / heads, or that share keys; blocks without a residual; batch norm; layers of several widths; windows.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import Mistake
from regard.interop.new_folder import new_folder, written_aside
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.tokens.special import NO_MARK, Marks
from regard.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.layers.block import Block
    from regard.layers.stack import Stack

CURE = "pip install 'regard[export]'"
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELUTanh",
}
GATED = ("swiglu", "geglu")
POSITIONS = ("sinusoidal", "learned", "rotary")


def is_installed() -> bool:
    return importlib.util.find_spec("ctranslate2") is not None


def library() -> ModuleType:
    """CTranslate2, told to use the widest registers there are: by itself it takes half of them on some processors."""
    if not is_installed():
        raise Mistake(f"CTranslate2 is not installed: {CURE}")
    if "avx512f" in processor_flags():
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")
    import ctranslate2

    return ctranslate2


def version() -> str:
    return importlib.metadata.version("ctranslate2")


def processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def misfits(model: nn.Module) -> list[str]:
    """What of a model CTranslate2 has no word for."""
    if type(model) not in (Transformer, Gpt):
        return [f"a {type(model).__name__}"]
    settings: Any = model.settings
    head = settings.width // settings.heads
    widths = settings.key_width not in (None, head) or settings.value_width not in (None, head)
    found = {
        f"positions.kind = {settings.positions.kind!r}": settings.positions.kind not in POSITIONS,
        "model.key_width or model.value_width": widths,
        "model.key_value_heads": settings.key_value_heads not in (None, settings.heads),
        "model.residual = false": not settings.residual,
        "model.layer_scale": settings.layer_scale is not None,
        f"model.norm = {settings.norm!r}": settings.norm not in ("layer", "rms"),
        "model.encoder_widths": getattr(settings, "encoder_widths", None) is not None,
        "model.window": getattr(settings, "window", None) is not None,
    }
    return [name for name, there in found.items() if there]


def require_fit(model: nn.Module, where: str) -> None:
    if wrong := misfits(model):
        raise Mistake(f"{where}: CTranslate2 has no counterpart of {', '.join(wrong[:3])}; use --to hf or --to onnx")


def write_ctranslate2(model: nn.Module, tokenizers: Sequence[Tokenizer], path: str | Path) -> Path:
    """A model as a folder that CTranslate2 opens, in float32; written aside and put in place whole."""
    path = new_folder(path)
    library()
    require_fit(model, str(path))
    spec = translator_spec(model, tokenizers) if isinstance(model, Transformer) else writer_spec(model, tokenizers[0])
    spec.validate()
    spec.optimize(quantization="float32")
    with written_aside(path) as aside:
        spec.save(str(aside))
    return path


def translator_spec(model: Transformer, tokenizers: Sequence[Tokenizer]) -> Any:
    from ctranslate2.specs import transformer_spec

    settings, options = model.settings, block_options(model)
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(settings.encoder_layers, settings.heads, **options),
        transformer_spec.TransformerDecoderSpec(settings.decoder_layers, settings.heads, **options),
    )
    fill_stack(spec.encoder, model.encoder, settings)
    fill_stack(spec.decoder, model.decoder, settings)
    spec.encoder.embeddings[0].weight = weight(model.source_embedding.table.weight)
    spec.decoder.embeddings.weight = weight(model.target_embedding.table.weight)
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = settings.scale_embedding
    if settings.scale_output:
        spec.decoder.scale_outputs = weight(torch.tensor(settings.width**-0.5))
    fill_linear(spec.decoder.projection, [model.output])
    source, target = (tokens_of(tokenizer) for tokenizer in (tokenizers[0], tokenizers[-1]))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    configure(spec.config, model, target, tokenizers[-1].marks)
    spec.config.decoder_start_token = target[tokenizers[-1].marks.begin]
    return spec


def writer_spec(model: nn.Module, tokenizer: Tokenizer) -> Any:
    from ctranslate2.specs import transformer_spec

    assert isinstance(model, Gpt)
    spec = transformer_spec.TransformerDecoderModelSpec(
        transformer_spec.TransformerDecoderSpec(
            model.settings.layers, model.settings.heads, with_encoder_attention=False, **block_options(model)
        )
    )
    fill_stack(spec.decoder, model.decoder, model.settings)
    spec.decoder.embeddings.weight = weight(model.words.weight)
    spec.decoder.scale_embeddings = False
    fill_linear(spec.decoder.projection, [model.output])
    tokens = tokens_of(tokenizer)
    spec.register_vocabulary(tokens)
    configure(spec.config, model, tokens, tokenizer.marks)
    return spec


def block_options(model: nn.Module) -> dict[str, Any]:
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


def configure(config: Any, model: nn.Module, tokens: Sequence[str], marks: Marks) -> None:
    """The marks by their names; a vocabulary without one is given a token that stands for none."""
    settings: Any = model.settings
    config.layer_norm_epsilon = settings.norm_epsilon or (1e-6 if settings.norm == "rms" else 1e-5)
    config.bos_token = tokens[marks.begin] if marks.begin != NO_MARK else tokens[0]
    config.eos_token = tokens[marks.end] if marks.end != NO_MARK else tokens[0]
    config.unk_token = "<unk>" if "<unk>" in tokens else config.eos_token


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary by its numbers; rows that no token has are given names."""
    named = (tokenizer.library.id_to_token(number) for number in range(tokenizer.size))
    return [f"<row {number}>" if token is None else token for number, token in enumerate(named)]


def fill_stack(spec: Any, stack: "Stack", settings: Any) -> None:
    if settings.positions.kind != "rotary":
        table: Any = stack.positions.table
        spec.position_encodings.encodings = weight(table.weight if isinstance(table, nn.Embedding) else table)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings  # of an encoder, which asks for them even where it turns its queries
    if settings.norm_first:
        fill_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.layers()):
        fill_block(layer, block, None if settings.scale_scores else 1.0)


def fill_block(spec: Any, block: "Block", scale: float | None) -> None:
    own = block.self_attention
    fill_linear(spec.self_attention.linear[0], [own.to_q, own.to_k, own.to_v])
    fill_linear(spec.self_attention.linear[1], [own.to_out])
    fill_norm(spec.self_attention.layer_norm, block.around_self.norm)
    attended = [spec.self_attention]
    if hasattr(spec, "attention"):
        cross = block.cross_attention
        fill_linear(spec.attention.linear[0], [cross.to_q])
        fill_linear(spec.attention.linear[1], [cross.to_k, cross.to_v])
        fill_linear(spec.attention.linear[2], [cross.to_out])
        fill_norm(spec.attention.layer_norm, block.around_cross.norm)
        attended.append(spec.attention)
    for place in attended if scale is not None else ():
        place.queries_scale = weight(torch.tensor(scale))
    feed = block.feed_forward
    fill_norm(spec.ffn.layer_norm, block.around_feed_forward.norm)
    fill_linear(spec.ffn.linear_0, [feed.inner if feed.gate is None else feed.gate])
    if feed.gate is not None:
        fill_linear(spec.ffn.linear_0_noact, [feed.inner])
    fill_linear(spec.ffn.linear_1, [feed.outer])


def fill_linear(spec: Any, layers: Sequence[nn.Linear]) -> None:
    """Layers that read the same, as one."""
    spec.weight = weight(torch.cat([layer.weight for layer in layers]))
    if layers[0].bias is not None:
        spec.bias = weight(torch.cat([layer.bias for layer in layers]))


def fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = weight(norm.weight)  # type: ignore[arg-type]
    if hasattr(spec, "beta"):
        spec.beta = weight(norm.bias)  # type: ignore[arg-type]


def weight(tensor: Tensor) -> Any:
    return tensor.detach().cpu().float().contiguous().numpy()

"""Inference without padding: rows of various lengths run as one long row, with attention within each (Zhai et al. 2023)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.attention.masks import NO_MASK, Mask, PaddedRows
from regard.attention.modules import AttentionHook
from regard.attention.sparse_attention import pack_rows

MIN_POSITIONS = 4096
"""Smaller batches wait for the host, which has to know the lengths, longer than padding costs."""
MAX_FILLED = 0.95
"""Fuller batches run with their padding."""


def knows_lengths(x: Tensor, mask: Mask) -> bool:
    """Return whether the host may wait for the lengths of these ids (B, T) or embeddings (B, T, D): inference on a GPU."""
    if not x.is_cuda or torch.is_grad_enabled() or mask.structure != {"lengths"} or x.shape[:2].numel() < MIN_POSITIONS:
        return False
    return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


def run_without_padding(run: Callable[[Tensor, Mask], Tensor], x: Tensor, mask: Mask, *, may_pack: Callable[[], bool]) -> Tensor:
    """Return `run(x, mask)`, (B, T, D) -> (B, T, E): without a mask where there is no padding; else, if `may_pack()`, without
    computing the padding, whose vectors are zeros."""
    lengths, (B, T) = mask.read_lengths(), x.shape[:2]
    if min(lengths) == T:
        return run(x, NO_MASK)
    if sum(lengths) > MAX_FILLED * B * T or not may_pack():
        return run(x, mask)
    documents = pack_rows(lengths, x.device)
    at = (documents.index * T + documents.positions)[0]  # (N,)
    packed = run(x.flatten(0, 1)[at][None], Mask.packed(documents, PaddedRows(T, mask)))  # (1, N, E)
    return packed.new_zeros(B * T, packed.size(-1)).index_copy_(0, at, packed[0]).view(B, T, -1)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module or a part of it has hooks, other than those of `watch`, which can handle rows without padding. This
    runs before every pass, while a GPU waits, so that it reads the modules directly: `modules()` takes three times as long."""
    parts = [module]
    for part in parts:
        if is_hooked(part):
            return True
        parts.extend(filter(None, part._modules.values()))
    return False


def is_hooked(module: nn.Module) -> bool:
    """Return whether hooks see the inputs, outputs or gradients of a module itself."""
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    if not (module._forward_hooks or module._forward_pre_hooks):  # nearly all modules
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not all(isinstance(hook, AttentionHook) for hook in hooks)

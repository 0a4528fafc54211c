"""Attention implementations of transformers that call no function of torch: flash-attn, kernels of the hub, Flex attention.

transformers looks up every implementation by its name in one table, and calls all of them in the same way. While a model is
watched or edited, these entries of the table announce their queries, keys, values and mask before they run. `sdpa` and `eager`
are left alone: their calls of torch are seen.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import has_torch_function

from regard.attention.core import SoftCappedScore, visible_attention
from regard.attention.masks import Mask
from regard.errors import UserError

Implementation = Callable[..., tuple[Tensor, Tensor | None]]
SEEN_BY_ITSELF = ("sdpa", "eager", "paged|eager")
_lock = threading.Lock()
_watchers = 0


@contextmanager
def visible_implementations() -> Iterator[None]:
    """Let function modes see the implementations in transformers' table; threads without such a mode are not affected."""
    modeling = sys.modules.get("transformers.modeling_utils")
    table = getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None)
    if table is None:  # no model of transformers 4.48 or later is in memory
        yield
        return
    _count_watchers(table, +1)
    try:
        yield
    finally:
        _count_watchers(table, -1)


def _count_watchers(table: Any, change: int) -> None:
    """Put the visible implementations into the table for the first watcher, and take them out after the last."""
    global _watchers
    with _lock:
        _watchers += change
        for name in list(table.valid_keys()):
            visible = isinstance(table[name], partial) and table[name].func is _attend_visibly
            if change > 0 and not visible and name not in SEEN_BY_ITSELF:
                table[name] = partial(_attend_visibly, table[name])  # in this table alone, over the one that all share
            elif not _watchers and visible:
                del table[name]


def _attend_visibly(
    implementation: Implementation,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Call an implementation of transformers with queries (B, H, T, K); its output is (B, T, H, J)."""
    call = partial(implementation, module, query, key, value, attention_mask, **options)
    if not has_torch_function((query,)):
        return call()
    if options.get("s_aux") is not None:
        raise UserError("attention sinks are not seen in this implementation: load the model with attn_implementation='eager'")
    cap, scale = options.get("softcap"), options.get("scaling")
    output = _announce(
        query,
        key,
        value,
        score=None if cap is None else SoftCappedScore(scale, cap),
        scale=scale,
        dropout=options.get("dropout", 0.0),
        compute=lambda: call()[0].transpose(1, 2),
        **_mask_and_bias(module, query, key, attention_mask, options),
    )
    return output.transpose(1, 2), None


@visible_attention
def _announce(q: Tensor, k: Tensor, v: Tensor, *, compute: Callable[[], Tensor], **seen: object) -> Tensor:
    """Return the output (B, H, T, J) that `compute` gives; the other arguments are for whoever watches."""
    return compute()


def _mask_and_bias(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Any, options: dict[str, Any]
) -> dict[str, Mask | Tensor | None]:
    """Read what transformers gives as a mask: padding (B, S), the whole mask (B, H, T, S), a block mask of Flex, or nothing."""
    (B, H, T, _), S = query.shape, key.size(2)
    if hasattr(attention_mask, "mask_mod"):
        from torch.nn.attention.flex_attention import create_mask

        return {"mask": Mask(allowed=create_mask(attention_mask.mask_mod, B, H, T, S, device=str(query.device)))}
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4:
        whole = attention_mask[..., :S]
        return {"mask": Mask(allowed=whole)} if whole.dtype == torch.bool else {"bias": whole}
    causal = options.get("is_causal")
    mask = Mask(causal=getattr(module, "is_causal", True) if causal is None else causal, window=options.get("sliding_window"))
    if isinstance(attention_mask, Tensor):
        keys = attention_mask[:, -S:].bool()
        mask &= Mask(allowed=F.pad(keys, (0, S - keys.size(1)))[:, None, None])
    documents = _packed_documents(B, S, options)
    return {"mask": mask if documents is None else mask & Mask(documents=documents)}


def _packed_documents(B: int, S: int, options: dict[str, Any]) -> Tensor | None:
    """Return the document of each position (B, S) where sequences are packed into one row: by their boundaries, or by
    positions that start again at 0, as in transformers."""
    boundaries, positions = options.get("cu_seq_lens_k"), options.get("position_ids")
    if boundaries is not None:
        at = torch.arange(S, device=boundaries.device)
        return torch.bucketize(at, boundaries[1:].to(at.dtype), right=True)[None]
    if B == 1 and isinstance(positions, Tensor) and positions.shape == (1, S):
        return (positions == 0).cumsum(1)
    return None

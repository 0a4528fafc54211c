"""Heads that a request switches off: their weights are zero while that request runs, and for no other one."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import nn

from regard.attention.interception import CROSS_NAMES, HEAD_COUNTS
from regard.attention.modules import attention_like_modules, layer_index, named_modules
from regard.errors import UserError
from regard.explain.heads import HeadId, ablate_heads
from regard.server.request_types import AblatedHead
from regard.tasks.base import Run


def ablated(run: Run, heads: Sequence[AblatedHead]) -> AbstractContextManager[None]:
    """Inside the block, the weights of these heads of the run's model are zero."""
    return ablate_heads(run.model, [find_head(run.model, head) for head in heads])


def find_head(model: nn.Module, place: AblatedHead) -> HeadId:
    """Return the module of a head and its index there, counted from 0; raise UserError where the model has no such head."""
    *kinds, layer, head = place.split(".")
    kind = kinds[0] if kinds else None
    modules = named_modules(model)
    names = [name for name in attention_like_modules(modules) if is_kind(name, kind)]
    layers = {(layer_index(name) or 0) + 1: name for name in names}
    where = f"{kind} attention" if kind else "the model"
    if len(layers) < len(names):
        raise UserError(f"ablate: the model has several kinds of attention; name one, as in cross.{place}")
    if int(layer) not in layers:
        numbers = f"layers {min(layers)} to {max(layers)}" if layers else "no layers that can be switched off"
        raise UserError(f"ablate: {where} has {numbers}, not {layer}")
    name = layers[int(layer)]
    counts = (getattr(modules[name], attribute, None) for attribute in HEAD_COUNTS)
    count = next((number for number in counts if isinstance(number, int)), None)
    if count is not None and int(head) > count:
        raise UserError(f"ablate: layer {layer} of {where} has heads 1 to {count}, not {head}")
    return name, int(head) - 1


def is_kind(name: str, kind: str | None) -> bool:
    """Return whether the attention module of this name is of a kind; of any, without a kind."""
    if kind is None:
        return True
    if CROSS_NAMES.search(name):
        return kind == "cross"
    return kind != "cross" and re.search(rf"(^|\.){kind}(\.|$)", name) is not None

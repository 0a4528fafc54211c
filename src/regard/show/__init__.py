"""Figures of what a model attends to: record, select, draw. The package itself can be called: `regard.show(model, …)`."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from regard.show.inline import InlineFigure
    from regard.tasks.shared.images import ImageInput


def show(
    model: "nn.Module",
    tokenizer: object,
    text: "ImageInput | list[str]",
    view: str = "heads",
    *,
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
    token: str | int | None = None,
    max_tokens: int | None = None,
    scale: str = "shown",
) -> "InlineFigure":
    """Show what a model of transformers attends to when it reads a text, as a figure that displays by itself in a notebook.

    `tokenizer` is its tokenizer, or of a model that reads images its image processor. `view` is "heads" (lines between tokens),
    "model" (all heads of all layers), "matrix", "token" (one token over the layers), "entropy", "neurons" (q·k of one head,
    component by component), "steps" (generation token by token), "lens" (what each layer would predict), "flow" (the text
    through the model, step by step) or "search" (what each head attends to in several texts); `kind` is "cross", "encoder" or
    "decoder"; `layer`, `head` and `token` are counted from 1. With `scale="absolute"` colours end at weight 1. The model may use
    any attention implementation, and is not changed.
    """
    from regard.show.selection import ViewSelection
    from regard.show.views import show_model

    selection = ViewSelection.of(view, kind, layer, head, token, scale=scale)
    return show_model(model, tokenizer, text, selection, max_tokens=max_tokens)


class ShowPackage(ModuleType):
    """Python puts this package in the place of the function `regard.show`, so that it must be one."""

    __call__ = staticmethod(show)


sys.modules[__name__].__class__ = ShowPackage

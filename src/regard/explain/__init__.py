"""Attributions of a model's outputs and how faithful they are. The package itself can be called: `regard.explain(model, …)`."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from regard.explain.explanation import Explanation
    from regard.tasks.shared.images import ImageInput


def explain(
    model: "nn.Module",
    tokenizer: object,
    text: "ImageInput",
    method: str = "all",
    *,
    label: str | None = None,
    word: str | None = None,
    position: str | int | None = None,
    fits: str | None = None,
    against: str | None = None,
) -> "Explanation":
    """Attribute an output of a model of transformers to the tokens of a text or the patches of an image, and test it.

    `tokenizer` is the model's tokenizer, image processor or processor. The output is what the model predicts: the next token, the
    word at a mask, a label, a word of the text that it writes; or the selected `label` or `word`. `position` is the word of the
    text whose prediction is explained, `fits` a text to compare an image with, `against` another output to contrast it with.
    """
    from regard.tasks.transformers_models import wrap_model

    given = {"label": label, "word": word, "fits": fits, "against": against}
    given["position"] = None if position is None else str(position)
    return wrap_model(model, tokenizer).explain(
        text, method, **{name: value for name, value in given.items() if value is not None}
    )


class ExplainPackage(ModuleType):
    """Python puts this package in the place of the function `regard.explain`, so that it must be one."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = ExplainPackage

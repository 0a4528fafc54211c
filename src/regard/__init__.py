"""Train, use and see through attention models.

run = regard.load("runs/demo")                open a run folder
run.translate("The dog sleeps.").text         translate
with regard.watch(model) as seen: …           record what any PyTorch model attends to
seen.show(tokens=…), run.show("The dog …")    show it, in a notebook or as a file
regard.Record.read("a.attn")                  read a recording from a file
regard.train("recipe.toml")                   train a model
regard.Trainer(MyModule).train("recipe.toml") train a torch.nn.Module of your own
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.attention.core import attend, attend_with_weights, context_attention, key_value_attention, self_attention
    from regard.attention.edit import edit
    from regard.attention.masks import Mask
    from regard.attention.record import Record
    from regard.attention.watch import watch
    from regard.explain import explain
    from regard.recipe import Recipe
    from regard.run.convert import convert
    from regard.run.evaluate import compare
    from regard.run.load import load
    from regard.run.train import train
    from regard.run.trainer import Trainer
    from regard.show import show
    from regard.studies.lr_finder import lr_find
    from regard.tasks.base import Run
    from regard.training.callbacks import Callback

_MODULES = {
    "Callback": "regard.training.callbacks",
    "Mask": "regard.attention.masks",
    "Recipe": "regard.recipe",
    "Record": "regard.attention.record",
    "Run": "regard.tasks.base",
    "Trainer": "regard.run.trainer",
    "attend": "regard.attention.core",
    "attend_with_weights": "regard.attention.core",
    "compare": "regard.run.evaluate",
    "context_attention": "regard.attention.core",
    "convert": "regard.run.convert",
    "edit": "regard.attention.edit",
    "explain": "regard.explain",
    "key_value_attention": "regard.attention.core",
    "load": "regard.run.load",
    "lr_find": "regard.studies.lr_finder",
    "self_attention": "regard.attention.core",
    "show": "regard.show",
    "train": "regard.run.train",
    "watch": "regard.attention.watch",
}
"""The public names and the modules that define them: imported when they are first used, so that `import regard` is instant."""

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Mask",
    "Recipe",
    "Record",
    "Run",
    "Trainer",
    "UserError",
    "__version__",
    "attend",
    "attend_with_weights",
    "compare",
    "context_attention",
    "convert",
    "edit",
    "explain",
    "key_value_attention",
    "load",
    "lr_find",
    "self_attention",
    "show",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return __all__

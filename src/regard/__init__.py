"""Train, use and see through attention models.

run = regard.load("runs/demo")            open a run folder
run.best(["The dog sleeps."])             translate
with regard.watch(run.model) as seen: …   see what it attends to
regard.Record.read("a.attn")              what was seen and kept in a file
regard.train("recipe.toml")               make a run
"""

from importlib import import_module
from typing import Any

from regard.errors import UserError

PUBLIC = {
    "Mask": "regard.attention.masks",
    "Recipe": "regard.recipe",
    "Record": "regard.attention.record",
    "Run": "regard.tasks.base",
    "attend": "regard.attention.core",
    "context_attention": "regard.attention.core",
    "convert": "regard.run.convert",
    "edit": "regard.attention.edit",
    "key_value_attention": "regard.attention.core",
    "load": "regard.run.load",
    "self_attention": "regard.attention.core",
    "train": "regard.run.train",
    "watch": "regard.attention.watch",
}

__version__ = "0.1.0"
__all__ = [
    "Mask",
    "Recipe",
    "Record",
    "Run",
    "UserError",
    "__version__",
    "attend",
    "context_attention",
    "convert",
    "edit",
    "key_value_attention",
    "load",
    "self_attention",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: `import regard` itself stays instant."""
    if name in PUBLIC:
        return getattr(import_module(PUBLIC[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")

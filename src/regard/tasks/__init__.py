"""Tasks, one file each. A file defines a recipe type, a run class, and a `Task` object that names everything else.

Adding a task is adding a file: this package finds every `Task` object in its modules, and no other table lists tasks.
"""

import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch

from regard import recipe as recipes
from regard.errors import UserError
from regard.files import require_plain_folder
from regard.recipe import Recipe
from regard.recipe.parse import shorten
from regard.tasks.base import Run
from regard.tasks.starters.starter import Starter, StarterOptions
from regard.tasks.task import Task
from regard.training.checkpoint import load_weights, read_weights


@lru_cache(maxsize=1)
def all_tasks() -> tuple[Task, ...]:
    """Return every task, by the name of its file."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    return tuple(value for module in modules for value in vars(module).values() if _is_defined(value, module.__name__))


def _is_defined(value: object, module: str) -> bool:
    """Whether a value is a task of this module: the run class, or that of a variant of it, is defined there."""
    return isinstance(value, Task) and value.run.__module__ == module


def task_names(*, trainable: bool = True) -> list[str]:
    """Return the names of the tasks that have a recipe, or of all."""
    return list(dict.fromkeys(task.name for task in all_tasks() if task.recipe is not None or not trainable))


_own_tasks: dict[tuple[str, str], Task] = {}
"""Tasks with models of users, by the task's name and `model.kind`."""


def register_task(task: Task) -> Task:
    """Make a task with other models known in this process, in the place of one of the same kinds."""
    _own_tasks.update({(task.name, kind): task for kind in task.models})
    return task


def find_task(name: str, kind: str | None = None) -> Task:
    """Return the task of this name whose models include `kind`; by default the first, which reads texts."""
    if kind is not None and (name, kind) in _own_tasks:
        return _own_tasks[name, kind]
    found = [task for task in all_tasks() if task.name == name]
    if not found:
        raise UserError(f"no task {name!r}; there are: {', '.join(task_names())}")
    return next((task for task in found if kind in task.models), found[0])


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a TOML file, with `a.b=c` overrides applied. A relative data.root starts at the working folder, or, if
    the data is not there, at the recipe's own folder; that of a run at the run's folder first."""
    recipe, path = build_recipe(recipes.read_settings(path, overrides), name=str(path)), Path(path)
    return recipe.model_copy(update={"data": recipe.data.locate(path.parent, first=path.name == "recipe.toml")})


def parse_recipe(text: str, overrides: Sequence[str] = (), *, name: str = "recipe") -> Recipe:
    """Return the recipe in a TOML text, with `a.b=c` overrides applied."""
    return build_recipe(recipes.parse_settings(text, overrides, name=name), name=name)


def parse_initial(text: str) -> Recipe:
    """Return the recipe in a TOML text as it is trained: with the architecture of the run that it starts from."""
    return build_recipe(initial_settings(recipes.parse_settings(text, (), name="recipe")))


def build_recipe(settings: dict[str, object], *, name: str = "recipe") -> Recipe:
    """Return the recipe of nested settings, checked."""
    task, model = settings.get("task", "translate"), settings.get("model")
    if not isinstance(task, str) or task not in task_names():
        raise UserError(f"{name}: task = {shorten(task)}: should be {' or '.join(task_names())}")
    kind, module = (str(model.get("kind")), model.get("module")) if isinstance(model, dict) else (None, None)
    found = find_task(task, kind)
    if module is not None and kind not in found.models:
        raise UserError(
            f"{name}: model.kind = {kind!r} is a model of your own: import it from the module {module!r}, and open it with "
            f"regard.Trainer({kind}, {task!r})"
        )
    assert found.recipe is not None
    return recipes.validate_recipe(found.recipe, settings, name=name)


def initial_settings(settings: dict[str, object]) -> dict[str, object]:
    """Return the settings of a recipe to be trained, with the architecture of the run that it starts from (train.init_from)."""
    from regard.tasks.shared.init_from import copy_architecture

    train, name = settings.get("train"), settings.get("task", "translate")
    if not isinstance(train, dict) or "init_from" not in train or not isinstance(name, str) or name not in task_names():
        return settings
    model = settings.get("model")
    kind = str(model.get("kind")) if isinstance(model, dict) else None
    return copy_architecture(settings, find_task(name, kind))


def recipe_task(recipe: Recipe) -> Task:
    """Return the task of a recipe."""
    return find_task(recipe.task, recipe.model.kind)


def load_run_folder(folder: Path, device: torch.device) -> Run:
    """Load a finished run folder; `regard.load` also takes Hugging Face folders and names on the hub."""
    require_plain_folder(folder)
    recipe = read_recipe(folder / "recipe.toml")
    task = recipe_task(recipe)
    run = task.run(task, folder, recipe, device)
    with torch.no_grad():
        load_weights(run.model, read_weights(folder / "model.safetensors"), str(folder / "model.safetensors"))
    return run


def starter_recipe(task: str, files: Sequence[Path], options: StarterOptions | None = None) -> Starter:
    """Return the starter recipe of a task for data files."""
    starters = {found.name: found.starter for found in reversed(all_tasks()) if found.starter is not None}
    if task not in starters:
        raise UserError(f"no starter recipe for the task {task!r}; there are: {', '.join(sorted(starters))}")
    return starters[task](files, options or StarterOptions())

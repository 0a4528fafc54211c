"""Train a model of one's own: `regard.Trainer` makes a `torch.nn.Module` a model of a task (docs/own-model.md).

All else, from the data to the checkpoints, is what `regard.train` does with the models of the package.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import create_model
from torch import Tensor, nn

from regard import tasks
from regard.batches.batch import Batch
from regard.errors import UserError
from regard.recipe import OwnModel
from regard.run.load import load_native
from regard.run.train import RecipeSource, train
from regard.tasks.base import Run
from regard.tasks.task import EvaluationResult, Task
from regard.training.callbacks import Callback
from regard.training.losses import Objective

BuildModel = Callable[..., nn.Module]
REQUIRED_METHODS = {
    **dict.fromkeys(("generate", "stream", "translate", "align", "caption"), "step"),
    "embed": "hidden_states",
    "resize": "resize",
}
"""What a verb of a run needs of a model besides `forward`: `step` of the decoding protocol, with `start`, or `hidden_states`."""


class Trainer:
    """Train, resume, load and score a model of one's own with the data, the training loop and the scores of a task.

    `model` is a class, or a function, that returns a `torch.nn.Module`. It is called with the sizes that depend on the data (of
    the vocabulary, and the number of labels) and with the recipe's `model.options` by name. The module's `forward` takes the
    inputs of the task by name, and returns logits. If the module has a method `loss(output, batch)`, which returns the *sum* of
    the losses of all labels, that replaces the loss of the task. `task` names the task; `like` is a `model.kind` of the package
    that reads the same data, for a task that has several: `Trainer(MyNet, "classify", like="vit")` reads images.
    """

    def __init__(self, model: BuildModel, task: str = "language", *, like: str | None = None):
        self.name = getattr(model, "__name__", "")
        if not self.name.isidentifier():
            raise UserError(f"regard.Trainer({model!r}): give a class or a function with a name, which the run folder records")
        self._module = model.__module__
        self.task = tasks.register_task(own_task(model, self.name, tasks.find_task(task, like)))

    def train(
        self,
        recipe: RecipeSource,
        out: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        device: str = "auto",
        resume: bool = False,
        verify: int = 0,
        accept_changes: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Run:
        """Train a recipe, or with `resume` continue a run folder, as `regard.train` does; return the finished run.

        Of the recipe's `[model]`, `max_length` and `options` count.
        """
        names = [] if resume else [f"model.kind={self.name}", f"model.module={self._module}"]
        return train(
            recipe,
            out,
            overrides=[*overrides, *names],
            device=device,
            resume=resume,
            verify=verify,
            accept_changes=accept_changes,
            callbacks=callbacks,
        )

    def load(self, folder: str | Path, *, device: str = "auto") -> Run:
        """Load a run folder that was trained with this model."""
        return load_native(folder, device=device)

    def evaluate(
        self, folder: str | Path, data: str | Path | None = None, *, device: str = "auto", save: bool = True
    ) -> list[EvaluationResult]:
        """Score a run on the test sets of its recipe (or its validation set), or on a file; write scores.json."""
        return self.load(folder, device=device).evaluate(data, save=save)


def own_task(model: BuildModel, name: str, like: Task) -> Task:
    """Return a task with this model in the place of its own ones."""
    if like.recipe is None:
        raise UserError(f"the task {like.name!r} is never trained; use one of: {', '.join(tasks.task_names())}")
    if name in like.models:
        raise UserError(f"{name}: the task {like.name!r} has a model of this name; choose another")
    return replace(
        like,
        recipe=create_model(like.recipe.__name__, __base__=like.recipe, model=(OwnModel, ...)),
        models={name: lambda settings, *sizes: build_model(model, settings, sizes)},
        loss=lambda run: own_loss(run.model) or like.loss(run),
        verbs=tuple(verb for verb in like.verbs if hasattr(model, REQUIRED_METHODS.get(verb, "__call__"))),
        pretrained=None,
        explains=None,
        starter=None,
    )


def build_model(model: BuildModel, settings: OwnModel, arguments: Sequence[object]) -> nn.Module:
    """Call a model's class with the sizes among the arguments of a task's models, and with its options."""
    sizes = [one for one in arguments if isinstance(one, int | tuple)]
    try:
        inspect.signature(model).bind(*sizes, **settings.options)
    except TypeError as error:
        raise UserError(
            f"{settings.kind}{inspect.signature(model)} is called with the sizes {', '.join(map(str, sizes)) or '(none)'} "
            f"and model.options = {settings.options}: {error}"
        ) from None
    built = model(*sizes, **settings.options)
    if not isinstance(built, nn.Module):
        raise UserError(f"{settings.kind} returned {type(built).__name__}, which is no torch.nn.Module")
    return built


def own_loss(model: nn.Module) -> Objective | None:
    """Return the loss of a model that has its own."""
    if not hasattr(model, "loss"):
        return None

    def objective(module: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = module.loss(module(**batch.inputs), batch)  # type: ignore[operator]
        return loss

    return objective

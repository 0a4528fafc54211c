"""Loggers of `train.log`: TensorBoard, Weights & Biases and MLflow. Each needs a package, which is imported only if it is named.

A resumed run continues the one it began there: the run folder keeps its id.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from regard.errors import UserError
from regard.files import atomic_write
from regard.recipe import Recipe
from regard.recipe.settings import flatten
from regard.training.callbacks import Callback, LogValue

if TYPE_CHECKING:
    from regard.tasks.base import Run

RUN_IDS = "loggers.json"
"""The file of a run folder with the id of the run in each service."""
PROJECT = "regard"
EXTRAS = {"tensorboard": "board"}
"""Loggers whose extra has another name."""
MAX_PARAM_LENGTH = 500
"""Characters of a setting's value in MLflow."""


class Tracker(Protocol):
    """What a logger needs of a service."""

    error: type[Exception]
    """The base class of what its package raises."""
    cure: str

    def open(self, folder: Path, recipe: Recipe, step: int, run_id: str | None) -> str | None:
        """Begin a run, or continue that of an id after a step; return its id."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step."""

    def close(self, finished: bool) -> None:
        """End the run."""


class MetricLogger(Callback):
    """Send all numbers of a training run to a service."""

    def __init__(self, name: str):
        """Import the service's package, or say how to install it."""
        self.name = name
        self._tracker = TRACKERS[name]()
        self._is_open = False

    def on_begin(self, run: "Run", step: int) -> None:
        path = run.folder / RUN_IDS
        ids = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        with self._explained():
            run_id = self._tracker.open(run.folder, run.recipe, step, ids.get(self.name))
        self._is_open = True
        if run_id is not None and run_id != ids.get(self.name):
            atomic_write(path, json.dumps({**ids, self.name: run_id}, indent=1) + "\n")

    def on_step(self, step: int, values: Mapping[str, LogValue]) -> None:
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        with self._explained():
            self._tracker.log(step, numbers)

    def on_evaluate(self, step: int, scores: Mapping[str, float], best: bool) -> None:
        with self._explained():
            self._tracker.log(step, scores)

    def on_end(self, finished: bool) -> None:
        if self._is_open:
            self._is_open = False
            with self._explained():
                self._tracker.close(finished)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._tracker.error as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"train.log: {self.name} failed: {reason}; {self._tracker.cure}") from None


def make_loggers(names: Sequence[str]) -> list[Callback]:
    """Return the loggers of `train.log`."""
    return [MetricLogger(name) for name in dict.fromkeys(names)]


def import_package(name: str, module: str) -> ModuleType:
    """Import the package of a logger."""
    try:
        return import_module(module)
    except ImportError:
        extra = EXTRAS.get(name, name)
        raise UserError(f'train.log = ["{name}"] needs a package that is not installed: pip install "regard[{extra}]"') from None


class TensorBoard:
    """Write event files into `tensorboard/` of the run folder."""

    error: type[Exception] = OSError
    cure = "free the disk, then resume"

    def __init__(self) -> None:
        self._module = import_package("tensorboard", "torch.utils.tensorboard")
        self._writer: Any = None

    def open(self, folder: Path, recipe: Recipe, step: int, run_id: str | None) -> None:
        # what an interrupted run logged after the checkpoint is hidden, since it is logged again
        self._writer = self._module.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, finished: bool) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Log to wandb: its project is WANDB_PROJECT, and with WANDB_MODE=offline `wandb sync` uploads the run later."""

    cure = "log in with: wandb login, or set WANDB_MODE=offline"

    def __init__(self) -> None:
        self._wandb = import_package("wandb", "wandb")
        self.error: type[Exception] = self._wandb.errors.Error
        self._run: Any = None

    def open(self, folder: Path, recipe: Recipe, step: int, run_id: str | None) -> str:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=run_id,
            resume="allow",
            config=recipe.model_dump(mode="json"),
            dir=str(folder),
            settings={"console": "off"},  # it would record every redrawing of the progress line
        )
        return str(self._run.id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """Log to MLflow: to the experiment MLFLOW_EXPERIMENT_NAME of the store MLFLOW_TRACKING_URI."""

    cure = "see MLFLOW_TRACKING_URI"

    def __init__(self) -> None:
        self._mlflow = import_package("mlflow", "mlflow")
        self.error: type[Exception] = self._mlflow.exceptions.MlflowException
        self._client: Any = None
        self._run_id = ""

    def open(self, folder: Path, recipe: Recipe, step: int, run_id: str | None) -> str:
        self._client = self._mlflow.MlflowClient()
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            run_id = str(self._client.create_run(number, run_name=folder.name).info.run_id)
            for setting, value in flatten(recipe.model_dump(mode="json", exclude_none=True)):
                self._client.log_param(run_id, setting, str(value)[:MAX_PARAM_LENGTH])
        self._run_id = run_id
        return run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        entries = [self._mlflow.entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=entries)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if finished else "FAILED")


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}

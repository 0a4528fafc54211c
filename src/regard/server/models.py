"""The models that a server was started with, by their names, and what each can be asked."""

import copy
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from regard.errors import UserError
from regard.run.load import load
from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.response_types import ModelInfo
from regard.server.settings import ServerSettings
from regard.server.worker import Worker
from regard.show.recording import attention_kinds
from regard.tasks.base import Run
from regard.tasks.shared.chat import chat_template

VERBS = ("translate", "generate", "fill", "classify", "tag", "answer", "embed", "caption", "match", "draw")
"""The verbs that the API offers, in this order."""
DECODING_VERBS = {"translate", "generate", "caption"}
MAX_LABELS = 1000
InputKind = Literal["text", "image"]


class ServedModel:
    """A model, what it is, and the threads that it works in: where it writes for many at once, a twin of it does everything else,
    so that who looks at one text does not hold up the others, and is not shown their attention."""

    def __init__(self, name: str, run: Any, settings: ServerSettings, metrics: Metrics):
        self.name, self.run = name, run
        self.reads: list[InputKind] = list(run.task.reads)
        self.about = describe_model(name, run, self.reads)
        self.worker = Worker(name, run, settings, metrics)
        self.looker = Worker(name, run, settings, metrics, "looks") if DECODING_VERBS & set(self.about.verbs) else self.worker

    @property
    def workers(self) -> list[Worker]:
        return [self.worker] if self.looker is self.worker else [self.worker, self.looker]

    @cached_property
    def twin(self) -> Any:
        """The same run with weights of its own, made when it is first needed."""
        if self.looker is self.worker:
            return self.run
        twin = copy.copy(self.run)
        twin.model = copy.deepcopy(self.run.model)
        return twin


class ServedModels:
    """All models; there are no others."""

    def __init__(self, runs: dict[str, Any], settings: ServerSettings, metrics: Metrics):
        if not runs:
            raise UserError("no model to serve; give at least one run folder")
        self.models = {name: ServedModel(name, run, settings, metrics) for name, run in runs.items()}

    @property
    def workers(self) -> list[Worker]:
        return [worker for served in self.models.values() for worker in served.workers]

    def full(self, client: str) -> ApiError | None:
        """What is answered where no model has room, whatever is asked."""
        answers = [served.worker.full(client) for served in self.models.values()]
        return answers[0] if all(answers) else None

    def find(self, name: str | None, verb: str) -> ServedModel:
        """The model of this name, or the first that has the verb."""
        if name is None:
            able = next((served for served in self.models.values() if verb in served.about.verbs), None)
            if able is None:
                raise ApiError(422, f"no model here can do this; there are: {', '.join(self.models)}", code="no_such_verb")
            return able
        if name not in self.models:
            raise ApiError(
                404, f"there is no such model; there are: {', '.join(self.models)}", code="model_not_found", param="model"
            )
        served = self.models[name]
        if verb not in served.about.verbs:
            raise ApiError(
                422,
                f"{name} {served.about.does} and cannot {verb}; it can: {', '.join(served.about.verbs)}",
                code="no_such_verb",
                param="model",
            )
        return served


def describe_model(name: str, run: Any, reads: list[InputKind]) -> ModelInfo:
    attends = bool(run._attends) and "embed" in run.task.verbs
    return ModelInfo(
        id=name,
        created=int(time.time()),
        task=run.recipe.task,
        does=run.task.does,
        verbs=supported_verbs(run, attends),
        reads=reads,
        attends=attends,
        kinds=attention_kinds(run) if attends else [],
        labels=list(getattr(run, "labels", []))[:MAX_LABELS],
        tasks=list(getattr(run.recipe.data, "tasks", None) or []),
        max_length=run._max_positions,
        parameters=sum(weights.numel() for weights in run.model.parameters()),
        device=str(run.device),
        beam=run.recipe.decode.beam if {"translate", "caption"} & set(run.task.verbs) else None,
    )


def supported_verbs(run: Run, attends: bool) -> list[str]:
    found = [verb for verb in VERBS if verb in run.task.verbs]
    if attends:
        found.append("attention")
    if run.task.explains is not None:
        found.append("explain")
    if "generate" in found:
        found.append("completions")
    if chat_template(run) is not None:
        found.append("chat/completions")
    return [*found, "embeddings"] if "embed" in found and "text" in run.task.reads else found


def load_runs(given: Sequence[str], device: str) -> dict[str, Any]:
    """NAME=RUN, or RUN alone, which is called as its folder is."""
    runs: dict[str, Any] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or Path(one).exists():
            name, path = Path(one).resolve().name if Path(one).exists() else one, one
        if not name or len(name) > 200 or not name.isprintable():
            raise UserError(f"{one!r}: give a run folder, or NAME=RUN to call it otherwise")
        if name in runs:
            raise UserError(f"two models are called {name!r}; call one of them otherwise: NAME={path}")
        runs[name] = load(path, device=device)
    return runs

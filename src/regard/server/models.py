"""The models that a server was started with, by name, and the verbs that each supports."""

import copy
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from regard.errors import UserError
from regard.files import path_exists
from regard.interop.huggingface_files import LABEL_TASKS
from regard.run.load import load
from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.response_types import ModelInfo
from regard.server.settings import ServerSettings
from regard.server.worker import DECODING_VERBS, Worker
from regard.show.forward_pass.flow import has_flow
from regard.show.forward_pass.lens import has_lens
from regard.show.recording import attention_kinds
from regard.tasks.base import Run
from regard.tasks.classify import ClassifyRun
from regard.tasks.shared.chat import chat_template
from regard.tasks.transformers_models import TransformersRun

VERBS = ("translate", "generate", "fill", "classify", "tag", "answer", "embed", "caption", "match", "draw")
"""Verbs that are methods of a run."""
BEAM_VERBS = {"translate", "caption"}
IMAGE_VERBS = {"caption", "match", "classify", "embed", "attention", "explain"}
"""Verbs whose requests may have an image."""
MAX_LABELS = 1000


class ServedModel:
    """A model and its workers. A model that decodes has two: one decodes texts in batches, the other does everything else, on a
    copy of the weights: explaining one text then neither delays the others nor records their attention."""

    def __init__(self, name: str, run: Run, settings: ServerSettings, metrics: Metrics):
        self.name, self.run = name, run
        private = settings.loopback and settings.token is None
        self.info = describe_model(name, run).model_copy(update={"path": str(run.folder) if private else None})
        self.worker = Worker(name, run, settings, metrics)
        decodes = not DECODING_VERBS.isdisjoint(self.info.verbs)
        self.analysis_worker = Worker(name, run, settings, metrics, "analysis") if decodes else self.worker

    @property
    def workers(self) -> list[Worker]:
        return [self.worker] if self.analysis_worker is self.worker else [self.worker, self.analysis_worker]

    @cached_property
    def analysis_run(self) -> Run:
        """The run for everything but decoding: a copy with its own weights, made when it is first needed."""
        if self.analysis_worker is self.worker:
            return self.run
        replica = copy.copy(self.run)
        replica.model = copy.deepcopy(self.run.model)
        return replica


class ServedModels:
    """All models of a server; the list is fixed when it starts."""

    def __init__(self, runs: Mapping[str, Run], settings: ServerSettings, metrics: Metrics):
        if not runs:
            raise UserError("no model to serve; give at least one run folder")
        self.by_name = {name: ServedModel(name, run, settings, metrics) for name, run in runs.items()}

    @property
    def workers(self) -> list[Worker]:
        return [worker for model in self.by_name.values() for worker in model.workers]

    @property
    def image_endpoints(self) -> frozenset[str]:
        """The paths at which some model reads an image."""
        readers = [model.info for model in self.by_name.values() if "image" in model.info.inputs]
        return frozenset(f"/v1/{verb}" for info in readers for verb in info.verbs if verb in IMAGE_VERBS)

    def rejection(self, client: str) -> ApiError | None:
        """Return an error if no model's queue has room for another job of this client."""
        errors = [model.worker.rejection(client) for model in self.by_name.values()]
        return errors[0] if all(errors) else None

    def find_name(self, name: str) -> ServedModel:
        """Return the model of this name."""
        if name not in self.by_name:
            message = f"there is no such model; the models are: {', '.join(self.by_name)}"
            raise ApiError(404, message, code="model_not_found", param="model")
        return self.by_name[name]

    def find(self, name: str | None, verb: str) -> ServedModel:
        """Return the model of this name, or without a name the first that supports the verb."""
        if name is None:
            able = next((model for model in self.by_name.values() if verb in model.info.verbs), None)
            if able is None:
                message = f"no model here supports {verb}; the models are: {', '.join(self.by_name)}"
                raise ApiError(422, message, code="unsupported_verb")
            return able
        model = self.find_name(name)
        if verb not in model.info.verbs:
            supported = ", ".join(model.info.verbs)
            message = f"{name} {model.info.description} and does not support {verb}; it supports: {supported}"
            raise ApiError(422, message, code="unsupported_verb", param="model")
        return model


def describe_model(name: str, run: Run) -> ModelInfo:
    has_attention = bool(run._attends) and ("embed" in run.task.verbs or run.task.run is TransformersRun)
    return ModelInfo(
        id=name,
        created=int(time.time()),
        task=run.recipe.task,
        description=run.task.does,
        verbs=supported_verbs(run, has_attention),
        inputs=list(run.task.reads),
        has_attention=has_attention,
        attention_kinds=attention_kinds(run) if has_attention else [],
        labels=cast(ClassifyRun, run).labels[:MAX_LABELS] if run.task.name in LABEL_TASKS else [],
        tasks=list(getattr(run.recipe.data, "tasks", ())) if run.task.name == "text-to-text" else [],
        max_length=run._max_positions,
        parameters=sum(weights.numel() for weights in run.model.parameters()),
        device=str(run.device),
        beam=None if BEAM_VERBS.isdisjoint(run.task.verbs) else run.recipe.decode.beam,
    )


def supported_verbs(run: Run, has_attention: bool) -> list[str]:
    """Return the endpoints under /v1 that work for a run."""
    verbs = [verb for verb in VERBS if verb in run.task.verbs]
    others = {
        "attention": has_attention,
        "explain": run.task.explains is not None,
        "lens": has_lens(run),
        "flow": has_flow(run),
        "search": has_attention and run.task.reads == ("text",) and "answer" not in run.task.verbs,
        "completions": "generate" in verbs,
        "chat/completions": chat_template(run) is not None,
        "embeddings": "embed" in verbs and "text" in run.task.reads,
    }
    return [*verbs, *(verb for verb, supported in others.items() if supported)]


def load_runs(arguments: Sequence[str], device: str) -> dict[str, Run]:
    """Load runs given as NAME=RUN, or as RUN, which is then named after its folder."""
    runs: dict[str, Run] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or path_exists(argument):
            name, path = Path(argument).resolve().name if path_exists(argument) else argument, argument
        if not name or len(name) > 200 or not name.isprintable():
            raise UserError(f"{argument!r}: give a run folder, or NAME=RUN to choose the model's name")
        if name in runs:
            raise UserError(f"two models are named {name!r}; rename one of them: NAME={path}")
        runs[name] = load(path, device=device)
    return runs

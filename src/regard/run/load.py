"""Load a run folder, a Hugging Face folder, or a name on the Hugging Face hub."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from regard.errors import UnsupportedModel, UserError
from regard.files import path_exists
from regard.hardware import choose_device
from regard.interop.convert import COPIED_FILES, HuggingFaceFolder, is_huggingface_folder, open_huggingface_folder
from regard.recipe import Answering, PairTokenSettings, Recipe
from regard.recipe.images import height_and_width
from regard.recipe.training import Training
from regard.tasks import find_task, load_run_folder
from regard.tasks.base import Run
from regard.tasks.task import ModelSettings, Task
from regard.tasks.transformers_models import open_with_transformers
from regard.tokens.special_tokens import SpecialTokens
from regard.training.checkpoint import load_weights, named_weights

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""owner/model"""
RUN_FILES = [
    *("recipe.toml", "config.json", "tokenizer*.json", "special_tokens.json", "labels.json", "scale.json"),
    *("*.safetensors", "README.md", "scores.json", "environment.json", "data.json"),
]
"""What a run folder needs to be loaded, and what describes it."""
LOCAL_FOLDERS = ("runs", ".", "..")
"""Where runs are written by default: a name there is a run that does not exist, and the hub is not asked for it."""
DOWNLOADED = [
    *COPIED_FILES,
    *RUN_FILES,
    "model.safetensors.index.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "added_tokens.json",
]
ENSEMBLE_VERBS = ("translate", "caption", "generate")
"""The verbs whose outputs several runs can predict together."""
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
CODE = ["*.py"]


def load(
    path: str | Path,
    *,
    ensemble: Sequence[str | Path] = (),
    device: str = "auto",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Run:
    """Load a run folder, a Hugging Face folder, or the name of one on the hub.

    The class of the result, and so its verbs, depends on the task: `TranslateRun.translate`, `LanguageRun.generate`,
    `MaskedRun.fill`, `ClassifyRun.classify`, `TagRun.tag`, `AnswerRun.answer`, `CaptionRun.caption`, `ContrastiveRun.match`,
    `TextToImageRun.draw`, and `embed`, `show` and `explain` for most. `dir(run)` lists them. A folder that none of our models
    fits is opened with transformers where that is installed, to be shown and explained; code in it is run only with
    `trust_remote_code`.

    `ensemble` names other runs whose models predict each token together with this one's: `translate`, `caption`, `generate` and
    `evaluate` use the mean of their probabilities. What is shown and explained is this run's model alone.
    """
    folder = find_folder(path, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    try:
        return load_native(folder, ensemble=ensemble, device=device, allow_pickle=allow_pickle)
    except UnsupportedModel as unsupported:
        if ensemble:
            raise
        try:
            return open_with_transformers(folder, choose_device(device), trust_remote_code=trust_remote_code)
        except UserError as error:
            raise UserError(f"{unsupported}; {error}") from None


def load_native(
    path: str | Path, *, ensemble: Sequence[str | Path] = (), device: str = "auto", allow_pickle: bool = False
) -> Run:
    """Load what `load` does, as a model of ours: to train, evaluate or convert it."""
    run = load_one(path, device=device, allow_pickle=allow_pickle)
    run._ensemble = tuple(load_one(other, device=device, allow_pickle=allow_pickle) for other in ensemble)
    require_ensemble(run)
    return run


def load_one(path: str | Path, *, device: str = "auto", allow_pickle: bool = False) -> Run:
    """Load a single run or Hugging Face folder as a model of ours."""
    folder = find_folder(path, allow_pickle=allow_pickle)
    if not path_exists(folder):
        raise UserError(f"{folder} does not exist; make one with: regard train RECIPE --out {folder}")
    if is_huggingface_folder(folder):
        return load_huggingface(folder, device=device, allow_pickle=allow_pickle)
    if not (folder / "recipe.toml").is_file():
        raise UserError(
            f"{folder} is not a run folder (it has no recipe.toml); make one with: regard train RECIPE --out {folder}"
        )
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    return load_run_folder(folder, choose_device(device))


def require_ensemble(run: Run) -> None:
    """Refuse an ensemble whose members do not write tokens of the same vocabulary for the same inputs."""
    for other in run._ensemble:
        if not set(ENSEMBLE_VERBS) & set(run.task.verbs):
            raise UserError(f"--ensemble {other.folder}: {run.folder} {run.task.does}; an ensemble is for runs that write text")
        if other.task is not run.task:
            raise UserError(f"--ensemble {other.folder}: it {other.task.does}, but {run.folder} {run.task.does}")
        if vocabularies(other) != vocabularies(run):
            raise UserError(
                f"--ensemble {other.folder}: its tokenizer is not that of {run.folder}; train both with the same tokens.file"
            )
        if other._config_sizes() != run._config_sizes():
            raise UserError(f"--ensemble {other.folder}: its images are not of the size of those of {run.folder} (data.size)")
        if other._max_positions < run._max_positions:
            raise UserError(
                f"--ensemble {other.folder}: it takes {other._max_positions} tokens, {run.folder} takes {run._max_positions}; "
                "name the one that takes fewer first"
            )


def vocabularies(run: Run) -> list[tuple[str, int, SpecialTokens]]:
    """Return what decides which ids a run reads and writes for a text."""
    return [(tokenizer.library.to_str(), tokenizer.size, tokenizer.special_tokens) for tokenizer in run.tokenizers]


def find_folder(path: str | Path, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> Path:
    """Return the folder of a path, or of a name on the hub."""
    is_hub_name = HUB_NAME.fullmatch(str(path)) and not path_exists(Path(path).parent)
    if is_hub_name and Path(path).parts[0] not in LOCAL_FOLDERS:
        patterns = [*DOWNLOADED, *(PICKLES if allow_pickle else []), *(CODE if trust_remote_code else [])]
        return download(str(path), patterns)
    return Path(path)


class PretrainedRecipe(Recipe):
    """The settings that a run reads from its recipe, for a model that came without one."""

    train: Training  # type: ignore[assignment]
    tokens: PairTokenSettings = PairTokenSettings()
    answering: Answering = Answering()

    def digest(self) -> str:
        """Return twelve hex digits that identify these settings."""
        settings = {"task": self.task, "model": self.model.model_dump(mode="json"), "decode": self.decode.model_dump(mode="json")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def load_huggingface(folder: Path, *, device: str = "auto", allow_pickle: bool = False) -> Run:
    """Load a Hugging Face folder as a run of its task.

    The model is first built on the meta device, and again once every tensor is known to fit.
    """
    chosen_device = choose_device(device)
    source = open_huggingface_folder(folder, allow_pickle=allow_pickle)
    task = find_task(source.task, source.settings["kind"])
    recipe = pretrained_recipe(source, task)
    weights = source.weights(tensor_shapes(source, task, recipe.model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # for weights that the folder does not have
        run = task.run(task, folder, recipe, chosen_device, source)
    with torch.no_grad():
        load_weights(run.model, {**named_weights(run.model), **weights}, str(folder))
    return run


def pretrained_recipe(source: HuggingFaceFolder, task: Task) -> PretrainedRecipe:
    """Return the settings of a Hugging Face folder as a recipe."""
    assert task.pretrained is not None, f"no settings for Hugging Face folders of the task {task.name}"
    model_type, data_type = task.pretrained
    try:
        model = model_type.model_validate(source.model)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"{source.config.path}: {problem}") from None
    train = (task.recipe or Recipe).model_fields["train"].get_default()
    return PretrainedRecipe(task=source.task, model=model, data=data_type.model_construct(**source.data), train=train)


def tensor_shapes(source: HuggingFaceFolder, task: Task, settings: ModelSettings) -> dict[str, torch.Size]:
    """Return the shape of every tensor of a model of these settings, without allocating it."""
    sizes: list[Any] = [height_and_width(source.data["size"])] if source.data else []
    if source.tokenizer is not None:
        sizes += [source.tokenizer.size] * (2 if task.encoder_decoder else 1)
    labels = [len(source.labels)] if source.labels else []
    with torch.device("meta"):
        model = task.build(settings, *sizes, *labels)
    return {name: tensor.shape for name, tensor in named_weights(model).items()}


def download(name: str, patterns: Sequence[str]) -> Path:
    """Return the folder of a name on the hub, from the cache or the network; HF_HUB_OFFLINE is respected."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError:
        raise UserError(f"{name} is no folder here; to look for it on the hub: pip install 'regard[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except HFValidationError:
        raise UserError(f"{name} does not exist, and is no name on the hub (owner/model)") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "the hub cannot be reached"
        raise UserError(
            f"{name} is neither a folder here nor in the hub's cache, and {why}; fetch it where there is a network "
            f"(hf download {name}) and give its folder"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{name} does not exist here, and the hub does not give it: {reason}") from None

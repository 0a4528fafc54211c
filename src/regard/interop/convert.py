"""Open a Hugging Face folder as a model of ours, and write a run as a Hugging Face folder."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import UnsupportedModel, UserError
from regard.files import atomic_folder, require_new_folder, require_plain_folder
from regard.interop.config import ConfigFile, integer
from regard.interop.equivalent import ExportedForm, equivalent_forms
from regard.interop.families import FAMILIES
from regard.interop.family_rules import Architecture, FlatSettings, ModelFamily, flatten_settings, nest_settings
from regard.interop.huggingface_files import LABEL_TASKS, huggingface_files, resolve_defaults
from regard.interop.preprocessor import read_preprocessor
from regard.interop.tensor_names import TensorMapper, UnmappedTensors, canonical_name, has_separate_output, to_huggingface_tensors
from regard.interop.tokenizer_config import find_mask_token, open_tokenizer, read_labels
from regard.interop.weight_files import TensorFiles, open_config, open_tensors
from regard.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.tasks.base import Run

COPIED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
)
"""Files of a folder that are written again unchanged."""
VOCAB_SIZE = integer(maximum=2**24)
EXPORTED_AS = {"span-corruption": "translate", "text-to-text": "translate", "regress": "classify"}
"""Tasks whose models are exported as those of another task."""


@dataclass
class HuggingFaceFolder:
    """A Hugging Face folder: its task, our settings of its model, its tokenizer; `weights` reads the tensors."""

    folder: Path
    family: ModelFamily
    architecture_name: str
    settings: FlatSettings
    tokenizer: Tokenizer | None
    """None if the model reads only images."""
    config: ConfigFile
    tensors: TensorFiles
    labels: list[str] = field(default_factory=list)
    mask: int | None = None
    """The id of the mask token."""
    unmapped: UnmappedTensors = field(default_factory=UnmappedTensors)

    @property
    def architecture(self) -> Architecture:
        return self.family.architectures[self.architecture_name]

    @property
    def task(self) -> str:
        """The task of the architecture; a classifier with one label is a regression."""
        return "regress" if self.architecture.task == "classify" and len(self.labels) == 1 else self.architecture.task

    @property
    def model(self) -> dict[str, Any]:
        """The settings as in a recipe's [model]."""
        return nest_settings({name: value for name, value in self.settings.items() if not name.startswith("data.")})

    @property
    def data(self) -> dict[str, Any]:
        """The settings as in a recipe's [data]: how images are resized."""
        return dict(nest_settings(self.settings).get("data", {}))

    def weights(self, expected: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Return the tensors that our model expects, by our names; all shapes are checked before any tensor is read."""
        weights, self.unmapped = TensorMapper(self.family, self.architecture, self.settings, self.tensors).read(expected)
        return weights


def is_huggingface_folder(folder: Path) -> bool:
    """Return whether a folder is a Hugging Face folder, and not a run of ours."""
    return (folder / "config.json").is_file() and not (folder / "recipe.toml").is_file()


def open_huggingface_folder(path: str | Path, *, allow_pickle: bool = False) -> HuggingFaceFolder:
    """Read and check everything in a folder but its weights."""
    folder = Path(path)
    require_plain_folder(folder)
    config = open_config(folder)
    family, name = identify_architecture(config)
    architecture = family.architectures[name]
    settings = family.read_config(config, architecture)
    text_config = None if family.text_section is None else config.section(family.text_section)
    rows = 0 if text_config is None else read_vocab_size(text_config)
    tensors = open_tensors(folder, allow_pickle=allow_pickle)
    settings |= settings_from_tensors(family, architecture, config, tensors)
    tokenizer = None if text_config is None else open_tokenizer(folder, text_config, family, rows)
    if family.image_processor:
        settings |= read_preprocessor(folder, family, settings["data.size"])
    labels = []
    if architecture.task in LABEL_TASKS:
        labels = read_labels(config)
        allow_regression = architecture.task == "classify" and not family.image_processor
        require_single_label(config, name, len(labels), allow_regression=allow_regression)
    mask = None if tokenizer is None else find_mask_token(folder, tokenizer)
    if architecture.task == "masked" and mask is None:
        raise UserError(f"{folder}/tokenizer.json has no mask token ([MASK] or <mask>)")
    return HuggingFaceFolder(folder, family, name, settings, tokenizer, config, tensors, labels, mask)


def require_single_label(config: ConfigFile, name: str, labels: int, *, allow_regression: bool) -> None:
    """Require that a classifier predicts one of several labels, or one number where regression is allowed."""
    problem = config.get("problem_type")
    if problem == "multi_label_classification" or (problem == "regression" and labels > 1):
        raise UnsupportedModel(
            f"{config.path}: {name} that predicts several labels or numbers at once is not supported; one of them is"
        )
    if labels == 1 and (not allow_regression or problem not in (None, "regression")):
        raise UserError(f"{config.path}: {name} with one label is not supported; it needs at least two")


def identify_architecture(config: ConfigFile) -> tuple[ModelFamily, str]:
    """Return the family and the architecture that a config.json names."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        shown = "has no model_type" if model_type is None else f"has model_type {str(model_type)[:60]!r}"
        error = UserError if model_type is None else UnsupportedModel
        raise error(f"{config.path} {shown}; regard supports {', '.join(FAMILIES)}")
    family, architectures = FAMILIES[model_type], config.get("architectures")
    if architectures is None or architectures == []:
        return family, family.bare
    name = architectures[0] if isinstance(architectures, list) else architectures
    if not isinstance(name, str) or name not in family.architectures:
        supported = ", ".join(family.architectures)
        expected = f"is not supported; {supported} are (to read the model without its head, write {family.bare})"
        raise config.unsupported("architectures", name, expected)
    return family, name


def read_vocab_size(config: ConfigFile) -> int:
    if config.get("vocab_size") is None:
        raise UserError(f"{config.path} has no vocab_size")
    rows: int = config.read("vocab_size", VOCAB_SIZE)
    if config.get("decoder_vocab_size") is not None and config.read("decoder_vocab_size", VOCAB_SIZE) != rows:
        expected = f"a separate target vocabulary is not supported (vocab_size = {rows})"
        raise config.unsupported("decoder_vocab_size", config.get("decoder_vocab_size"), expected)
    return rows


def settings_from_tensors(
    family: ModelFamily, architecture: Architecture, config: ConfigFile, tensors: TensorFiles
) -> FlatSettings:
    """Return the settings that depend on the tensors: whether the output is tied, whether there is a pooler."""
    names = {canonical_name(name, family) for name in tensors.shapes}
    settings = {name: present if tensor in names else absent for name, (tensor, present, absent) in architecture.inferred.items()}
    value = config.get("tie_word_embeddings")
    if family.tie_default is not None and value is not None and not isinstance(value, bool):
        raise config.error("tie_word_embeddings", value, "should be true or false")
    if family.tie_values is None:
        return settings
    tied = family.tie_default is None or (family.tie_default if value is None else value)
    return settings | {"tie": family.tie_values[0 if tied and not has_separate_output(family, tensors) else 1]}


def find_family(task: str, settings: FlatSettings) -> tuple[ModelFamily, str]:
    """Return the family and architecture that can express all our settings; otherwise name those that the closest one cannot."""
    family, name, unsupported = closest_family(task, settings)
    if unsupported:
        raise UserError(
            f"no Hugging Face family has this architecture: {', '.join(unsupported[:3])} "
            f"{'has' if len(unsupported) == 1 else 'have'} no counterpart in the closest, {family.model_type}"
        )
    return family, name


def find_form(task: str, forms: Iterable[ExportedForm]) -> tuple[ExportedForm, ModelFamily, str]:
    """Return the first form of a model that a family can express, with the family and architecture."""
    first, *others = forms
    for form in (first, *others):
        family, name, unsupported = closest_family(task, form.settings)
        if not unsupported:
            return form, family, name
    return first, *find_family(task, first.settings)


def closest_family(task: str, settings: FlatSettings) -> tuple[ModelFamily, str, list[str]]:
    """Return the family and architecture that can express most of our settings, and those that it cannot."""
    candidates = [
        (family, name, family.unsupported(settings, architecture))
        for family in FAMILIES.values()
        for name, architecture in family.architectures.items()
        if architecture.task == task and settings.get("kind") == family.constant["kind"] and not lacks_head(architecture)
    ]
    if not candidates:
        raise UserError(
            f"a {settings.get('kind')} model for the task {task} has no Hugging Face family; regard writes {', '.join(FAMILIES)}"
        )
    return min(candidates, key=lambda candidate: len(candidate[2]))


def lacks_head(architecture: Architecture) -> bool:
    """Whether the outputs of a task need more than this architecture has."""
    return architecture.bare and architecture.task != "encode"


def exported_settings(run: "Run") -> FlatSettings:
    """Return all settings of a run's model, with the size of its images."""
    settings = resolve_defaults(flatten_settings(run.recipe.model.model_dump(mode="json")))
    if "image" in run.task.reads:
        images = run._images.transform
        settings |= {
            "data.size": images.size,
            "data.resize": images.resized,
            "data.resize_mode": images.fit,
            "data.resample": images.resample,
        }
    return settings


def run_family(run: "Run") -> tuple[ModelFamily, str, FlatSettings]:
    """Return the family and architecture that a run has as it is, and all its settings."""
    settings = exported_settings(run)
    return *find_family(EXPORTED_AS.get(run.recipe.task, run.recipe.task), settings), settings


def write_huggingface_folder(run: "Run", path: str | Path) -> Path:
    """Write a run as a new folder that `transformers` can open."""
    path = require_new_folder(path)
    weights = {name: tensor.detach() for name, tensor in run._export_weights().items()}
    if run._huggingface is not None:
        source = run._huggingface
        family, architecture, settings, unmapped = source.family, source.architecture, source.settings, source.unmapped
        files = {name: (source.folder / name).read_bytes() for name in COPIED_FILES if (source.folder / name).is_file()}
    else:
        forms = equivalent_forms(exported_settings(run), weights, run.model)
        form, family, name = find_form(EXPORTED_AS.get(run.recipe.task, run.recipe.task), forms)
        settings, weights = form.settings, form.weights
        architecture, unmapped = family.architectures[name], UnmappedTensors()
        files = {
            file: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
            for file, content in huggingface_files(run, family, name, settings).items()
        }
    tensors = to_huggingface_tensors(weights, family, architecture, settings, unmapped)
    tensors |= {name: table(settings) for name, table in family.tables.items() if run._huggingface is None}
    with atomic_folder(path) as folder:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    return path

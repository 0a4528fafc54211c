"""A Hugging Face folder opened as ours, and a run of ours written as one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import UserError
from regard.interop.config import MISSING, ConfigFile, integer
from regard.interop.families import FAMILIES
from regard.interop.family_rules import Architecture, FlatSettings, ModelFamily, flatten_settings, nest_settings
from regard.interop.huggingface_files import huggingface_files, resolve_defaults
from regard.interop.new_folder import require_new_folder, write_folder_atomically
from regard.interop.preprocessor import read_preprocessor
from regard.interop.tensor_names import TensorMapper, UnmappedTensors, canonical_name, has_separate_output, to_huggingface_tensors
from regard.interop.tokenizer_config import find_mask_token, open_tokenizer, read_labels
from regard.interop.weight_files import TensorFiles, open_config, open_tensors
from regard.tokens.tokenizer import Tokenizer

COPIED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
)
"""What goes back as it came."""
LABEL_TASKS = ("classify", "tag")
EXPORTED_AS = {"span-corruption": "translate", "text-to-text": "translate", "regress": "classify"}
"""Tasks whose models are those of another task."""


@dataclass
class HuggingFaceFolder:
    """A folder as ours: what it is for, the settings of its model, its tokenizer; its weights when they are asked for."""

    folder: Path
    family: ModelFamily
    name: str
    """Of the architecture."""
    settings: FlatSettings
    tokenizer: Tokenizer | None
    """None where it reads pictures."""
    config: ConfigFile
    tensors: TensorFiles
    labels: list[str] = field(default_factory=list)
    mask: int | None = None
    unmapped: UnmappedTensors = field(default_factory=UnmappedTensors)

    @property
    def architecture(self) -> Architecture:
        return self.family.architectures[self.name]

    @property
    def task(self) -> str:
        """What it is for; a classifier of one label says a number."""
        return "regress" if self.architecture.task == "classify" and len(self.labels) == 1 else self.architecture.task

    @property
    def model(self) -> dict[str, Any]:
        """The settings as a recipe has them under [model]."""
        return nest_settings({name: value for name, value in self.settings.items() if not name.startswith("data.")})

    @property
    def data(self) -> dict[str, Any]:
        """And under [data]: how pictures are brought to one size."""
        return nest_settings(self.settings).get("data", {})

    def weights(self, wanted: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """The tensors that a model of ours wants, by our names; every shape is compared before one is read."""
        found, self.unmapped = TensorMapper(self.family, self.architecture, self.settings, self.tensors).read(wanted)
        return found


def is_huggingface_folder(folder: Path) -> bool:
    """Whether a folder is one of Hugging Face's, and not a run of ours."""
    return (folder / "config.json").is_file() and not (folder / "recipe.toml").is_file()


def open_huggingface_folder(path: str | Path, *, allow_pickle: bool = False) -> HuggingFaceFolder:
    """Everything about a folder but its weights, checked."""
    folder = Path(path)
    config = open_config(folder)
    family, name = identify_architecture(config)
    architecture = family.architectures[name]
    settings = family.settings(config, architecture)
    texts = None if family.text_section is None else config.section(family.text_section)
    rows = 0 if texts is None else read_vocab_size(texts)
    tensors = open_tensors(folder, allow_pickle=allow_pickle)
    settings |= settings_from_tensors(family, architecture, config, tensors)
    tokenizer = None if texts is None else open_tokenizer(folder, texts, family, rows)
    if family.image_processor:
        settings |= read_preprocessor(folder, family, settings["data.size"])
    labels = read_labels(config) if architecture.task in LABEL_TASKS else []
    if architecture.task in LABEL_TASKS:
        require_single_label(config, name, len(labels), numbers=architecture.task == "classify" and not family.image_processor)
    mask = None if tokenizer is None else find_mask_token(folder, tokenizer)
    if architecture.task == "masked" and mask is None:
        raise UserError(f"{folder}/tokenizer.json has no token for a masked word ([MASK] or <mask>)")
    return HuggingFaceFolder(folder, family, name, settings, tokenizer, config, tensors, labels, mask)


def require_single_label(config: ConfigFile, name: str, labels: int, *, numbers: bool) -> None:
    """One of several labels is said, or, where `numbers` are, one of these; not several of either."""
    problem = config.get("problem_type")
    if problem == "multi_label_classification" or (problem == "regression" and labels > 1):
        raise UserError(f"{config.path}: {name} with several labels or numbers at once is not read; one of them is")
    if labels == 1 and (not numbers or problem not in (MISSING, "regression")):
        raise UserError(f"{config.path}: {name} with one label is not read; one of at least two is")


def identify_architecture(config: ConfigFile) -> tuple[ModelFamily, str]:
    """The family and architecture that a config.json names."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        shown = "does not say its model_type" if kind is MISSING else f"has model_type {str(kind)[:60]!r}"
        raise UserError(f"{config.path} {shown}; regard reads {', '.join(FAMILIES)}")
    family, named = FAMILIES[kind], config.get("architectures")
    if named is MISSING or named == []:
        return family, family.bare
    name = named[0] if isinstance(named, list) else named
    if not isinstance(name, str) or name not in family.architectures:
        raise config.error(
            "architectures",
            name,
            f"is not read; {', '.join(family.architectures)} are (to read the model without its head, write {family.bare})",
        )
    return family, name


def read_vocab_size(config: ConfigFile) -> int:
    rows, most = config.get("vocab_size"), integer(most=2**24)
    if rows is MISSING:
        raise UserError(f"{config.path} does not say vocab_size")
    for name in ("vocab_size", "decoder_vocab_size"):
        try:
            other = most.read(rows if config.get(name) is MISSING else config.get(name))
        except ValueError as error:
            raise config.error(name, config.get(name), str(error)) from None
        if other != rows:
            raise config.error(name, other, f"a vocabulary of its own for the target is not read (vocab_size = {rows})")
    return rows


def settings_from_tensors(
    family: ModelFamily, architecture: Architecture, config: ConfigFile, tensors: TensorFiles
) -> FlatSettings:
    """Settings that the tensors decide: whether the output is its own, whether there is a pooler."""
    found = {canonical_name(name, family) for name in tensors.shapes}
    settings = {
        name: there if tensor in found else not_there for name, (tensor, there, not_there) in architecture.inferred.items()
    }
    says = config.get("tie_word_embeddings")
    if family.tie_default is not None and says is not MISSING and not isinstance(says, bool):
        raise config.error("tie_word_embeddings", says, "should be true or false")
    if family.tie_values is None:
        return settings
    tied = family.tie_default is None or (family.tie_default if says is MISSING else says)
    return settings | {"tie": family.tie_values[0 if tied and not has_separate_output(family, tensors) else 1]}


def find_family(task: str, settings: FlatSettings) -> tuple[ModelFamily, str]:
    """The family that says everything our settings say; or which of them the nearest one has no word for."""
    found = [
        (family, name, family.unsupported(settings, architecture))
        for family in FAMILIES.values()
        for name, architecture in family.architectures.items()
        if architecture.task == task and settings.get("kind") == family.constant["kind"]
    ]
    if not found:
        raise UserError(
            f"a {settings.get('kind')} model for the task {task} has no Hugging Face family; regard writes {', '.join(FAMILIES)}"
        )
    family, name, misfits = min(found, key=lambda candidate: len(candidate[2]))
    if misfits:
        raise UserError(
            f"no Hugging Face family is built like this model: {', '.join(misfits[:3])} "
            f"{'has' if len(misfits) == 1 else 'have'} no counterpart in the nearest, {family.model_type}"
        )
    return family, name


def image_data_settings(run: Any) -> FlatSettings:
    """How the run brings its pictures to one size, where it reads some."""
    if "image" not in run.task.reads:
        return {}
    return {
        "data.size": run._images.size,
        "data.resize": run._images.transform.resized,
        "data.resize_mode": run._images.transform.fit,
        "data.resample": run._images.transform.resample,
    }


def write_huggingface_folder(run: Any, path: str | Path) -> Path:
    """A run as a folder that `transformers` opens; written aside and put in place whole."""
    path = require_new_folder(path)
    weights = {name: tensor.detach() for name, tensor in run._export_weights().items()}
    if run._huggingface is not None:
        found: HuggingFaceFolder = run._huggingface
        family, architecture, settings, left = found.family, found.architecture, found.settings, found.unmapped
        files = {name: (found.folder / name).read_bytes() for name in COPIED_FILES if (found.folder / name).is_file()}
    else:
        settings = resolve_defaults(flatten_settings(run.recipe.model.model_dump(mode="json"))) | image_data_settings(run)
        family, name = find_family(EXPORTED_AS.get(run.recipe.task, run.recipe.task), settings)
        architecture, left = family.architectures[name], UnmappedTensors()
        files = {
            file: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
            for file, content in huggingface_files(run, family, name, settings).items()
        }
    tensors = to_huggingface_tensors(weights, family, architecture, settings, left)
    with write_folder_atomically(path) as aside:
        for file, content in files.items():
            (aside / file).write_bytes(content)
        save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod((aside / "config.json").stat().st_mode)
    return path

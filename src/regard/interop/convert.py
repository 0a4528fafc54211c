"""A Hugging Face folder opened as ours, and a run of ours written as one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import Mistake
from regard.interop.config import MISSING, Config, count
from regard.interop.families import FAMILIES
from regard.interop.family_rules import Architecture, Family, Settings, flat, nested
from regard.interop.folder import Tensors, open_config, open_tensors
from regard.interop.new_folder import new_folder, written_aside
from regard.interop.preprocessor import picture_settings
from regard.interop.regard_folder import files_of_ours, plain
from regard.interop.tensor_names import Left, Names, canonical, separate_output, written
from regard.interop.vocabulary import labels_of, mask_of, open_tokenizer
from regard.tokens.tokenizer import Tokenizer

COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
)
"""What goes back as it came."""
LABELLED = ("classify", "tag")
WRITTEN_AS = {"corrupted": "translate", "text-to-text": "translate", "regress": "classify"}
"""Tasks whose models are those of another task."""


@dataclass
class Foreign:
    """A folder as ours: what it is for, the settings of its model, its tokenizer; its weights when they are asked for."""

    folder: Path
    family: Family
    name: str
    """Of the architecture."""
    settings: Settings
    tokenizer: Tokenizer | None
    """None where it reads pictures."""
    config: Config
    tensors: Tensors
    labels: list[str] = field(default_factory=list)
    mask: int | None = None
    left: Left = field(default_factory=Left)

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
        return nested({name: value for name, value in self.settings.items() if not name.startswith("data.")})

    @property
    def data(self) -> dict[str, Any]:
        """And under [data]: how pictures are brought to one size."""
        return nested(self.settings).get("data", {})

    def weights(self, wanted: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """The tensors that a model of ours wants, by our names; every shape is compared before one is read."""
        found, self.left = Names(self.family, self.architecture, self.settings, self.tensors).read(wanted)
        return found


def is_foreign(folder: Path) -> bool:
    """Whether a folder is one of Hugging Face's, and not a run of ours."""
    return (folder / "config.json").is_file() and not (folder / "recipe.toml").is_file()


def open_folder(path: str | Path, *, allow_pickle: bool = False) -> Foreign:
    """Everything about a folder but its weights, checked."""
    folder = Path(path)
    config = open_config(folder)
    family, name = recognise(config)
    architecture = family.architectures[name]
    settings = family.settings(config, architecture)
    texts = None if family.texts is None else config.part(family.texts)
    rows = 0 if texts is None else rows_of(texts)
    tensors = open_tensors(folder, allow_pickle=allow_pickle)
    settings |= seen(family, architecture, config, tensors)
    tokenizer = None if texts is None else open_tokenizer(folder, texts, family, rows)
    if family.processor:
        settings |= picture_settings(folder, family, settings["data.size"])
    labels = labels_of(config) if architecture.task in LABELLED else []
    if architecture.task in LABELLED:
        require_one(config, name, len(labels), numbers=architecture.task == "classify" and not family.processor)
    mask = None if tokenizer is None else mask_of(folder, tokenizer)
    if architecture.task == "masked" and mask is None:
        raise Mistake(f"{folder}/tokenizer.json has no token for a masked word ([MASK] or <mask>)")
    return Foreign(folder, family, name, settings, tokenizer, config, tensors, labels, mask)


def require_one(config: Config, name: str, labels: int, *, numbers: bool) -> None:
    """One of several labels is said, or, where `numbers` are, one of these; not several of either."""
    problem = config.at("problem_type")
    if problem == "multi_label_classification" or (problem == "regression" and labels > 1):
        raise Mistake(f"{config.path}: {name} with several labels or numbers at once is not read; one of them is")
    if labels == 1 and (not numbers or problem not in (MISSING, "regression")):
        raise Mistake(f"{config.path}: {name} with one label is not read; one of at least two is")


def recognise(config: Config) -> tuple[Family, str]:
    """The family and architecture that a config.json names."""
    kind = config.at("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        shown = "does not say its model_type" if kind is MISSING else f"has model_type {str(kind)[:60]!r}"
        raise Mistake(f"{config.path} {shown}; regard reads {', '.join(FAMILIES)}")
    family, named = FAMILIES[kind], config.at("architectures")
    if named is MISSING or named == []:
        return family, family.bare
    name = named[0] if isinstance(named, list) else named
    if not isinstance(name, str) or name not in family.architectures:
        raise config.wrong(
            "architectures",
            name,
            f"is not read; {', '.join(family.architectures)} are (to read the model without its head, write {family.bare})",
        )
    return family, name


def rows_of(config: Config) -> int:
    rows, most = config.at("vocab_size"), count(most=2**24)
    if rows is MISSING:
        raise Mistake(f"{config.path} does not say vocab_size")
    for name in ("vocab_size", "decoder_vocab_size"):
        try:
            other = most.read(rows if config.at(name) is MISSING else config.at(name))
        except ValueError as error:
            raise config.wrong(name, config.at(name), str(error)) from None
        if other != rows:
            raise config.wrong(name, other, f"a vocabulary of its own for the target is not read (vocab_size = {rows})")
    return rows


def seen(family: Family, architecture: Architecture, config: Config, tensors: Tensors) -> Settings:
    """Settings that the tensors decide: whether the output is its own, whether there is a pooler."""
    found = {canonical(name, family) for name in tensors.shapes}
    settings = {name: there if tensor in found else not_there for name, (tensor, there, not_there) in architecture.seen.items()}
    says = config.at("tie_word_embeddings")
    if family.tied is not None and says is not MISSING and not isinstance(says, bool):
        raise config.wrong("tie_word_embeddings", says, "should be true or false")
    if family.ties is None:
        return settings
    tied = family.tied is None or (family.tied if says is MISSING else says)
    return settings | {"tie": family.ties[0 if tied and not separate_output(family, tensors) else 1]}


def fitting(task: str, settings: Settings) -> tuple[Family, str]:
    """The family that says everything our settings say; or which of them the nearest one has no word for."""
    found = [
        (family, name, family.misfits(settings, architecture))
        for family in FAMILIES.values()
        for name, architecture in family.architectures.items()
        if architecture.task == task and settings.get("kind") == family.fixed["kind"]
    ]
    if not found:
        raise Mistake(
            f"a {settings.get('kind')} model for the task {task} has no Hugging Face family; regard writes {', '.join(FAMILIES)}"
        )
    family, name, misfits = min(found, key=lambda candidate: len(candidate[2]))
    if misfits:
        raise Mistake(
            f"no Hugging Face family is built like this model: {', '.join(misfits[:3])} "
            f"{'has' if len(misfits) == 1 else 'have'} no counterpart in the nearest, {family.model_type}"
        )
    return family, name


def data_of(run: Any) -> Settings:
    """How the run brings its pictures to one size, where it reads some."""
    if not hasattr(run, "frame"):
        return {}
    return {
        "data.size": run.frame.size,
        "data.resize": run.frame.resized,
        "data.fit": run.frame.fit,
        "data.resample": run.frame.resample,
    }


def write_folder(run: Any, path: str | Path) -> Path:
    """A run as a folder that `transformers` opens; written aside and put in place whole."""
    path = new_folder(path)
    weights = {name: tensor.detach() for name, tensor in run.spoken_weights().items()}
    if run.foreign is not None:
        found: Foreign = run.foreign
        family, architecture, settings, left = found.family, found.architecture, found.settings, found.left
        files = {name: (found.folder / name).read_bytes() for name in COPIED if (found.folder / name).is_file()}
    else:
        settings = plain(flat(run.recipe.model.model_dump(mode="json"))) | data_of(run)
        family, name = fitting(WRITTEN_AS.get(run.recipe.task, run.recipe.task), settings)
        architecture, left = family.architectures[name], Left()
        files = {
            file: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
            for file, content in files_of_ours(run, family, name, settings).items()
        }
    tensors = written(weights, family, architecture, settings, left)
    with written_aside(path) as aside:
        for file, content in files.items():
            (aside / file).write_bytes(content)
        save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod((aside / "config.json").stat().st_mode)
    return path

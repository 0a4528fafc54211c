"""Folders with a modelling file of ours, which transformers opens with `trust_remote_code=True`: for models that no family has.

These are recurrent models, captioners, image codes and DALL·E's Transformer. The modelling file needs this package.
"""

import importlib
import inspect
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.files import atomic_folder, require_new_folder
from regard.interop.huggingface_files import special_token_names
from regard.interop.verify import ConversionProof, is_transformers_installed
from regard.tasks import build_recipe, recipe_task
from regard.tasks.base import Run

MODELING_FILE = "modeling_regard.py"
ROWS, POSITIONS = 3, 8
"""Of the inputs that a conversion is verified on."""


def write_remote_code_folder(run: Run, path: str | Path) -> Path:
    """Write a run as a new folder with our modelling file."""
    folder = require_new_folder(path)
    if getattr(run.recipe.model, "features", None) is not None:
        raise UserError(f"{run.folder} reads the features of another run (model.features), which a Hugging Face folder has not")
    config = {
        "model_type": "regard",
        "architectures": ["RegardModel"],
        "auto_map": {"AutoConfig": "modeling_regard.RegardConfig", "AutoModel": "modeling_regard.RegardModel"},
        "recipe": run.recipe.model_dump(mode="json", exclude_none=True),
        "sizes": run._model_sizes(),
        "dtype": "float32",
    }
    written = {"config.json": to_json(config), MODELING_FILE: modeling_code()}
    for name, tokenizer in zip(("tokenizer.json", "tokenizer.target.json"), dict.fromkeys(run.tokenizers)):
        written[name] = tokenizer.to_json()
    if run.tokenizers:
        names = special_token_names(run.tokenizers[0])
        written["tokenizer_config.json"] = to_json({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    with atomic_folder(folder) as aside:
        for name, text in written.items():
            (aside / name).write_text(text, encoding="utf-8")
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in run.model.state_dict().items()}  # tied ones too
        save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
        (aside / "model.safetensors").chmod((aside / "config.json").stat().st_mode)
    return folder


def to_json(values: dict[str, Any]) -> str:
    """Return the text of a JSON file."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def modeling_code() -> str:
    """Return the modelling file."""
    return files("regard.tasks.shared").joinpath(MODELING_FILE).read_text(encoding="utf-8")


def build_exported(recipe: dict[str, Any], sizes: list[Any]) -> nn.Module:
    """Return the model of an exported recipe, with initial weights."""
    found = build_recipe(recipe)
    arguments = [tuple(size) if isinstance(size, list) else size for size in sizes]
    return recipe_task(found).build(found.model, *arguments, found.train.regularize).eval()


@torch.no_grad()
def verify_remote_code(run: Run, folder: Path) -> ConversionProof:
    """Compare our outputs with those of the folder as transformers opens it."""
    if not is_transformers_installed():
        raise UserError("--verify opens the folder with transformers: pip install 'regard[transformers]'")
    theirs = importlib.import_module("transformers").AutoModel.from_pretrained(folder, trust_remote_code=True)
    inputs, ours = sample_inputs(run), run.model.to("cpu").float()
    pairs = zip(output_tensors(ours(**inputs)), output_tensors(theirs(**inputs)), strict=True)
    differences = [torch.where(one == other, 0.0, (one - other).abs()).max() for one, other in pairs]  # logits may be -inf
    run.model.to(run.device)
    return ConversionProof("transformers", float(max(differences)), None, None, measured="outputs")


def sample_inputs(run: Run) -> dict[str, Tensor]:
    """Return random images and tokens by the names of the model's inputs."""
    generator = torch.Generator().manual_seed(run.recipe.seed)
    length = min(POSITIONS, run._max_positions)
    known = {"lengths": torch.full((ROWS,), length)}
    if "image" in run.task.reads:
        known["pixels"] = torch.rand(ROWS, 3, *run._images.size, generator=generator)
    for name, tokenizer in zip(("source", "target"), (run.tokenizers * 2)[:2] if len(run.tokenizers) < 2 else run.tokenizers):
        known[name] = torch.randint(tokenizer.size, (ROWS, length), generator=generator)
    return {name: known[name] for name in inspect.signature(run.model.forward).parameters if name in known}


def output_tensors(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model's outputs: one, or those of a tuple or dataclass, in float32."""
    if isinstance(outputs, Tensor):
        yield outputs.float()
        return
    for part in outputs if isinstance(outputs, tuple) else vars(outputs).values():
        if part is not None:
            yield from output_tensors(part)

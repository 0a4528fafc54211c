"""Another run's contextual vectors as what a model reads; the other run is copied into this one, so that the folder is whole."""

import shutil
from pathlib import Path

import torch

from regard.errors import UserError
from regard.files import atomic_folder
from regard.models.recurrent_encoder import ContextualEmbedding
from regard.recipe import ContextualFeatures

FOLDER = "features"
NEEDED = ["recipe.toml", "model.safetensors"]


def copy_features(source: Path, folder: Path) -> None:
    """Put a run into `folder/features`, and its tokenizer beside it."""
    copy_run(source, folder / FOLDER, "model.features.run")
    reads = source / "tokenizer.source.json"
    shutil.copyfile(reads if reads.exists() else source / "tokenizer.json", folder / "tokenizer.json")


def copy_run(source: Path, into: Path, setting: str) -> None:
    """Put what `load` needs of a run, which a setting names, into a folder."""
    if not all((source / name).is_file() for name in NEEDED):
        raise UserError(f"{setting} = '{source}' is not a finished run folder; train it first")
    with atomic_folder(into) as temporary:
        for path in [*(source / name for name in NEEDED), *source.glob("tokenizer*.json"), *source.glob("labels.json")]:
            shutil.copyfile(path, temporary / path.name)
        if (source / FOLDER).is_dir():
            shutil.copytree(source / FOLDER, temporary / FOLDER)


def load_contextual_features(folder: Path, settings: ContextualFeatures) -> ContextualEmbedding:
    from regard.run.load import load  # a run may hold a run

    model = load(folder / FOLDER, device="cpu").model
    one = torch.ones(1, 1, dtype=torch.long)
    with torch.no_grad():
        widths = [layer.size(-1) for layer in model.hidden_states(one, one[0])]
    if settings.layer != "mix" and not 0 <= settings.layer < len(widths):
        raise UserError(f"model.features.layer = {settings.layer}: {settings.run} has layers 0 to {len(widths) - 1}, or 'mix'")
    return ContextualEmbedding(model, settings.layer, widths)

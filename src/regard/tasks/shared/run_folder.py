"""The files of a run folder besides its weights: JSON files, tokenizers, and runs copied in from elsewhere."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.errors import UserError
from regard.files import atomic_folder, atomic_write
from regard.interop.convert import is_huggingface_folder, open_huggingface_folder
from regard.models.recurrent_encoder import ContextualEmbedding, RandomVectors
from regard.recipe import ContextualFeatures, EncoderModel, Recipe
from regard.tokens.special_tokens import BOS_AND_EOS, DEFAULT_SPECIAL_TOKENS, SpecialTokens
from regard.tokens.tokenizer import Tokenizer, load_any_tokenizer, load_tokenizer, parse_tokenizer, train_tokenizer

SPECIAL_TOKENS_FILE = "special_tokens.json"
"""The special tokens of a tokenizer that has others than ours."""
FEATURES_FOLDER = "features"
Json = TypeVar("Json", dict[str, Any], list[Any])
REQUIRED_FILES = ("recipe.toml", "model.safetensors")


def read_json(path: Path, kind: type[Json]) -> Json:
    """Return the contents of a JSON file in a run folder, checked to be a `kind`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the run folder again, or resume its training") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(found, kind):
        raise UserError(f"{path} is damaged: it should hold a {kind.__name__}")
    return found


def tokenizer_files(recipe: Recipe) -> list[str]:
    """Return the names of the tokenizers in the run folder of a recipe."""
    if recipe.tokens is None:
        return []
    return ["tokenizer.json"] if getattr(recipe.tokens, "joint", True) else ["tokenizer.source.json", "tokenizer.target.json"]


def prepare_tokenizers(folder: Path, recipe: Recipe, texts: Sequence[Sequence[str]], special_tokens: Sequence[str]) -> None:
    """Write the tokenizers that a run folder lacks: copied from `train.init_from`, loaded from `tokens.file`, or trained on the
    training texts of each side, with these special tokens besides the usual ones."""
    names = tokenizer_files(recipe)
    source = next((Path(one.run) for one in recipe.train.init_from if one.tokenizer), None)
    if source is not None and names:
        copy_tokenizers(source, folder, names)
    if len(names) < len(texts):
        texts = [[line for side in texts for line in side]]
    for name, lines in zip(names, texts):
        if not (folder / name).exists():
            write_tokenizer(
                load_any_tokenizer(Path(recipe.data.root, recipe.tokens.file))
                if recipe.tokens.file
                else train_tokenizer(recipe.tokens, lines, special_tokens),
                folder / name,
            )


def load_tokenizers(folder: Path, recipe: Recipe) -> list[Tokenizer]:
    """Load the tokenizers of a run folder; one that we trained has BERT's special tokens for a Transformer encoder."""
    if (folder / SPECIAL_TOKENS_FILE).is_file():
        return [load_pretrained_tokenizer(folder)]
    found = [load_tokenizer(folder / name) for name in tokenizer_files(recipe)]
    for tokenizer in found:
        tokenizer.special_tokens = BOS_AND_EOS if isinstance(recipe.model, EncoderModel) else DEFAULT_SPECIAL_TOKENS
    return found


def write_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer, and its special tokens beside it if they are not ours."""
    atomic_write(path, tokenizer.to_json())
    if tokenizer.special_tokens != DEFAULT_SPECIAL_TOKENS:
        settings = {"rows": tokenizer.size, **asdict(tokenizer.special_tokens)}
        atomic_write(path.parent / SPECIAL_TOKENS_FILE, json.dumps(settings) + "\n")


def load_pretrained_tokenizer(folder: Path) -> Tokenizer:
    """Load a tokenizer that came from a Hugging Face folder, with its own special tokens."""
    stored = read_json(folder / SPECIAL_TOKENS_FILE, dict)
    settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    rows = settings.pop("rows", None)
    try:
        special_tokens = SpecialTokens(**settings)
    except TypeError as error:
        raise UserError(f"{folder / SPECIAL_TOKENS_FILE} is damaged: {error}") from None
    tokenizer = parse_tokenizer(folder / "tokenizer.json", rows)
    tokenizer.special_tokens = special_tokens
    return tokenizer


def copy_tokenizers(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Copy the tokenizers of the run or Hugging Face folder that weights are initialised from, unless the folder has them."""
    if is_huggingface_folder(source):
        tokenizer = open_huggingface_folder(source).tokenizer
        if tokenizer is None:
            raise UserError(
                f"train.init_from.run = '{source}' reads images and has no tokenizer; set train.init_from.tokenizer = false"
            )
        write_tokenizer(tokenizer, folder / "tokenizer.json")
        return
    if (source / SPECIAL_TOKENS_FILE).is_file():
        shutil.copyfile(source / SPECIAL_TOKENS_FILE, folder / SPECIAL_TOKENS_FILE)
    for name in names:
        if not (source / name).is_file():
            raise UserError(
                f"train.init_from.run = '{source}' has no {name}; set train.init_from.tokenizer = false to train a new one"
            )
        if not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def copy_run(source: Path, into: Path, setting: str) -> None:
    """Copy what `load` needs of the run that a setting names into a folder, so that the run which uses it is self-contained."""
    if not all((source / name).is_file() for name in REQUIRED_FILES):
        raise UserError(f"{setting} = '{source}' is not a finished run folder; train it first")
    with atomic_folder(into) as temporary:
        for path in [*(source / name for name in REQUIRED_FILES), *source.glob("tokenizer*.json"), *source.glob("labels.json")]:
            shutil.copyfile(path, temporary / path.name)
        if (source / FEATURES_FOLDER).is_dir():
            shutil.copytree(source / FEATURES_FOLDER, temporary / FEATURES_FOLDER)


def copy_features_run(source: Path, folder: Path) -> None:
    """Copy the run whose contextual embeddings a model reads (model.features), and its tokenizer."""
    copy_run(source, folder / FEATURES_FOLDER, "model.features.run")
    source_tokenizer = source / "tokenizer.source.json"
    shutil.copyfile(source_tokenizer if source_tokenizer.exists() else source / "tokenizer.json", folder / "tokenizer.json")


def load_contextual_features(folder: Path, settings: ContextualFeatures) -> ContextualEmbedding:
    """Load the run in a run folder whose contextual embeddings are read instead of words (model.features)."""
    from regard.tasks import load_run_folder  # a run may hold a run

    run = load_run_folder(folder / FEATURES_FOLDER, torch.device("cpu"))
    model: Any = run.model
    one = torch.ones(1, 1, dtype=torch.long)
    with torch.no_grad():
        widths = [layer.size(-1) for layer in model.hidden_states(one, one[0])]
    layer = settings.layer
    if layer == "random":
        model, layer = RandomVectors(run.tokenizers[0].size, widths[0]), 0
    if layer != "mix" and not 0 <= layer < len(widths):
        raise UserError(f"model.features.layer = {layer}: {settings.run} has layers 0 to {len(widths) - 1}, or 'mix'")
    return ContextualEmbedding(model, layer, widths, layer_norm=settings.layer_norm, mix_decay=settings.mix_decay)

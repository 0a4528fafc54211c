"""Where the weights of a model start: those of another model, word vectors; what is frozen, and what is adapted instead."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.corpus.text_files import read_word_vectors
from regard.errors import UserError
from regard.layers.lora import add_lora
from regard.recipe import InitFrom, LoraSettings
from regard.training import checkpoint
from regard.training.log import Log


def load_word_vectors(table: nn.Embedding, path: Path, pieces: Sequence[str], log: Log) -> None:
    """Initialise an embedding of these tokens from a file of pre-computed word vectors."""
    words = [piece.strip() for piece in pieces]
    vectors = read_word_vectors(path, set(words), width=table.embedding_dim)
    with torch.no_grad():
        for number, word in enumerate(words):
            if word in vectors:
                table.weight[number] = torch.from_numpy(vectors[word])
    known = sum(word in vectors for word in words)
    log.note(f"{known:,} of {len(words):,} tokens are initialised from the vectors in {path}")


def freeze(model: nn.Module, names: list[str]) -> None:
    """Freeze the weights whose names start with one of these."""
    for name in names:
        found = [p for known, p in model.named_parameters() if known.startswith(name)]
        if not found:
            known = ", ".join(sorted({known.split(".")[0] for known, _ in model.named_parameters()}))
            raise UserError(f"train.freeze = {names}: the model has no weights named {name!r}; it has {known}")
        for p in found:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"train.freeze = {names} leaves nothing to learn")


def adapt(model: nn.Module, settings: LoraSettings, loaded: set[str]) -> None:
    """Freeze the weights that were loaded from another model, and give its layers adapters."""
    for name, parameter in model.named_parameters():
        if name in loaded:
            parameter.requires_grad_(False)
    if not add_lora(model, settings.layers, settings.rank, settings.scale, settings.dropout):
        raise UserError(f"train.lora.layers = {settings.layers}: the model has no such layers in Transformer blocks")


def load_initial_weights(model: nn.Module, theirs: dict[str, Tensor], settings: InitFrom, log: Log) -> set[str]:
    """Load the weights of another model, all or those of the modules named; return their names."""
    modules, ours = tuple(settings.modules), checkpoint.named_weights(model)
    taken = {name: weights for name, weights in theirs.items() if name.startswith(modules or ("",))}
    if not modules:  # the head of another task, or of other labels, starts anew
        taken = {
            name: weights
            for name, weights in taken.items()
            if name in ours and (weights.shape == ours[name].shape or not name.startswith("output."))
        }
    if not taken:
        known = ", ".join(sorted({name.split(".")[0] for name in theirs}))
        raise UserError(f"train.init_from.modules = {settings.modules}: {settings.run} has no weights named so; it has {known}")
    if settings.into is not None:
        taken = {name.replace(modules[0], settings.into, 1): weights for name, weights in taken.items()}
    if (adapt_weights := getattr(model, "adapt_weights", None)) is not None:
        taken = adapt_weights(taken)
    with torch.no_grad():
        checkpoint.load_weights(model, {**ours, **taken}, settings.run)
    log.note(f"initialised {len(taken)} tensors from {settings.run}")
    return set(taken)


def new_modules(names: Iterable[str], loaded: set[str]) -> list[str]:
    """Return the outermost modules, or weights, that have no loaded weight."""
    known = {prefix for name in loaded for prefix in accumulate(name.split("."), "{}.{}".format)}
    new = (next((part for part in accumulate(name.split("."), "{}.{}".format) if part not in known), None) for name in names)
    return sorted({name for name in new if name is not None})

"""Checkpoints: a folder of safetensors and JSON, written aside, fsynced, hash-listed, renamed. No pickle.

The old one goes only after the new one verifies.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from regard.distributed.parallel import shard_like
from regard.errors import UserError
from regard.files import atomic_write, disk_error, fsync_folder, remove_folder, replace_folder, require_space, write_and_fsync

HASHES = "hashes.json"
SHARD_NAME = re.compile(r"(.+)-(\d+)-of-\d+")
"""What a file of another rank than the first is called."""


@dataclass
class Checkpoint:
    """Tensors by file and name, and the rest of the state as JSON."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, each once even where it is shared, and what else belongs to the model (a batch norm's statistics)."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: str = "weights") -> None:
    mine = named_weights(model)
    for name, p in mine.items():
        if name not in weights:
            raise UserError(f"{where} lacks the tensor {name}")
        if weights[name].shape != p.shape:
            raise UserError(f"{where}: {name} has shape {list(weights[name].shape)}, the model wants {list(p.shape)}")
        p.copy_(shard_like(weights[name], p))
    if extra := weights.keys() - mine.keys():
        raise UserError(f"{where} has a tensor the model has no place for: {min(extra)}")


def read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"no weights at {path}")
    try:
        return parse_tensors(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Replace a file of weights in one move."""
    atomic_write(path, serialize(weights))


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, beside: Mapping[Path, str] = MappingProxyType({})) -> Path:
    """Write `folder/step-…`; nothing is left behind if it fails. Files that other ranks wrote, with their hashes, move in."""
    files = {f"{name}.safetensors": serialize(tensors) for name, tensors in checkpoint.tensors.items()}
    files["state.json"] = json.dumps(checkpoint.state, indent=1).encode()
    files[HASHES] = json.dumps(
        {name: sha256(data) for name, data in files.items()} | {path.name: found for path, found in beside.items()}, indent=1
    ).encode()
    needed = sum(len(data) for data in files.values())
    final, aside = folder / f"step-{step:08d}", folder / f".writing-step-{step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder, needed)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, data in files.items():
            write_and_fsync(aside / name, data)
        for path in beside:
            path.rename(aside / path.name)
        fsync_folder(aside)
        replace_folder(final, aside)
    except OSError as error:
        raise disk_error(final, needed, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    fsync_folder(folder)
    if problem := find_damage(final):
        raise UserError(f"{final} did not verify after writing ({problem}); the disk may be failing")
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint whose hashes all hold; anything else is a mistake."""
    require_intact(path)
    tensors = {Path(name).stem: read_weights(path / name) for name in read_hashes(path) if name.endswith(".safetensors")}
    return Checkpoint(join_shards(tensors), json.loads((path / "state.json").read_bytes()))


def require_intact(path: Path) -> None:
    if not path.is_dir():
        raise UserError(
            f"no checkpoint {path}; there are: {', '.join(one.name for one in list_checkpoints(path.parent)) or 'none'}"
        )
    if problem := find_damage(path):
        raise UserError(f"{path} is damaged: {problem}")


def join_shards(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Sharded tensors put together: the rows in `model-2-of-4` come behind those in `model`."""
    pieces = {name: SHARD_NAME.fullmatch(name) for name in files}
    whole = {name: {key: [rows] for key, rows in files[name].items()} for name, piece in pieces.items() if piece is None}
    for name, piece in sorted(pieces.items(), key=lambda entry: int(entry[1].group(2)) if entry[1] else 0):
        for key, rows in files[name].items() if piece else ():
            whole[piece.group(1)][key].append(rows)  # type: ignore[union-attr]
    return {
        name: {key: torch.cat(rows) if len(rows) > 1 else rows[0] for key, rows in tensors.items()}
        for name, tensors in whole.items()
    }


def read_hashes(path: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint, as it was written."""
    return json.loads((path / HASHES).read_bytes())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        if not (path / HASHES).is_file():
            return f"{HASHES} is missing"
        listed = read_hashes(path)
        for name, expected in listed.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if sha256((path / name).read_bytes()) != expected:
                return f"{name} is not what was written"
        if "state.json" not in listed:
            return f"{HASHES} does not list state.json"
        return moved(path, json.loads((path / "state.json").read_bytes()))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return f"{HASHES} or a file it lists cannot be read ({error})"


def moved(path: Path, state: dict[str, Any]) -> str | None:
    """A whole checkpoint under the name of another."""
    step = state.get("step")
    return None if step is None or path.name == f"step-{step:08d}" else f"it is of step {step}"


def list_checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def checkpoint_path(folder: Path, name: str) -> Path:
    """The checkpoint that a user means: `step-00000500`, its path, or `500`."""
    found = re.fullmatch(r"(?:step-)?(\d+)", Path(name).name)
    if not found:
        raise UserError(f"--from {name}: give a step, such as 500 or step-00000500")
    return folder / f"step-{int(found.group(1)):08d}"


def latest_intact(folder: Path, most: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, of at most so many steps, and a line about each newer one that does not."""
    notes: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        if most is not None and checkpoint_step(path) > most:
            continue
        problem = find_damage(path)
        if problem is None:
            return path, notes
        notes.append(f"{path} is damaged ({problem}); going back to the one before")
    return None, notes


def archive_newer(folder: Path, after: int) -> list[Path]:
    """Move the checkpoints after a step out of the way of what is now trained from there; where they are now."""
    moved = []
    for path in list_checkpoints(folder):
        if checkpoint_step(path) > after:
            place = folder / "aside" / path.name
            place.parent.mkdir(exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            moved.append(path.rename(place))
    return moved


def prune_checkpoints(
    folder: Path, keep: int, protected: Iterable[int] = (), counts: Callable[[int], bool] = lambda step: True
) -> None:
    """Delete all but the newest, the newest `keep` of those that count, and the protected steps."""
    every = list_checkpoints(folder)
    counted = [path for path in every if counts(checkpoint_step(path))]
    kept = {*every[-1:], *counted[-keep:], *(folder / f"step-{step:08d}" for step in protected)}
    for path in every:
        if path not in kept:
            remove_folder(path)


def serialize(tensors: dict[str, Tensor]) -> bytes:
    return serialize_tensors({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})

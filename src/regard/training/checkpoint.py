"""Checkpoints: a folder of safetensors and JSON, written aside, fsynced, hash-listed, renamed. No pickle.

The old one goes only after the new one verifies.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from regard.errors import Mistake
from regard.training.distributed import laid_out

HASHES = "hashes.json"
PIECE = re.compile(r"(.+)-(\d+)-of-\d+")
"""What a file of another rank than the first is called."""


@dataclass
class Checkpoint:
    """Tensors by file and name, and the rest of the state as JSON."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, each once even where it is shared, and what else belongs to the model (a batch norm's statistics)."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: str = "weights") -> None:
    mine = weights_of(model)
    for name, p in mine.items():
        if name not in weights:
            raise Mistake(f"{where} lacks the tensor {name}")
        if weights[name].shape != p.shape:
            raise Mistake(f"{where}: {name} has shape {list(weights[name].shape)}, the model wants {list(p.shape)}")
        p.copy_(laid_out(weights[name], p))
    if extra := weights.keys() - mine.keys():
        raise Mistake(f"{where} has a tensor the model has no place for: {min(extra)}")


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return parse_tensors(path.read_bytes())
    except FileNotFoundError:
        raise Mistake(f"no weights at {path}") from None
    except (SafetensorError, ValueError) as error:
        raise Mistake(f"{path} is damaged: {error}") from None


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Replace a file of weights in one move."""
    data = serialize(weights)
    require_space(path.parent, len(data))
    aside = path.with_name(f".{path.name}.writing")
    try:
        write_durably(aside, data)
        aside.rename(path)
    except OSError as error:
        raise disk_mistake(path, len(data), error) from None
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)


def save(folder: Path, step: int, checkpoint: Checkpoint, beside: Mapping[Path, str] = MappingProxyType({})) -> Path:
    """Write `folder/step-…`; nothing is left behind if it fails. Files that other ranks wrote, with their hashes, move in."""
    files = {f"{name}.safetensors": serialize(tensors) for name, tensors in checkpoint.tensors.items()}
    files["state.json"] = json.dumps(checkpoint.state, indent=1).encode()
    files[HASHES] = json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
                              | {path.name: found for path, found in beside.items()}, indent=1).encode()
    needed = sum(len(data) for data in files.values())
    final, aside = folder / f"step-{step:08d}", folder / f".writing-step-{step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder, needed)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, data in files.items():
            write_durably(aside / name, data)
        for path in beside:
            path.rename(aside / path.name)
        sync_folder(aside)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
    except OSError as error:
        raise disk_mistake(final, needed, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(folder)
    if problem := damage(final):
        raise Mistake(f"{final} did not verify after writing ({problem}); the disk may be failing")
    return final


def load(path: Path) -> Checkpoint:
    """A checkpoint whose hashes all hold; anything else is a mistake."""
    if problem := damage(path):
        raise Mistake(f"{path} is damaged: {problem}")
    tensors = {file.stem: read_weights(file) for file in path.glob("*.safetensors")}
    return Checkpoint(joined(tensors), json.loads((path / "state.json").read_text()))


def joined(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Sharded tensors put together: the rows in `model-2-of-4` come behind those in `model`."""
    pieces = {name: PIECE.fullmatch(name) for name in files}
    whole = {name: {key: [rows] for key, rows in files[name].items()} for name, piece in pieces.items() if piece is None}
    for name, piece in sorted(pieces.items(), key=lambda entry: int(entry[1].group(2)) if entry[1] else 0):
        for key, rows in files[name].items() if piece else ():
            whole[piece.group(1)][key].append(rows)  # type: ignore[union-attr]
    return {name: {key: torch.cat(rows) if len(rows) > 1 else rows[0] for key, rows in tensors.items()}
            for name, tensors in whole.items()}


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        listed = json.loads((path / HASHES).read_bytes())
        for name, expected in listed.items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                return f"{name} is not what was written"
        return None if "state.json" in listed else "state.json is not listed"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"{HASHES} or a file it lists cannot be read ({error})"


def all_steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def newest_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that does not."""
    notes: list[str] = []
    for path in reversed(all_steps(folder)):
        problem = damage(path)
        if problem is None:
            return path, notes
        notes.append(f"{path} is damaged ({problem}); going back to the one before")
    return None, notes


def retain(folder: Path, keep: int, protected: Iterable[int] = ()) -> None:
    """Delete all but the newest `keep` and the protected steps."""
    names = {f"step-{step:08d}" for step in protected}
    for path in all_steps(folder)[:-keep]:
        if path.name not in names:
            shutil.rmtree(path)


def serialize(tensors: dict[str, Tensor]) -> bytes:
    return serialize_tensors({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})


def write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename durable; systems that cannot open a folder (Windows) do without."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except (PermissionError, OSError):
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free")


def disk_mistake(path: Path, needed: int, error: OSError) -> Mistake:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        try:
            free = f"{shutil.disk_usage(path.parent).free:,}"
        except OSError:
            free = "unknown"
        return Mistake(f"cannot write {path}: the disk is full ({needed:,} bytes needed, {free} free); "
                       "make room and resume, nothing is lost")
    return Mistake(f"cannot write {path}: {error.strerror or error}")

"""Checkpoints: a folder of safetensors and JSON with a list of hashes, written atomically. No pickle.

An old checkpoint is deleted only after the new one has been verified. Of several ranks, rank 0 writes what every rank has; of a
sharded tensor each rank writes its rows, rank 0 to `model.safetensors`, the next to `model-2-of-4.safetensors`; they load on any
number of ranks.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from regard import distributed
from regard.distributed.parallel import is_sharded, shard_like, to_local
from regard.errors import UserError
from regard.files import atomic_folder, atomic_write, disk_error, move, remove_folder, require_space, write_and_fsync

HASHES = "hashes.json"
SHARD_NAME = re.compile(r"(.+)-(\d+)-of-\d+")
"""The name of a file written by a rank other than 0."""


@dataclass
class Checkpoint:
    """Tensors by file and name, and the rest of the state as JSON."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, tied ones once, and the persistent buffers (a batch norm's statistics)."""
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def load_weights(model: nn.Module, weights: dict[str, Tensor], source: str = "weights") -> None:
    """Copy weights into a model; refuse missing, surplus and wrongly shaped tensors, and NaN."""
    own = named_weights(model)
    for name, p in own.items():
        if name not in weights:
            raise UserError(f"{source} lacks the tensor {name}")
        if weights[name].shape != p.shape:
            raise UserError(f"{source}: {name} has shape {list(weights[name].shape)}, the model needs {list(p.shape)}")
        require_finite(weights[name], f"{source}: {name}")
        p.copy_(shard_like(weights[name], p))
    if surplus := weights.keys() - own.keys():
        raise UserError(f"{source} has a tensor that the model does not have: {min(surplus)}")


def require_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity: a model with them answers nothing, or nonsense. One pass over the tensor, no copy."""
    if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():  # a sum may also overflow
        number = int((~tensor.isfinite()).sum())
        if number:
            raise UserError(
                f"{name} has {number:,} values that are NaN or infinite; the weights are damaged, or training diverged: "
                "fetch or train them again"
            )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    if not path.is_file():
        raise UserError(f"no weights at {path}")
    try:
        return parse_tensors(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    atomic_write(path, serialize(weights))


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, shards: Mapping[Path, str] = MappingProxyType({})) -> Path:
    """Write `folder/step-…` and verify it; leave nothing behind on failure. `shards`: files of other ranks to move in, with
    hashes."""
    files = {f"{name}.safetensors": serialize(tensors) for name, tensors in checkpoint.tensors.items()}
    files["state.json"] = json.dumps(checkpoint.state, indent=1).encode()
    path = step_path(folder, step)
    with atomic_folder(path, sum(len(data) for data in files.values())) as temporary, ThreadPoolExecutor() as pool:
        hashes = pool.map(sha256, files.values())  # hashing, writing and waiting for the disk release Python's lock
        for _ in pool.map(lambda name: write_and_fsync(temporary / name, files[name]), files):
            pass  # an error of a thread is raised here
        listed = dict(zip(files, hashes)) | {path.name: digest for path, digest in shards.items()}
        write_and_fsync(temporary / HASHES, json.dumps(listed, indent=1).encode())
        for shard in shards:
            move(shard, temporary / shard.name)
    if problem := find_damage(path):
        raise UserError(f"{path} did not verify after writing ({problem}); the disk may be failing")
    return path


def load_checkpoint(path: Path, files: Collection[str] | None = None) -> Checkpoint:
    """Load a checkpoint whose hashes are all correct: all its tensors, or those of some files, such as "model"."""
    require_intact(path)
    stems = [Path(name).stem for name in read_hashes(path) if name.endswith(".safetensors")]
    chosen = [stem for stem in stems if files is None or SHARD_NAME.sub(r"\1", stem) in files]
    return Checkpoint(join_shards({stem: read_weights(path / f"{stem}.safetensors") for stem in chosen}), read_state(path))


def require_intact(path: Path) -> None:
    """Refuse a checkpoint that is missing or damaged."""
    if not path.is_dir():
        known = ", ".join(other.name for other in list_checkpoints(path.parent)) or "none"
        raise UserError(f"no checkpoint {path}; available: {known}")
    if problem := find_damage(path):
        raise UserError(f"{path} is damaged: {problem}")


def join_shards(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Concatenate sharded tensors: the rows in `model-2-of-4` follow those in `model`."""
    shards = {name: SHARD_NAME.fullmatch(name) for name in files}
    parts = {name: {key: [rows] for key, rows in files[name].items()} for name, shard in shards.items() if shard is None}
    for name, shard in sorted(shards.items(), key=lambda entry: int(entry[1].group(2)) if entry[1] else 0):
        for key, rows in files[name].items() if shard else ():
            parts[shard.group(1)][key].append(rows)  # type: ignore[union-attr]
    return {
        name: {key: torch.cat(rows) if len(rows) > 1 else rows[0] for key, rows in tensors.items()}
        for name, tensors in parts.items()
    }


def read_state(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint that is intact."""
    state: dict[str, Any] = json.loads((path / "state.json").read_bytes())
    return state


def read_hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a checkpoint, as recorded when it was written."""
    hashes: dict[str, str] = json.loads((path / HASHES).read_bytes())
    return hashes


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the hash of a file, which is never in memory as a whole."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    try:
        if not (path / HASHES).is_file():
            return f"{HASHES} is missing"
        hashes = read_hashes(path)
        for name in hashes:
            if not (path / name).is_file():
                return f"{name} is missing"
        with ThreadPoolExecutor() as pool:
            for name, digest in zip(hashes, pool.map(lambda name: sha256_of_file(path / name), hashes)):
                if digest != hashes[name]:
                    return f"{name} does not match its hash"
        if "state.json" not in hashes:
            return f"{HASHES} does not list state.json"
        step = read_state(path).get("step")
        return None if step is None or path.name == f"step-{step:08d}" else f"it is a checkpoint of step {step}"
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return f"{HASHES} or a file it lists cannot be read ({error})"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def step_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def checkpoint_path(folder: Path, name: str) -> Path:
    """Return the checkpoint that a user names: `step-00000500`, its path, or `500`."""
    match = re.fullmatch(r"(?:step-)?(\d+)", Path(name).name)
    if not match:
        raise UserError(f"--from {name}: give a step, such as 500 or step-00000500")
    return step_path(folder, int(match.group(1)))


def latest_intact(folder: Path, max_step: int | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint up to a step, and a message about each newer damaged one."""
    messages: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        if max_step is not None and checkpoint_step(path) > max_step:
            continue
        problem = find_damage(path)
        if problem is None:
            return path, messages
        messages.append(f"{path} is damaged ({problem}); using the one before it")
    return None, messages


def archive_newer(folder: Path, step: int) -> list[Path]:
    """Move the checkpoints after a step to `folder/archive`, out of the way of a run that continues there; return their new
    paths."""
    return [move(path, folder / "archive" / path.name) for path in list_checkpoints(folder) if checkpoint_step(path) > step]


def prune_checkpoints(
    folder: Path, keep: int, protected: Iterable[int] = (), is_regular: Callable[[int], bool] = lambda step: True
) -> None:
    """Delete all checkpoints but the newest one, the newest `keep` regular ones, and the protected steps."""
    paths = list_checkpoints(folder)
    regular = [path for path in paths if is_regular(checkpoint_step(path))]
    kept = {*paths[-1:], *regular[-keep:], *(step_path(folder, step) for step in protected)}
    for path in paths:
        if path not in kept:
            remove_folder(path)


def serialize(tensors: dict[str, Tensor]) -> bytes:
    """Return tensors in safetensors format."""
    return serialize_tensors({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})


def save_sharded(folder: Path, step: int, whole: Checkpoint) -> None:
    """Write a checkpoint from all ranks; when this returns, on any rank, it is complete."""
    temporary = folder / f".writing-shards-{step:08d}"
    tensors, shards = local_tensors(whole.tensors), {}
    if any(is_sharded(x) for named in whole.tensors.values() for x in named.values()):
        if distributed.is_main():
            shutil.rmtree(temporary, ignore_errors=True)
        distributed.barrier()
        hashes = {} if distributed.is_main() else _write_shard(temporary, tensors)
        shards = {temporary / name: digest for part in distributed.all_gather(hashes) for name, digest in part.items()}
    if distributed.is_main():
        save_checkpoint(folder, step, Checkpoint(tensors, whole.state), shards)
        shutil.rmtree(temporary, ignore_errors=True)
    distributed.barrier()


def local_tensors(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Return what this rank writes, by file and tensor name."""
    if distributed.is_main():
        return {file: {name: to_local(x) for name, x in tensors.items()} for file, tensors in files.items()}
    rows = {file: {name: to_local(x) for name, x in tensors.items() if is_sharded(x)} for file, tensors in files.items()}
    suffix = f"{distributed.rank() + 1}-of-{distributed.world_size()}"
    return {f"{file}-{suffix}": tensors for file, tensors in rows.items() if tensors}


def _write_shard(folder: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """Write the files of a rank other than 0; return their hashes."""
    hashes = {}
    for file, tensors in files.items():
        data, path = serialize(tensors), folder / f"{file}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_space(folder, len(data))
            write_and_fsync(path, data)
        except OSError as error:
            raise disk_error(path, len(data), error) from None
        hashes[path.name] = sha256(data)
    return hashes

"""Checkpoints of several ranks. What every rank has is written by the first one. Of sharded tensors each rank writes its rows,
the first one into `model.safetensors`, the second into `model-2-of-4.safetensors`, so that they load on any number of ranks."""

import shutil
from pathlib import Path

from torch import Tensor

from regard import distributed
from regard.distributed.parallel import is_sharded, local
from regard.files import disk_mistake, require_space, write_durably
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint


def save(folder: Path, step: int, whole: Checkpoint) -> None:
    """Write a checkpoint together; it is there when this returns, on every rank."""
    aside = folder / f".writing-shards-{step:08d}"
    mine, beside = own(whole.tensors), {}
    if any(is_sharded(x) for tensors in whole.tensors.values() for x in tensors.values()):
        if distributed.first():
            shutil.rmtree(aside, ignore_errors=True)
        distributed.wait()
        written = {} if distributed.first() else write_rows(aside, mine)
        beside = {aside / name: found for part in distributed.gathered(written) for name, found in part.items()}
    if distributed.first():
        checkpoint.save(folder, step, Checkpoint(mine, whole.state), beside)
        shutil.rmtree(aside, ignore_errors=True)
    distributed.wait()


def own(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """What this rank writes, by file and name."""
    if distributed.first():
        return {file: {name: local(x) for name, x in tensors.items()} for file, tensors in files.items()}
    rows = {file: {name: local(x) for name, x in tensors.items() if is_sharded(x)} for file, tensors in files.items()}
    return {f"{file}-{distributed.rank() + 1}-of-{distributed.count()}": tensors for file, tensors in rows.items() if tensors}


def write_rows(aside: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """The files of a rank that is not the first; their hashes."""
    found = {}
    for file, tensors in files.items():
        data, path = checkpoint.serialize(tensors), aside / f"{file}.safetensors"
        try:
            aside.mkdir(parents=True, exist_ok=True)
            require_space(aside, len(data))
            write_durably(path, data)
        except OSError as error:
            raise disk_mistake(path, len(data), error) from None
        found[path.name] = checkpoint.digest(data)
    return found

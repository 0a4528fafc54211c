"""Checkpoints of several ranks. What every rank has is written by the first one. Of sharded tensors each rank writes its rows,
the first one into `model.safetensors`, the second into `model-2-of-4.safetensors`, so that they load on any number of ranks."""

import shutil
from pathlib import Path

from torch import Tensor

from regard import distributed
from regard.distributed.parallel import is_sharded, to_local
from regard.files import disk_error, require_space, write_and_fsync
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint


def save_sharded(folder: Path, step: int, whole: Checkpoint) -> None:
    """Write a checkpoint together; it is there when this returns, on every rank."""
    aside = folder / f".writing-shards-{step:08d}"
    mine, beside = local_tensors(whole.tensors), {}
    if any(is_sharded(x) for tensors in whole.tensors.values() for x in tensors.values()):
        if distributed.is_main():
            shutil.rmtree(aside, ignore_errors=True)
        distributed.barrier()
        written = {} if distributed.is_main() else write_shard(aside, mine)
        beside = {aside / name: found for part in distributed.all_gather(written) for name, found in part.items()}
    if distributed.is_main():
        checkpoint.save_checkpoint(folder, step, Checkpoint(mine, whole.state), beside)
        shutil.rmtree(aside, ignore_errors=True)
    distributed.barrier()


def local_tensors(files: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """What this rank writes, by file and name."""
    if distributed.is_main():
        return {file: {name: to_local(x) for name, x in tensors.items()} for file, tensors in files.items()}
    rows = {file: {name: to_local(x) for name, x in tensors.items() if is_sharded(x)} for file, tensors in files.items()}
    return {
        f"{file}-{distributed.rank() + 1}-of-{distributed.world_size()}": tensors for file, tensors in rows.items() if tensors
    }


def write_shard(aside: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """The files of a rank that is not the first; their hashes."""
    found = {}
    for file, tensors in files.items():
        data, path = checkpoint.serialize(tensors), aside / f"{file}.safetensors"
        try:
            aside.mkdir(parents=True, exist_ok=True)
            require_space(aside, len(data))
            write_and_fsync(path, data)
        except OSError as error:
            raise disk_error(path, len(data), error) from None
        found[path.name] = checkpoint.sha256(data)
    return found

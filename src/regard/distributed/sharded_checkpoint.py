"""Checkpoints of several ranks. Rank 0 writes what every rank has. Of a sharded tensor each rank writes its rows, rank 0 to
`model.safetensors`, the next to `model-2-of-4.safetensors`; they load on any number of ranks."""

import shutil
from pathlib import Path

from torch import Tensor

from regard import distributed
from regard.distributed.parallel import is_sharded, to_local
from regard.files import disk_error, require_space, write_and_fsync
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint


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
        checkpoint.save_checkpoint(folder, step, Checkpoint(tensors, whole.state), shards)
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
        data, path = checkpoint.serialize(tensors), folder / f"{file}.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            require_space(folder, len(data))
            write_and_fsync(path, data)
        except OSError as error:
            raise disk_error(path, len(data), error) from None
        hashes[path.name] = checkpoint.sha256(data)
    return hashes

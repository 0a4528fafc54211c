"""Checkpoints of several ranks. What every rank has is written by the first one. Of sharded tensors each rank writes its rows,
the first one into `model.safetensors`, the second into `model-2-of-4.safetensors`, so that they load on any number of ranks."""

import hashlib
import shutil
from pathlib import Path

from torch import Tensor

from regard import ranks
from regard.training import checkpoint
from regard.training.checkpoint import Checkpoint
from regard.training.distributed import is_sharded, local


def save(folder: Path, step: int, whole: Checkpoint) -> None:
    """Write a checkpoint together; it is there when this returns, on every rank."""
    aside = folder / f".writing-shards-{step:08d}"
    beside: dict[Path, str] = {}
    if any(is_sharded(x) for tensors in whole.tensors.values() for x in tensors.values()):
        if ranks.first():
            shutil.rmtree(aside, ignore_errors=True)
        ranks.wait()
        written = {} if ranks.first() else write_rows(aside, whole.tensors)
        beside = {aside / name: found for part in ranks.gathered(written) for name, found in part.items()}
    if ranks.first():
        own = {file: {name: local(x) for name, x in tensors.items()} for file, tensors in whole.tensors.items()}
        checkpoint.save(folder, step, Checkpoint(own, whole.state), beside)
        shutil.rmtree(aside, ignore_errors=True)
    ranks.wait()


def write_rows(aside: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """This rank's rows, a file for each; their hashes."""
    found = {}
    for file, tensors in files.items():
        data = checkpoint.serialize({name: local(x) for name, x in tensors.items() if is_sharded(x)})
        path = aside / f"{file}-{ranks.rank() + 1}-of-{ranks.count()}.safetensors"
        try:
            aside.mkdir(parents=True, exist_ok=True)
            checkpoint.require_space(aside, len(data))
            checkpoint.write_durably(path, data)
        except OSError as error:
            raise checkpoint.disk_mistake(path, len(data), error) from None
        found[path.name] = hashlib.sha256(data).hexdigest()
    return found

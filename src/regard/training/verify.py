"""Verify that the last steps of a run, run again, give the same bits (`regard train RUN --resume --verify 20`).

A checkpoint lists the SHA-256 of its weights, its optimizer's state and its averages. The steps from an earlier checkpoint are
run again, and the results are hashed and compared at every checkpoint on the way.
"""

from pathlib import Path

from regard import distributed
from regard.errors import UserError
from regard.training import checkpoint
from regard.training.loop import TrainingLoop


def verify_steps(loop: TrainingLoop, path: Path, steps: int) -> list[str]:
    """Run at least `steps` steps up to a checkpoint again; return the checkpoint files that come out differently.

    The loop, which must not have taken a step yet, starts from the last checkpoint that is at least `steps` steps before; if
    the whole run has no more steps, from the beginning.
    """
    last = checkpoint.checkpoint_step(path)
    first, _ = checkpoint.latest_intact(path.parent, last - steps)
    if first is not None:
        loop.resume(first)
    elif last > steps:
        earlier = [
            checkpoint.checkpoint_step(other) for other in checkpoint.list_checkpoints(path.parent) if other.name < path.name
        ]
        cure = f"use --verify {last - min(earlier)}" if earlier else "keep more checkpoints (train.keep_checkpoints)"
        raise UserError(f"--verify {steps}: {path.parent} has no good checkpoint {steps} steps before step {last}; {cure}")
    loop.log.note(f"running steps {loop.state.step + 1:,} to {last:,} again")
    for micro_batches in loop.step_batches(last):
        loop.step(micro_batches)
        current = checkpoint.step_path(path.parent, loop.state.step)
        if current.is_dir() and checkpoint.find_damage(current) is None and (names := differing_files(loop, current)):
            return names
    loop.log.note(f"bit-exact: weights, optimizer{' and averages' if loop.ema else ''} are the same")
    return []


def differing_files(loop: TrainingLoop, path: Path) -> list[str]:
    """Return the files of a checkpoint that differ from the loop's current tensors, over all ranks."""
    hashes = checkpoint.read_hashes(path)
    own = {
        f"{name}.safetensors": checkpoint.serialize(tensors) for name, tensors in checkpoint.local_tensors(loop.tensors()).items()
    }
    differing = [f"{path.name}/{name}" for name, data in own.items() if hashes.get(name) != checkpoint.sha256(data)]
    return [name for names in distributed.all_gather(differing) for name in names]

"""Verify that the last steps of a run, run again, give the same bits (`regard train RUN --resume --verify 20`).

A checkpoint lists the SHA-256 of its weights, its optimizer's state and its averages. The steps from an earlier checkpoint are
run again, and the results are hashed and compared at every checkpoint on the way.
"""

from pathlib import Path

from regard import distributed
from regard.errors import UserError
from regard.training import checkpoint
from regard.training.loop import Trainer


def verify_steps(trainer: Trainer, path: Path, steps: int) -> list[str]:
    """Run at least `steps` steps up to a checkpoint again; return the checkpoint files that come out differently.

    The trainer, which must not have taken a step yet, starts from the last checkpoint that is at least `steps` steps before; if
    the whole run has no more steps, from the beginning.
    """
    last = checkpoint.checkpoint_step(path)
    first, _ = checkpoint.latest_intact(path.parent, last - steps)
    if first is not None:
        trainer.resume(first)
    elif last > steps:
        earlier = [
            checkpoint.checkpoint_step(other) for other in checkpoint.list_checkpoints(path.parent) if other.name < path.name
        ]
        cure = f"use --verify {last - min(earlier)}" if earlier else "keep more checkpoints (train.keep_checkpoints)"
        raise UserError(f"--verify {steps}: {path.parent} has no good checkpoint {steps} steps before step {last}; {cure}")
    trainer.log.note(f"running steps {trainer.state.step + 1:,} to {last:,} again")
    for micro_batches in trainer.step_batches(last):
        trainer.step(micro_batches)
        current = path.with_name(f"step-{trainer.state.step:08d}")
        if current.is_dir() and checkpoint.find_damage(current) is None and (names := differing_files(trainer, current)):
            return names
    trainer.log.note(f"bit-exact: weights, optimizer{' and averages' if trainer.ema else ''} are the same")
    return []


def differing_files(trainer: Trainer, path: Path) -> list[str]:
    """Return the files of a checkpoint that differ from the trainer's current tensors, over all ranks."""
    hashes = checkpoint.read_hashes(path)
    own = {
        f"{name}.safetensors": checkpoint.serialize(tensors)
        for name, tensors in checkpoint.local_tensors(trainer.tensors()).items()
    }
    differing = [f"{path.name}/{name}" for name, data in own.items() if hashes.get(name) != checkpoint.sha256(data)]
    return [name for names in distributed.all_gather(differing) for name in names]

"""Whether the last steps of a run, run again, lead to the same bits (`regard train RUN --resume --verify 20`).

A checkpoint lists the SHA-256 of its weights, its optimiser's state and its averages. The steps from an earlier checkpoint to it
are run again, and what comes out is hashed the same way; so is what comes out at every checkpoint between the two.
"""

from pathlib import Path

from regard import distributed
from regard.distributed import sharded_checkpoint
from regard.errors import UserError
from regard.training import checkpoint
from regard.training.loop import Trainer


def verify_steps(trainer: Trainer, path: Path, steps: int) -> list[str]:
    """The files of the checkpoint, or of one on the way to it, that come out differently. The trainer, which has not taken a step
    yet, begins at the last checkpoint that is `steps` steps before it; where the whole run has no more, at the beginning."""
    last = checkpoint.checkpoint_step(path)
    first, _ = checkpoint.latest_intact(path.parent, last - steps)
    if first is not None:
        trainer.resume(first)
    elif last > steps:
        before = [checkpoint.checkpoint_step(one) for one in checkpoint.list_checkpoints(path.parent) if one.name < path.name]
        cure = f"--verify {last - min(before)} can be done" if before else "keep more of them (train.keep_checkpoints)"
        raise UserError(f"--verify {steps}: {path.parent} has no good checkpoint {steps} steps before step {last}; {cure}")
    trainer.log.note(f"running steps {trainer.state.step + 1:,} to {last:,} again")
    found: list[str] = []
    ahead = trainer.step_batches()
    while trainer.state.step < last and not found:
        trainer.step(next(ahead))
        here = path.with_name(f"step-{trainer.state.step:08d}")
        if here.is_dir() and checkpoint.find_damage(here) is None:
            found = differing_files(trainer, here)
    if not found:
        trainer.log.note(f"steps run again to the same bits: weights, optimiser{' and averages' if trainer.ema else ''}")
    return found


def differing_files(trainer: Trainer, path: Path) -> list[str]:
    """Files of a checkpoint that are not what the trainer has."""
    listed = checkpoint.read_hashes(path)
    mine = {
        f"{name}.safetensors": checkpoint.serialize(tensors)
        for name, tensors in sharded_checkpoint.local_tensors(trainer.tensors()).items()
    }
    found = [f"{path.name}/{name}" for name, data in mine.items() if listed.get(name) != checkpoint.sha256(data)]
    return [name for some in distributed.all_gather(found) for name in some]

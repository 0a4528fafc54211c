"""Resume a run: which checkpoint, and whether its data and settings are still those it was trained with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import distributed
from regard.corpus.dataset import Dataset
from regard.corpus.fingerprint import fingerprint
from regard.errors import UserError
from regard.recipe import Recipe
from regard.recipe.settings import flatten
from regard.training import checkpoint
from regard.training import verify as verification
from regard.training.log import Log
from regard.training.loop import TrainingLoop

INPUT_FILES = ("tokenizer*.json", "special_tokens.json")
"""Files of a run folder that its token ids depend on."""
NO_INPUTS: dict[str, Any] = {"data": {"root"}, "train": {"workers", "log"}, "score": True}
"""Settings that training does not depend on: where the data lies, how many threads prepare it, the loggers, reported scores."""
CHANGEABLE = ("train.", "decode.")
"""Settings that may sensibly change during a run: naming one with --set is accepting its change."""
MAX_SHOWN_CHANGES = 8


@dataclass(frozen=True)
class ResumeOptions:
    """What the user says about resuming."""

    start: str | None = None
    """The checkpoint to start from; default: the newest intact one."""
    verify: int = 0
    """How many steps to run again and compare first."""
    accept_changes: bool = False
    """Continue although data or settings are not those of the checkpoint."""
    overrides: Sequence[str] = ()


DEFAULT_OPTIONS = ResumeOptions()


def training_inputs(settings: Recipe, data: Dataset[Any], folder: Path) -> dict[str, Any]:
    """Return all that training depends on besides the code: every setting, and the hashes of the data and of the tokenizers."""
    sets = {"training": data.train, "validation": data.valid, **{f"test ({name})": part for name, part in data.tests.items()}}
    files = sorted(path for pattern in INPUT_FILES for path in folder.glob(pattern))
    return {
        "settings": dict(flatten(settings.model_dump(mode="json", exclude=NO_INPUTS))),
        "data": {name: {"examples": len(part), "sha256": fingerprint(part)} for name, part in sets.items()},
        "files": {path.name: checkpoint.sha256(path.read_bytes()) for path in files},
    }


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any], named: Sequence[str] = ()) -> list[str]:
    """Return what differs between the inputs of a checkpoint and those of now, without the settings `named`, in words."""
    settings, known = now["settings"], before.get("settings", {})
    found = [
        f"{name} was {known[name]!r} and is {settings.get(name)!r}"
        for name in known
        if known[name] != settings.get(name) and name not in named
    ]
    for name, old in before.get("data", {}).items():
        new = now["data"].get(name)
        if new is not None and new["sha256"] != old["sha256"]:
            numbers = (
                f"{old['examples']:,} examples then, {new['examples']:,} now"
                if old["examples"] != new["examples"]
                else "as many examples, but other ones or in another order"
            )
            found.append(f"the {name} data ({numbers})")
    files = before.get("files", {})
    return found + [name for name in files if now["files"].get(name) != files[name]]


def require_same_inputs(path: Path, inputs: Mapping[str, Any], options: ResumeOptions, log: Log) -> None:
    """Refuse a checkpoint of other data or settings than now; if the changes are accepted, write them into the log."""
    before, step = checkpoint.read_state(path).get("inputs", {}), checkpoint.checkpoint_step(path)
    given = [override.partition("=")[0].strip() for override in options.overrides]
    named = [name for name in given if name.startswith(CHANGEABLE)]
    changes = find_changes(before, inputs, named)
    if changes and not options.accept_changes:
        shown = "; ".join(changes[:MAX_SHOWN_CHANGES]) + (" …" if len(changes) > MAX_SHOWN_CHANGES else "")
        raise UserError(
            f"{path}: changed since it was written: {shown}; restore this, or continue with --accept-changes, which the log "
            "and the card will state"
        )
    for change in find_changes(before, inputs):
        log.note(f"from step {step:,} on: {change}")
        log.write(event="accepted_change", step=step, change=change)


def choose_checkpoint(folder: Path, start: str | None, log: Log) -> Path | None:
    """Return the checkpoint named, or the newest intact one; None without any. All ranks get the same."""
    chosen = _find_checkpoint(folder, start, log) if distributed.is_main() else None
    found = distributed.broadcast(chosen and str(chosen))
    return None if found is None else Path(found)


def _find_checkpoint(folder: Path, start: str | None, log: Log) -> Path | None:
    if start is not None:
        path = checkpoint.checkpoint_path(folder, start)
        checkpoint.require_intact(path)
        return path
    found, damaged = checkpoint.latest_intact(folder)
    for line in damaged:
        log.note(line)
    if found is None and damaged:
        raise UserError(f"no checkpoint in {folder} is intact; to start again from the first step, move that folder away")
    return found


def resume_from_checkpoint(loop: TrainingLoop, path: Path, verify: int, changed: Sequence[str]) -> None:
    """Resume from a checkpoint; newer ones are archived. `changed`: what is new in the environment."""
    folder, log = loop.folder, loop.log
    if verify and (differences := verification.verify_steps(loop, path, verify)):
        why = f"; changed since it was trained: {', '.join(changed)}" if changed else ""
        raise UserError(f"{path}: repeating its last steps does not reproduce it: {', '.join(differences)} differ{why}")
    with distributed.one_local_rank_at_a_time():
        loop.resume(path)
    for moved in checkpoint.archive_newer(folder, loop.state.step) if distributed.is_main() else ():
        log.note(f"{moved.name} is newer, and now in {moved.parent}")
    loop.require_best()
    log.note(f"resuming from step {loop.state.step:,}")
    if changed:
        log.note(f"bit-exact resume is not guaranteed: {', '.join(changed)}")
    log.write(event="resume", step=loop.state.step)

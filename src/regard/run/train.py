"""Train a recipe into a run folder."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from regard import distributed, tasks
from regard.batches.batches import Batches
from regard.batches.language_rows import PackedRows
from regard.batches.mixture import MixtureRows
from regard.corpus.dataset import Dataset, read_dataset
from regard.distributed import parallel
from regard.errors import Interrupted, UserError
from regard.files import atomic_write, clean_up_partial_writes, lock_folder, require_plain_folder
from regard.hardware import choose_device, hardware, start_preparing
from regard.interop.peft import ADAPTER_FILE
from regard.layers.lora import merge_lora
from regard.recipe import Recipe, apply_override, read_settings
from regard.run.build_loop import build_loop
from regard.run.load import load_native
from regard.run.resume import (
    DEFAULT_OPTIONS,
    ResumeOptions,
    choose_checkpoint,
    require_same_inputs,
    resume_from_checkpoint,
    training_inputs,
)
from regard.tasks.base import Run
from regard.tasks.shared.data_record import write_data_record
from regard.tasks.shared.warm_up import compile_ahead
from regard.tasks.task import Task
from regard.training import checkpoint, environment
from regard.training.callbacks import Callback
from regard.training.log import Log, note
from regard.training.loggers import RUN_IDS, make_loggers
from regard.training.precision import choose_precision, deterministic_algorithms
from regard.training.signals import catch_signals

if TYPE_CHECKING:
    from regard.plan.own_data import DataOptions

RecipeSource = Recipe | Mapping[str, object] | str | Path
"""A recipe, its settings, or the path of its TOML file."""
TOO_LONG_DONE = {"drop": "dropped", "truncate": "truncated", "split": "split"}


def train(
    recipe: RecipeSource | None = None,
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    resume: bool = False,
    start: str | None = None,
    verify: int = 0,
    accept_changes: bool = False,
    callbacks: Sequence[Callback] = (),
    **own_data: Unpack["DataOptions"],
) -> Run:
    """Train a recipe (settings, a TOML file, or with `resume` a run folder) and return the finished run.

    Or train on data, without a recipe: `train(task="classify", train=df, text="review", label="stars")` takes lists, dicts,
    pandas, polars and Arrow tables, Hugging Face's datasets, files, and names of data sets on the hub; it writes a recipe that
    takes at most `minutes` (60) on this machine.

    `resume` continues from the newest intact checkpoint, or from the one named by `start`; `verify` first repeats so many of its
    last steps and compares every bit. Data and settings must be those of the checkpoint, unless `accept_changes`. A job that
    torchrun restarts after a failure resumes by itself. `callbacks` are called at steps, evaluations and checkpoints.
    """
    chosen_device = choose_device(device)
    with catch_signals(immediate=True):  # before the first step and after the last, there is nothing to save
        if resume:
            folder = Path(out or str(recipe))
            if not (folder / "recipe.toml").is_file():
                raise UserError(
                    f"{folder} is not a run folder (it has no recipe.toml); start with: regard train RECIPE --out {folder}"
                )
            require_plain_folder(folder)
            with lock_folder(folder), explain_resume(folder):
                settings = tasks.read_recipe(folder / "recipe.toml", overrides)
                options = ResumeOptions(start, verify, accept_changes, overrides)
                if distributed.is_restarted():
                    options = ResumeOptions(accept_changes=accept_changes, overrides=overrides)
                return train_run(settings, read_data(settings), folder, chosen_device, options, callbacks)
        if start is not None or verify or accept_changes:
            option = "--from" if start is not None else "--verify" if verify else "--accept-changes"
            raise UserError(f"{option} is about a run's checkpoints: use it with regard train RUN --resume")
        if own_data and not (distributed.is_restarted() and out):
            out = Path(out or Path("runs", str(own_data.get("task"))))
            recipe = own_data_recipe(recipe, out, device, own_data)
        settings = to_recipe(recipe or {}, overrides)
        stem = Path(recipe).stem if isinstance(recipe, str | Path) else settings.task
        folder = Path(out) if out else Path("runs", f"{stem}-{settings.digest()[:6]}")
        if distributed.is_restarted() and (folder / "recipe.toml").is_file():
            return train(folder, device=device, resume=True, callbacks=callbacks)
        require_unused(folder)
        data = read_data(settings)  # its errors are reported before anything is written
        make_folder(folder)
        distributed.barrier()  # until all ranks have checked
        with lock_folder(folder), explain_resume(folder):
            require_unused(folder)
            if distributed.is_main():
                write_recipe(settings, folder)
            return train_run(settings, data, folder, chosen_device, callbacks=callbacks)


def own_data_recipe(recipe: RecipeSource | None, folder: Path, device: str, options: "DataOptions") -> dict[str, object]:
    """Return the settings for data in place of a recipe; rows are written into the run folder, which then needs nothing else."""
    from regard.plan.own_data import recipe_for_data

    if recipe is not None:
        raise UserError(f"give a recipe or data, not both: {', '.join(options)} name data")
    require_unused(folder)
    make_folder(folder)
    return recipe_for_data(folder, device, options)


def read_data(settings: Recipe) -> Dataset[Any]:
    """Read all datasets of a recipe."""
    parallel.resolve_parallel(settings.train)  # refuse an impossible train.parallel first
    make_loggers(settings.train.log)  # and a logger that is not installed
    note("reading the data")
    return read_dataset(settings.data)


@contextmanager
def explain_resume(folder: Path) -> Iterator[None]:
    """Add to an interruption how to resume."""
    try:
        yield
    except Interrupted as interruption:
        interruption.cure = f"everything is saved, resume with: regard train {folder} --resume"
        raise


def to_recipe(recipe: RecipeSource, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe from settings or a TOML file, with overrides applied."""
    if isinstance(recipe, str | Path):
        settings = read_settings(recipe, overrides)
    else:
        settings = (
            recipe.model_dump(mode="json", exclude_none=True) if isinstance(recipe, Recipe) else copy.deepcopy(dict(recipe))
        )
        for override in overrides:
            apply_override(settings, override)
    return tasks.build_recipe(tasks.initial_settings(settings), name=str(recipe) if isinstance(recipe, str | Path) else "recipe")


def require_unused(folder: Path) -> None:
    """Refuse a folder that holds a run; one that failed before its first step does not count."""
    if (folder / "model.safetensors").exists() or checkpoint.list_checkpoints(folder / "checkpoints"):
        raise UserError(f"{folder} already holds a run; resume it with: regard train {folder} --resume, or choose another --out")


def make_folder(folder: Path) -> None:
    """Make the run folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None


def write_recipe(settings: Recipe, folder: Path) -> None:
    """Write the recipe into the run folder, and remove the files of a run that failed before its first step."""
    root = str(Path(settings.data.root).resolve())
    if Path(root).is_relative_to(folder.resolve()):  # the run can be moved with its data
        root = Path(root).relative_to(folder.resolve()).as_posix()
    data = settings.data.model_copy(update={"root": root})
    absolute = settings.model_copy(update={"data": data, "score": {}})  # a run has its own scores
    try:
        for path in (*folder.glob("tokenizer*.json"), folder / "log.jsonl", folder / RUN_IDS):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder / "image_codes", ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None
    atomic_write(folder / "recipe.toml", absolute.to_toml())


def train_run(
    settings: Recipe,
    data: Dataset[Any],
    folder: Path,
    device: torch.device,
    options: ResumeOptions = DEFAULT_OPTIONS,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train in a run folder, from the first step or from a checkpoint, and return the finished run."""
    task = tasks.recipe_task(settings)
    for path in (folder, folder / "checkpoints") if distributed.is_main() else ():
        clean_up_partial_writes(path)
    with (
        deterministic_algorithms(settings.train.deterministic),
        Log(folder / "log.jsonl", steps=settings.train.steps) as log,
        ExitStack() as meanwhile,
    ):
        preparation = start_preparing(device)
        with log.timed("tokenizer"):
            found, inputs = prepare_folder(task, settings, data, folder, options, log)
        with log.timed("device"):
            preparation.join()
        meanwhile.enter_context(compile_ahead(settings, folder, device))
        callbacks = [*make_loggers(settings.train.log), *callbacks]
        run, loop, num_too_long, speedups = build_loop(task, settings, data, folder, device, log, inputs, callbacks)
        changed = environment.changes(folder, device)
        distributed.barrier()
        describe(run, log, data, num_too_long, loop.batches)
        if device.type == "cuda":
            log.note(f"steps: {speedups.reason}")
        if found is not None:
            resume_from_checkpoint(loop, found, options.verify, changed)
        with loop.callbacks.during(run, loop.state.step):
            with log.timed("training"):
                weights = loop.train()
            if distributed.is_main():
                write_final_weights(run, weights)
            log.write_event("end")
        distributed.barrier()
    return load_native(folder, device=str(device))


def prepare_folder(
    task: Task, settings: Recipe, data: Dataset[Any], folder: Path, options: ResumeOptions, log: Log
) -> tuple[Path | None, dict[str, Any]]:
    """Write what training needs into the run folder; return the checkpoint to resume from and what training depends on."""
    if distributed.is_main():
        task.run._prepare(folder, settings, data)
    distributed.barrier()
    inputs = training_inputs(settings, data, folder)
    if (found := choose_checkpoint(folder / "checkpoints", options.start, log)) is not None:
        require_same_inputs(found, inputs, options, log)
    elif options.verify:
        raise UserError(f"--verify {options.verify}: {folder / 'checkpoints'} has no checkpoint yet")
    if distributed.is_main():
        write_data_record(folder, settings, data, inputs["data"])
        if options.overrides:
            atomic_write(folder / "recipe.toml", settings.to_toml())
    return found, inputs


def write_final_weights(run: Run, weights: dict[str, Tensor]) -> None:
    """Write the trained model; adapters are merged into it, and written by themselves too."""
    lora = run.recipe.train.lora
    if lora is not None:
        trained = {name for name, parameter in run.model.named_parameters() if parameter.requires_grad}
        checkpoint.write_weights(run.folder / ADAPTER_FILE, {name: weights[name] for name in trained})
        weights = merge_lora(weights, lora.scale)
    checkpoint.write_weights(run.folder / "model.safetensors", weights)


def describe(run: Run, log: Log, data: Dataset[Any], num_too_long: int, batches: Batches) -> None:
    """Log what is about to be trained, and write config.json and environment.json."""
    parameters = sum(p.numel() for p in run.model.parameters())
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    padding = batches.padding_fraction()
    config = {
        "model_type": "regard",
        "architectures": [type(run.model).__name__.removeprefix("FSDP")],
        "task": run.recipe.task,
        **run.recipe.model.model_dump(mode="json", exclude_none=True),
        **run._config_sizes(),
        "parameters": parameters,
    }
    if distributed.is_main():
        atomic_write(run.folder / "config.json", json.dumps(config, indent=1) + "\n")
        atomic_write(run.folder / "environment.json", json.dumps(environment.describe(run.device), indent=1) + "\n")
    precision = choose_precision(run.recipe.train.precision, run.model, run.device)
    packed = f"packed into {len(batches.examples):,} rows, " if isinstance(batches.examples, PackedRows) else ""
    devices = (f"{distributed.world_size()} × " if distributed.world_size() > 1 else "") + hardware(run.device)
    log.note(
        f"{len(data.train):,} training examples, {len(data.valid):,} validation examples; {parameters:,} parameters"
        f"{'' if trained == parameters else f', {trained:,} of them trained'}; "
        f"{packed}{len(batches.plan(0)):,} batches per epoch, {padding:.1%} padding; {precision} on {devices}"
    )
    if isinstance(batches.examples, MixtureRows):
        total = len(batches.examples)
        parts = [f"{name} {count / total:.1%}" for name, count in zip(data.train.parts, batches.examples.counts)]
        log.note(f"each epoch: {', '.join(parts)}")
    if num_too_long:
        log.note(
            f"{num_too_long:,} examples longer than model.max_length = {run._max_positions} tokens were "
            f"{TOO_LONG_DONE.get(run.recipe.data.too_long, 'dropped or truncated')}"
        )
    log.write_event("begin", parameters=parameters, padding_fraction=round(padding, 4), too_long=num_too_long)

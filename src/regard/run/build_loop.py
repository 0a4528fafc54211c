"""Build the training loop of a run: its model with the initial weights, its batches, and the speed-ups of its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import distributed
from regard.batches.batches import Batches
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset
from regard.corpus.examples import Examples
from regard.distributed import parallel
from regard.interop.convert import is_huggingface_folder
from regard.recipe import OwnModel, Recipe
from regard.run.load import load_native
from regard.tasks.base import Run
from regard.tasks.task import Task
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.initial_weights import adapt, freeze, load_initial_weights, load_word_vectors, new_modules
from regard.training.log import Log
from regard.training.loop import TrainingLoop
from regard.training.speedups import (
    Speedups,
    TrainingWork,
    capture_obstacle,
    choose_speedups,
    compile_gain,
    replayed_fraction,
)

LENGTH_MULTIPLE = 8
"""With CUDA graphs, rows are padded to a multiple of this, so that shapes recur."""


class BuiltLoop(NamedTuple):
    """A run that is about to be trained, with its training loop."""

    run: Run
    loop: TrainingLoop
    num_too_long: int
    """Training examples that were too long."""
    speedups: Speedups


def build_loop(
    task: Task,
    settings: Recipe,
    data: Dataset[Any],
    folder: Path,
    device: torch.device,
    log: Log,
    inputs: Mapping[str, object] = MappingProxyType({}),
    callbacks: Sequence[Callback] = (),
) -> BuiltLoop:
    """Build the model of a prepared run folder, its batches and its training loop."""
    torch.manual_seed(settings.seed)
    with log.timed("model"):
        run = task.run(task, folder, settings, device)
    run.data = data
    with log.timed("tokens"), distributed.local_first():
        rows, num_too_long = run._training_rows(data.train)
        valid, *_ = [run._evaluation_rows(examples, refuse=True) for examples in (data.valid, *data.tests.values())]
    initialize(run, log)
    with log.timed("frozen"):
        every_step, rows, valid = rows, run._run_frozen(rows), run._run_frozen(valid)
    if rows is not every_step:
        log.note("the frozen parts of the model ran over the data once, and not in every step")
    with log.timed("batches"):
        batches, speedups = choose_batches(run, rows)
    with log.timed("optimizer"):
        loop = TrainingLoop(
            run.model,
            run._objective(),
            batches,
            settings.train.model_copy(update={"cuda_graphs": speedups.cuda_graphs, "compile": speedups.compile}),
            seed=settings.seed,
            folder=folder / "checkpoints",
            log=log,
            evaluate=lambda model: validate(run, model, data.valid, valid),
            maximize=task.best_metrics(settings.train),
            inputs=inputs,
            callbacks=callbacks,
        )
    return BuiltLoop(run, loop, num_too_long, speedups)


def choose_batches(run: Run, rows: Rows) -> tuple[Batches, Speedups]:
    """Return the batches of this rank and the speed-ups of its steps; with CUDA graphs, rows are padded so that shapes recur."""
    settings, padded = run.recipe.train, make_batches(run, rows, LENGTH_MULTIPLE)
    work = TrainingWork(run.device.type, settings.steps)
    if isinstance(run.recipe.model, OwnModel):
        work = replace(work, obstacle="it is not known whether your model allows them: set train.cuda_graphs or train.compile")
    elif getattr(settings, "self_critical", None) is not None:
        work = replace(work, obstacle="the host takes part in every step of train.self_critical")
    elif run.device.type == "cuda":
        from regard.plan.planner import estimate_step_seconds

        work = replace(
            work,
            step_seconds=estimate_step_seconds(run, padded.mean_lengths()),
            replayed_fraction=replayed_fraction(padded.shape_counts().values(), settings.steps),
            obstacle=capture_obstacle(run.model, parallel.resolve_parallel(settings)),
            compile_gain=compile_gain(run.recipe.model, run.task.decoder_only),
        )
    speedups = choose_speedups(settings, work)
    return padded if speedups.cuda_graphs else make_batches(run, rows), speedups


def make_batches(run: Run, rows: Rows, pad_to_multiple_of: int = 1) -> Batches:
    """Return the batches of this rank."""
    settings = run.recipe.train
    return Batches(
        rows,
        settings.budget(run._max_positions),
        run.recipe.seed,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
        pad_to_multiple_of=pad_to_multiple_of,
    )


def initialize(run: Run, log: Log) -> None:
    """Load the weights and word vectors that the recipe names, freeze what it says, and add adapters."""
    settings = run.recipe.train
    if (vectors := getattr(run.recipe.model, "vectors", None)) is not None:
        path, table = Path(run.recipe.data.root, vectors.file), run.model.token_embedding
        load_word_vectors(table, path, run.tokenizers[0].pieces(range(table.num_embeddings)), log)
        table.weight.requires_grad_(not vectors.frozen)
    loaded: set[str] = set()
    for one in settings.init_from:
        source = Path(one.run)
        theirs = (
            checkpoint.named_weights(load_native(source, device="cpu").model)
            if is_huggingface_folder(source)
            else checkpoint.read_weights(source / "model.safetensors")
        )
        loaded |= load_initial_weights(run.model, theirs, one, log)
    if loaded and (new := new_modules(checkpoint.named_weights(run.model), loaded)):
        log.note(f"not initialised from another model: {', '.join(new)}")
    freeze(run.model, settings.freeze)
    if settings.lora is not None:
        adapt(run.model, settings.lora, loaded)


def validate(run: Run, model: nn.Module, examples: Examples, rows: Rows) -> dict[str, float]:
    """Return the validation metrics of a model in place of the run's own."""
    trained, run.model = run.model, model
    try:
        return run._validate(examples, rows)
    finally:
        run.model = trained

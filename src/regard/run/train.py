"""Train a recipe into a run folder."""

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import distributed
from regard import recipe as recipes
from regard.batches.batches import Batches
from regard.batches.language_rows import PackedRows
from regard.batches.mixture import MixtureRows
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.word_vectors import read_word_vectors
from regard.distributed import parallel
from regard.errors import Interrupted, UserError
from regard.files import atomic_write, clean_up_partial_writes, lock_folder
from regard.interop.convert import is_huggingface_folder
from regard.recipe import InitFrom, Recipe
from regard.run import environment
from regard.run.load import load, run_class
from regard.tasks.base import MAXIMIZED_METRICS, Run
from regard.training import checkpoint
from regard.training import verify as verification
from regard.training.log import Log, note
from regard.training.loop import Trainer
from regard.training.precision import choose_precision
from regard.training.signals import catch_signals

LENGTH_MULTIPLE = 8  # positions that rows are filled up to a multiple of, where shapes should come again
TOO_LONG_DONE = {"drop": "dropped", "truncate": "cut", "split": "split"}


def train(
    recipe: Recipe | dict[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    resume: bool = False,
    board: bool = False,
    start: str | None = None,
    verify: int = 0,
) -> Run:
    """Train a recipe (settings, a TOML file, or with `resume` a run folder) and return the finished run. A run goes on from its
    newest good checkpoint, or from the one named by `start`; `verify` runs so many of its last steps again first. What torchrun
    starts again after a failure goes on."""
    where = environment.choose_device(device)
    with catch_signals(immediate=True):  # before the first step and after the last, nothing is lost by leaving
        if resume:
            folder = Path(out or str(recipe))
            require_run(folder)
            with lock_folder(folder), explain_resume(folder):
                settings = read_unfinished_recipe(folder, overrides)
                again_from = (None, 0) if distributed.is_restarted() else (start, verify)
                return train_run(settings, read_data(settings), folder, where, board, *again_from)
        if start is not None or verify:
            raise UserError(
                f"{'--from' if start is not None else '--verify'} is about a run's checkpoints: "
                "use it with regard train RUN --resume"
            )
        settings = to_recipe(recipe, overrides)
        folder = Path(out) if out else Path("runs", default_name(recipe, settings))
        if distributed.is_restarted() and (folder / "recipe.toml").is_file():
            return train(folder, device=device, resume=True, board=board)
        require_unused(folder)
        data = read_data(settings)  # what is wrong with it is said before anything is written
        make_folder(folder)
        distributed.barrier()  # until all have looked
        with lock_folder(folder), explain_resume(folder):
            require_unused(folder)
            if distributed.is_main():
                write_recipe(settings, folder)
            return train_run(settings, data, folder, where, board)


def read_data(settings: Recipe) -> Dataset[Any]:
    parallel.resolve_parallel(settings.train)  # what cannot be spread is refused before anything is read
    note("reading the data")
    return read_dataset(settings.data)


@contextmanager
def explain_resume(folder: Path) -> Iterator[None]:
    """An interruption says how to go on."""
    try:
        yield
    except Interrupted as interruption:
        interruption.cure = f"everything is saved, go on with: regard train {folder} --resume"
        raise


def to_recipe(recipe: Recipe | dict[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Recipe:
    if isinstance(recipe, Recipe | dict):
        plain = recipe.model_dump(mode="json", exclude_none=True) if isinstance(recipe, Recipe) else copy.deepcopy(recipe)
        for change in overrides:
            recipes.apply_override(plain, change)
        return recipes.build_recipe(plain)
    return recipes.read_recipe(recipe, list(overrides))


def default_name(recipe: Recipe | dict[str, Any] | str | Path, settings: Recipe) -> str:
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else settings.task
    return f"{stem}-{settings.digest()[:6]}"


def require_unused(folder: Path) -> None:
    """A folder in which something was trained is left alone; one where a run failed before its first step is not in the way."""
    if (folder / "model.safetensors").exists() or checkpoint.list_checkpoints(folder / "checkpoints"):
        raise UserError(f"{folder} already holds a run; go on with: regard train {folder} --resume, or choose another --out")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None


def write_recipe(settings: Recipe, folder: Path) -> None:
    """Put the recipe into the run folder, and take out what is left of one that failed."""
    root = str(Path(settings.data.root).resolve())
    absolute = settings.model_copy(update={"data": settings.data.model_copy(update={"root": root})})
    try:
        for left in (*folder.glob("tokenizer*.json"), folder / "log.jsonl"):
            left.unlink(missing_ok=True)
        shutil.rmtree(folder / "codes", ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error.strerror}") from None
    atomic_write(folder / "recipe.toml", absolute.to_toml())


def require_run(folder: Path) -> None:
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml); start with: regard train RECIPE --out {folder}")


def read_unfinished_recipe(folder: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of an unfinished run, changed where it is said."""
    settings = recipes.read_recipe(folder / "recipe.toml", list(overrides))
    distributed.barrier()
    if overrides and distributed.is_main():
        atomic_write(folder / "recipe.toml", settings.to_toml())
    return settings


def train_run(
    settings: Recipe,
    data: Dataset[Any],
    folder: Path,
    device: torch.device,
    board: bool,
    start: str | None = None,
    verify: int = 0,
) -> Run:
    kind = run_class(settings)
    for place in (folder, folder / "checkpoints") if distributed.is_main() else ():
        clean_up_partial_writes(place)
    with Log(folder / "log.jsonl", steps=settings.train.steps, board=folder / "board" if board else None) as log:
        if distributed.is_main():
            kind.prepare(folder, settings, data)
        distributed.barrier()
        torch.manual_seed(settings.seed)
        run = kind(folder, settings, device)
        with distributed.local_first():
            rows, long = run.training_rows(data.train)
            valid, *_ = [run.evaluation_rows(examples, refuse=True) for examples in (data.valid, *data.tests.values())]
        batches = Batches(
            rows,
            settings.train.budget(run.longest),
            settings.seed,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
            pad_to_multiple_of=LENGTH_MULTIPLE if settings.train.cuda_graphs else 1,
        )
        load_word_vectors(run, log)
        if settings.train.init_from is not None:
            load_initial_weights(run, settings.train.init_from, log)
        freeze(run, settings.train.freeze)
        trainer = Trainer(
            run.model,
            run.objective(),
            batches,
            settings.train,
            seed=settings.seed,
            folder=folder / "checkpoints",
            log=log,
            evaluate=lambda model: validate(run, model, data.valid, valid),
            maximize=MAXIMIZED_METRICS,
        )
        changed = environment.changes(folder, device)
        distributed.barrier()
        describe(run, log, data, long, batches)
        resume_from_checkpoint(trainer, start, verify, changed)
        weights = trainer.train()
        if distributed.is_main():
            checkpoint.write_weights(folder / "model.safetensors", weights)
        distributed.barrier()
    return load(folder, device=str(device))


def validate(run: Run, model: nn.Module, examples: Any, rows: Rows) -> dict[str, float]:
    """What the run measures, of these weights."""
    learning, run.model = run.model, model
    try:
        return run.validate(examples, rows)
    finally:
        run.model = learning


def load_word_vectors(run: Run, log: Log) -> None:
    """Begin from pre-computed word vectors, where the recipe names some."""
    settings = getattr(run.recipe.model, "vectors", None)
    if settings is None:
        return
    path, table = Path(run.recipe.data.root, settings.file), run.model.token_embedding
    pieces = [piece.strip() for piece in run.tokenizers[0].pieces(range(table.num_embeddings))]
    vectors = read_word_vectors(path, set(pieces), width=table.embedding_dim)
    with torch.no_grad():
        for number, piece in enumerate(pieces):
            if piece in vectors:
                table.weight[number] = torch.from_numpy(vectors[piece])
    table.weight.requires_grad_(not settings.frozen)
    log.note(f"{sum(piece in vectors for piece in pieces):,} of {len(pieces):,} tokens begin from the vectors in {path}")


def freeze(run: Run, names: list[str]) -> None:
    """Keep the weights whose names begin so as they are."""
    for name in names:
        found = [p for known, p in run.model.named_parameters() if known.startswith(name)]
        if not found:
            known = ", ".join(sorted({known.split(".")[0] for known, _ in run.model.named_parameters()}))
            raise UserError(f"train.freeze = {names}: the model has no weights named {name!r}; it has {known}")
        for p in found:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in run.model.parameters()):
        raise UserError(f"train.freeze = {names} leaves nothing to learn")


def load_initial_weights(run: Run, begin: InitFrom, log: Log) -> None:
    """Begin from the weights of another run or Hugging Face folder, all or those whose names begin with one of the parts."""
    path = Path(begin.run, "model.safetensors")
    theirs = (
        checkpoint.named_weights(load(begin.run, device="cpu").model)
        if is_huggingface_folder(Path(begin.run))
        else checkpoint.read_weights(path)
    )
    taken = {name: weights for name, weights in theirs.items() if not begin.modules or name.startswith(tuple(begin.modules))}
    if not taken:
        known = ", ".join(sorted({name.split(".")[0] for name in theirs}))
        raise UserError(f"train.init_from.modules = {begin.modules}: {path} has no weights named so; it has {known}")
    if begin.into is not None:
        taken = {name.replace(begin.modules[0], begin.into, 1): weights for name, weights in taken.items()}
    taken = run.model.adapt_weights(taken) if hasattr(run.model, "adapt_weights") else taken
    mine = checkpoint.named_weights(run.model)
    with torch.no_grad():
        checkpoint.load_weights(run.model, {**mine, **taken}, str(path))
    log.note(f"beginning from {len(taken)} tensors of {begin.run}")


def describe(run: Run, log: Log, data: Dataset[Any], long: int, batches: Batches) -> None:
    """Say what is about to be trained, and write config.json and environment.json."""
    parameters = sum(p.numel() for p in run.model.parameters())
    padding = batches.padding_fraction()
    config = {
        "model_type": "regard",
        "architectures": [type(run.model).__name__.removeprefix("FSDP")],
        "task": run.recipe.task,
        **run.recipe.model.model_dump(mode="json", exclude_none=True),
        **run.sizes(),
        "parameters": parameters,
    }
    if distributed.is_main():
        atomic_write(run.folder / "config.json", json.dumps(config, indent=1) + "\n")
        atomic_write(run.folder / "environment.json", json.dumps(environment.describe(run.device), indent=1) + "\n")
    precision = choose_precision(run.recipe.train.precision, run.model, run.device)
    packed = f"packed into {len(batches.examples):,} rows, " if isinstance(batches.examples, PackedRows) else ""
    on = (f"{distributed.world_size()} × " if distributed.world_size() > 1 else "") + environment.hardware(run.device)
    log.note(
        f"{len(data.train):,} examples to learn from, {len(data.valid):,} to check; {parameters:,} parameters; "
        f"{packed}{len(batches.plan(0)):,} batches an epoch, {padding:.1%} padding; in {precision} on {on}"
    )
    if isinstance(batches.examples, MixtureRows):
        often = [f"{name} {drawn / len(batches.examples):.1%}" for name, drawn in zip(data.train.parts, batches.examples.counts)]
        log.note(f"of every epoch: {', '.join(often)}")
    if long:
        log.note(
            f"{long:,} examples longer than model.max_length = {run.longest} tokens were "
            f"{TOO_LONG_DONE.get(run.recipe.data.too_long, 'dropped or cut')}"
        )
    log.write(event="begin", parameters=parameters, padding_fraction=round(padding, 4), too_long=long)


def resume_from_checkpoint(trainer: Trainer, start: str | None, verify: int, changed: Sequence[str]) -> None:
    """Go on from the checkpoint that is named, or from the newest good one, if there is any; those after it are set aside."""
    folder, log = trainer.folder, trainer.log
    chosen = choose_checkpoint(folder, start, log) if distributed.is_main() else None
    if (found := distributed.broadcast(chosen and str(chosen))) is None:
        if verify:
            raise UserError(f"--verify {verify}: {folder} has no checkpoint yet")
        return
    path = Path(found)
    if verify and (differ := verification.verify_steps(trainer, path, verify)):
        why = f"; not as it was trained: {', '.join(changed)}" if changed else ""
        raise UserError(
            f"{path} is not what its steps lead to when they are run again: {', '.join(differ)} came out differently{why}"
        )
    with distributed.one_local_rank_at_a_time():
        trainer.resume(path)
    for moved in checkpoint.archive_newer(folder, trainer.state.step) if distributed.is_main() else ():
        log.note(f"{moved.name} is after that, and now in {moved.parent}")
    trainer.require_best()
    log.note(f"going on from step {trainer.state.step:,}")
    if changed:
        log.note(f"the same bits as before are not to be expected: {', '.join(changed)}")
    log.write(event="resume", step=trainer.state.step)


def choose_checkpoint(folder: Path, start: str | None, log: Log) -> Path | None:
    if start is not None:
        path = checkpoint.checkpoint_path(folder, start)
        checkpoint.require_intact(path)
        return path
    found, damaged = checkpoint.latest_intact(folder)
    for line in damaged:
        log.note(line)
    if found is None and damaged:
        raise UserError(f"no checkpoint in {folder} is whole; to begin again from the first step, move that folder away")
    return found

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
from regard.batches.mixture import Mixed
from regard.batches.packing import Packed
from regard.batches.rows import Rows
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.word_vectors import read_vectors
from regard.distributed import parallel
from regard.errors import Interrupted, Mistake
from regard.files import replace_file, sweep
from regard.interop.convert import is_foreign
from regard.recipe import Begin, Recipe
from regard.run import environment
from regard.run.load import kind_of, load
from regard.tasks.base import Run
from regard.training import checkpoint
from regard.training import verify as verification
from regard.training.lock import only_run
from regard.training.log import Log, note
from regard.training.loop import Trainer
from regard.training.precision import choose_precision
from regard.training.signals import catch_signals

ROUNDED = 8  # positions that rows are filled up to a multiple of, where shapes should come again
DONE = {"drop": "dropped", "truncate": "cut", "split": "split"}


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
    with catch_signals(at_once=True):  # before the first step and after the last, nothing is lost by leaving
        if resume:
            folder = Path(out or str(recipe))
            require_run(folder)
            with only_run(folder), goes_on(folder):
                settings = as_left(folder, overrides)
                again_from = (None, 0) if distributed.restarted() else (start, verify)
                return fit(settings, read_all(settings), folder, where, board, *again_from)
        if start is not None or verify:
            raise Mistake(
                f"{'--from' if start is not None else '--verify'} is about a run's checkpoints: "
                "use it with regard train RUN --resume"
            )
        settings = as_recipe(recipe, overrides)
        folder = Path(out) if out else Path("runs", default_name(recipe, settings))
        if distributed.restarted() and (folder / "recipe.toml").is_file():
            return train(folder, device=device, resume=True, board=board)
        require_unused(folder)
        data = read_all(settings)  # what is wrong with it is said before anything is written
        make_folder(folder)
        distributed.wait()  # until all have looked
        with only_run(folder), goes_on(folder):
            require_unused(folder)
            if distributed.first():
                begin(settings, folder)
            return fit(settings, data, folder, where, board)


def read_all(settings: Recipe) -> Dataset[Any]:
    parallel.kind_of(settings.train)  # what cannot be spread is refused before anything is read
    note("reading the data")
    return read_dataset(settings.data)


@contextmanager
def goes_on(folder: Path) -> Iterator[None]:
    """An interruption says how to go on."""
    try:
        yield
    except Interrupted as interruption:
        interruption.cure = f"everything is saved, go on with: regard train {folder} --resume"
        raise


def as_recipe(recipe: Recipe | dict[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Recipe:
    if isinstance(recipe, Recipe | dict):
        plain = recipe.model_dump(mode="json", exclude_none=True) if isinstance(recipe, Recipe) else copy.deepcopy(recipe)
        for change in overrides:
            recipes.apply_override(plain, change)
        return recipes.build(plain)
    return recipes.read(recipe, list(overrides))


def default_name(recipe: Recipe | dict[str, Any] | str | Path, settings: Recipe) -> str:
    stem = Path(recipe).stem if isinstance(recipe, str | Path) else settings.task
    return f"{stem}-{settings.digest()[:6]}"


def require_unused(folder: Path) -> None:
    """A folder in which something was trained is left alone; one where a run failed before its first step is not in the way."""
    if (folder / "model.safetensors").exists() or checkpoint.all_steps(folder / "checkpoints"):
        raise Mistake(f"{folder} already holds a run; go on with: regard train {folder} --resume, or choose another --out")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"cannot write the run folder {folder}: {error.strerror}") from None


def begin(settings: Recipe, folder: Path) -> None:
    """Put the recipe into the run folder, and take out what is left of one that failed."""
    root = str(Path(settings.data.root).resolve())
    absolute = settings.model_copy(update={"data": settings.data.model_copy(update={"root": root})})
    try:
        for left in (*folder.glob("tokenizer*.json"), folder / "log.jsonl"):
            left.unlink(missing_ok=True)
        shutil.rmtree(folder / "codes", ignore_errors=True)
    except OSError as error:
        raise Mistake(f"cannot write the run folder {folder}: {error.strerror}") from None
    replace_file(folder / "recipe.toml", absolute.to_toml())


def require_run(folder: Path) -> None:
    if not (folder / "recipe.toml").is_file():
        raise Mistake(f"{folder} is not a run folder (it has no recipe.toml); start with: regard train RECIPE --out {folder}")


def as_left(folder: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of an unfinished run, changed where it is said."""
    settings = recipes.read(folder / "recipe.toml", list(overrides))
    distributed.wait()
    if overrides and distributed.first():
        replace_file(folder / "recipe.toml", settings.to_toml())
    return settings


def fit(
    settings: Recipe,
    data: Dataset[Any],
    folder: Path,
    device: torch.device,
    board: bool,
    start: str | None = None,
    verify: int = 0,
) -> Run:
    kind = kind_of(settings)
    for place in (folder, folder / "checkpoints") if distributed.first() else ():
        sweep(place)
    with Log(folder / "log.jsonl", steps=settings.train.steps, board=folder / "board" if board else None) as log:
        if distributed.first():
            kind.prepare(folder, settings, data)
        distributed.wait()
        torch.manual_seed(settings.seed)
        run = kind(folder, settings, device)
        with distributed.turn():
            rows, long = run.training_rows(data.train)
            valid, *_ = [run.evaluation_rows(examples, refuse=True) for examples in (data.valid, *data.tests.values())]
        batches = Batches(
            rows,
            settings.train.budget(run.longest),
            settings.seed,
            rank=distributed.rank(),
            ranks=distributed.count(),
            multiple=ROUNDED if settings.train.graphs else 1,
        )
        take_vectors(run, log)
        if settings.train.begin is not None:
            take_weights(run, settings.train.begin, log)
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
        )
        changed = environment.changes(folder, device)
        distributed.wait()
        describe(run, log, data, long, batches)
        pick_up(trainer, start, verify, changed)
        weights = trainer.train()
        if distributed.first():
            checkpoint.write_weights(folder / "model.safetensors", weights)
        distributed.wait()
    return load(folder, device=str(device))


def validate(run: Run, model: nn.Module, examples: Any, rows: Rows) -> dict[str, float]:
    """What the run measures, of these weights."""
    learning, run.model = run.model, model
    try:
        return run.validate(examples, rows)
    finally:
        run.model = learning


def take_vectors(run: Run, log: Log) -> None:
    """Begin from pre-computed word vectors, where the recipe names some."""
    settings = getattr(run.recipe.model, "vectors", None)
    if settings is None:
        return
    path, table = Path(run.recipe.data.root, settings.file), run.model.words
    pieces = [piece.strip() for piece in run.tokenizers[0].pieces(range(table.num_embeddings))]
    vectors = read_vectors(path, set(pieces), width=table.embedding_dim)
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
            raise Mistake(f"train.freeze = {names}: the model has no weights named {name!r}; it has {known}")
        for p in found:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in run.model.parameters()):
        raise Mistake(f"train.freeze = {names} leaves nothing to learn")


def take_weights(run: Run, begin: Begin, log: Log) -> None:
    """Begin from the weights of another run or Hugging Face folder, all or those whose names begin with one of the parts."""
    path = Path(begin.run, "model.safetensors")
    theirs = (
        checkpoint.weights_of(load(begin.run, device="cpu").model)
        if is_foreign(Path(begin.run))
        else checkpoint.read_weights(path)
    )
    taken = {name: weights for name, weights in theirs.items() if not begin.parts or name.startswith(tuple(begin.parts))}
    if not taken:
        known = ", ".join(sorted({name.split(".")[0] for name in theirs}))
        raise Mistake(f"train.begin.parts = {begin.parts}: {path} has no weights named so; it has {known}")
    if begin.into is not None:
        taken = {name.replace(begin.parts[0], begin.into, 1): weights for name, weights in taken.items()}
    taken = run.model.adapted(taken) if hasattr(run.model, "adapted") else taken
    mine = checkpoint.weights_of(run.model)
    with torch.no_grad():
        checkpoint.load_weights(run.model, {**mine, **taken}, str(path))
    log.note(f"beginning from {len(taken)} tensors of {begin.run}")


def describe(run: Run, log: Log, data: Dataset[Any], long: int, batches: Batches) -> None:
    """Say what is about to be trained, and write config.json and environment.json."""
    parameters = sum(p.numel() for p in run.model.parameters())
    padding = batches.padding_share()
    config = {
        "model_type": "regard",
        "architectures": [type(run.model).__name__.removeprefix("FSDP")],
        "task": run.recipe.task,
        **run.recipe.model.model_dump(mode="json", exclude_none=True),
        **run.sizes(),
        "parameters": parameters,
    }
    if distributed.first():
        replace_file(run.folder / "config.json", json.dumps(config, indent=1) + "\n")
        replace_file(run.folder / "environment.json", json.dumps(environment.describe(run.device), indent=1) + "\n")
    precision = choose_precision(run.recipe.train.precision, run.model, run.device)
    packed = f"packed into {len(batches.examples):,} rows, " if isinstance(batches.examples, Packed) else ""
    on = (f"{distributed.count()} × " if distributed.count() > 1 else "") + environment.hardware(run.device)
    log.note(
        f"{len(data.train):,} examples to learn from, {len(data.valid):,} to check; {parameters:,} parameters; "
        f"{packed}{len(batches.plan(0)):,} batches an epoch, {padding:.1%} padding; in {precision} on {on}"
    )
    if isinstance(batches.examples, Mixed):
        often = [f"{name} {drawn / len(batches.examples):.1%}" for name, drawn in zip(data.train.parts, batches.examples.drawn)]
        log.note(f"of every epoch: {', '.join(often)}")
    if long:
        log.note(
            f"{long:,} examples longer than model.max_length = {run.longest} tokens were "
            f"{DONE.get(run.recipe.data.too_long, 'dropped or cut')}"
        )
    log.record(event="begin", parameters=parameters, padding_share=round(padding, 4), too_long=long)


def pick_up(trainer: Trainer, start: str | None, verify: int, changed: Sequence[str]) -> None:
    """Go on from the checkpoint that is named, or from the newest good one, if there is any; those after it are set aside."""
    folder, log = trainer.folder, trainer.log
    chosen = choose(folder, start, log) if distributed.first() else None
    if (found := distributed.told(chosen and str(chosen))) is None:
        if verify:
            raise Mistake(f"--verify {verify}: {folder} has no checkpoint yet")
        return
    path = Path(found)
    if verify and (differ := verification.differences(trainer, path, verify)):
        why = f"; not as it was trained: {', '.join(changed)}" if changed else ""
        raise Mistake(
            f"{path} is not what its steps lead to when they are run again: {', '.join(differ)} came out differently{why}"
        )
    with distributed.one_by_one():
        trainer.resume(path)
    for moved in checkpoint.set_aside(folder, trainer.progress.step) if distributed.first() else ():
        log.note(f"{moved.name} is after that, and now in {moved.parent}")
    trainer.require_best()
    log.note(f"going on from step {trainer.progress.step:,}")
    if changed:
        log.note(f"the same bits as before are not to be expected: {', '.join(changed)}")
    log.record(event="resume", step=trainer.progress.step)


def choose(folder: Path, start: str | None, log: Log) -> Path | None:
    if start is not None:
        path = checkpoint.named(folder, start)
        checkpoint.require_good(path)
        return path
    found, damaged = checkpoint.newest_good(folder)
    for line in damaged:
        log.note(line)
    if found is None and damaged:
        raise Mistake(f"no checkpoint in {folder} is whole; to begin again from the first step, move that folder away")
    return found

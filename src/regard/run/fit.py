"""Train a recipe into a run folder."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard import recipe as recipes
from regard.batches.batches import Batches
from regard.batches.mixed import Mixed
from regard.batches.packed import Packed
from regard.corpus.dataset import Dataset, read_dataset
from regard.corpus.vectors import read_vectors
from regard.errors import Mistake
from regard.interop.convert import is_foreign
from regard.recipe import Begin, Recipe
from regard.run import environment
from regard.run.base import Run
from regard.run.opened import kind_of, load
from regard.training import checkpoint
from regard.training.log import Log, note
from regard.training.loop import Trainer
from regard.training.precision import choose_precision

DONE = {"drop": "dropped", "truncate": "cut", "split": "split"}


def train(recipe: Recipe | dict[str, Any] | str | Path, out: str | Path | None = None, *, overrides: Sequence[str] = (),
          device: str = "auto", resume: bool = False, board: bool = False) -> Run:
    """Train a recipe (settings, a TOML file, or with `resume` a run folder) and return the finished run."""
    where = environment.choose_device(device)
    if resume:
        folder, settings = open_unfinished(Path(out or str(recipe)), overrides)
    else:
        settings = as_recipe(recipe, overrides)
        folder = Path(out) if out else Path("runs", default_name(recipe, settings))
        require_unused(folder)
    note("reading the data")
    data = read_dataset(settings.data)                # what is wrong with it is said before anything is written
    if not resume:
        begin(settings, folder)
    return fit(settings, data, folder, where, board)


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


def begin(settings: Recipe, folder: Path) -> None:
    """Make the run folder, with its recipe in it."""
    root = str(Path(settings.data.root).resolve())
    absolute = settings.model_copy(update={"data": settings.data.model_copy(update={"root": root})})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in (*folder.glob("tokenizer*.json"), folder / "log.jsonl"):
            left.unlink(missing_ok=True)
        shutil.rmtree(folder / "codes", ignore_errors=True)
        (folder / "recipe.toml").write_text(absolute.to_toml(), encoding="utf-8")
    except OSError as error:
        raise Mistake(f"cannot write the run folder {folder}: {error.strerror}") from None


def open_unfinished(folder: Path, overrides: Sequence[str]) -> tuple[Path, Recipe]:
    if not (folder / "recipe.toml").is_file():
        raise Mistake(f"{folder} is not a run folder (it has no recipe.toml); start with: regard train RECIPE --out {folder}")
    settings = recipes.read(folder / "recipe.toml", list(overrides))
    (folder / "recipe.toml").write_text(settings.to_toml(), encoding="utf-8")
    return folder, settings


def fit(settings: Recipe, data: Dataset[Any], folder: Path, device: torch.device, board: bool) -> Run:
    kind = kind_of(settings)
    with Log(folder / "log.jsonl", steps=settings.train.steps, board=folder / "board" if board else None) as log:
        kind.prepare(folder, settings, data)
        torch.manual_seed(settings.seed)
        run = kind(folder, settings, device)
        rows, long = run.training_rows(data.train)
        valid, *_ = [run.evaluation_rows(examples, refuse=True) for examples in (data.valid, *data.tests.values())]
        batches = Batches(rows, settings.train.budget(run.longest), settings.seed)
        take_vectors(run, log)
        if settings.train.begin is not None:
            take_weights(run, settings.train.begin, log)
        freeze(run, settings.train.freeze)
        trainer = Trainer(run.model, run.objective(), batches, settings.train, seed=settings.seed,
                          folder=folder / "checkpoints", log=log, evaluate=lambda _: run.validate(data.valid, valid))
        describe(run, log, data, long, batches)
        pick_up(trainer, folder, log)
        weights = trainer.train()
        checkpoint.write_weights(folder / "model.safetensors", weights)
    return load(folder, device=str(device))


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
    theirs = checkpoint.weights_of(load(begin.run, device="cpu").model) if is_foreign(Path(begin.run)) \
        else checkpoint.read_weights(path)
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
    config = {"model_type": "regard", "architectures": [type(run.model).__name__], "task": run.recipe.task,
              **run.recipe.model.model_dump(mode="json", exclude_none=True),
              **run.sizes(), "parameters": parameters}
    (run.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (run.folder / "environment.json").write_text(json.dumps(environment.describe(run.device), indent=1) + "\n", encoding="utf-8")
    precision = choose_precision(run.recipe.train.precision, run.model, run.device)
    packed = f"packed into {len(batches.examples):,} rows, " if isinstance(batches.examples, Packed) else ""
    log.note(f"{len(data.train):,} examples to learn from, {len(data.valid):,} to check; {parameters:,} parameters; "
             f"{packed}{len(batches.plan(0)):,} batches an epoch, {padding:.1%} padding; "
             f"in {precision} on {environment.hardware(run.device)}")
    if isinstance(batches.examples, Mixed):
        often = [f"{name} {drawn / len(batches.examples):.1%}" for name, drawn in zip(data.train.parts, batches.examples.drawn)]
        log.note(f"of every epoch: {', '.join(often)}")
    if long:
        log.note(f"{long:,} examples longer than model.max_length = {run.longest} tokens were "
                 f"{DONE.get(run.recipe.data.too_long, 'dropped or cut')}")
    log.record(event="begin", parameters=parameters, padding_share=round(padding, 4), too_long=long)


def pick_up(trainer: Trainer, folder: Path, log: Log) -> None:
    """Go on from the newest good checkpoint, if there is one."""
    path, damaged = checkpoint.newest_good(folder / "checkpoints")
    for line in damaged:
        log.note(line)
    if path is not None:
        trainer.resume(path)
        log.note(f"going on from step {trainer.progress.step:,}")
        log.record(event="resume", step=trainer.progress.step)

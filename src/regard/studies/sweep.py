"""A sweep: train a recipe with every combination of some settings, and compare them by mean and spread over the seeds.

Each combination is an ordinary run folder. A sweep that was interrupted goes on where it stopped: finished runs are kept, others
resume. Several GPUs train several runs at once; so does one, with several jobs.
"""

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from regard import tasks
from regard.errors import UserError
from regard.files import atomic_write
from regard.run.card import write_card
from regard.run.evaluate import evaluate
from regard.run.load import load_native
from regard.run.train import to_recipe, train
from regard.scoring import paired_t_test
from regard.training.checkpoint import list_checkpoints
from regard.training.log import note

MAX_TRIALS = 10_000
SEED = "seed"


@dataclass(frozen=True)
class Trial:
    """One combination of settings: (name, value as TOML) each."""

    values: tuple[tuple[str, str], ...]

    @property
    def overrides(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.values]

    @property
    def folder(self) -> str:
        """The name of its run folder, such as `learning_rate=1e-3,seed=2`; two settings of one name keep their sections."""
        names = [name.rpartition(".")[2] for name, _ in self.values]
        names = names if len(set(names)) == len(names) else [name for name, _ in self.values]
        parts = (f"{name}={value}" for name, (_, value) in zip(names, self.values))
        return "".join(letter if letter.isalnum() or letter in "=,.-_" else "_" for letter in ",".join(parts)) or "run"

    @property
    def setting(self) -> tuple[tuple[str, str], ...]:
        """The values without the seed: what the trials of one row of the table have in common."""
        return tuple((name, value) for name, value in self.values if name != SEED)

    @property
    def seed(self) -> str:
        return dict(self.values).get(SEED, "")


@dataclass(frozen=True)
class SeedScores:
    """The scores of one setting by one metric, by seed."""

    by_seed: dict[str, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def p_value(self, other: "SeedScores") -> float | None:
        """Return the p-value of the difference over the seeds that both have, by a paired t-test; None with fewer than two."""
        seeds = [seed for seed in self.by_seed if seed in other.by_seed]
        return paired_t_test([self.by_seed[seed] - other.by_seed[seed] for seed in seeds]) if len(seeds) > 1 else None

    def to_json(self) -> dict[str, object]:
        return {"by_seed": self.by_seed, "mean": self.mean, "standard_deviation": self.spread}

    def __str__(self) -> str:
        digits = 3 if abs(self.mean) < 10 else 1
        spread = "" if self.spread is None else f" ± {self.spread:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class SettingResult:
    """One setting over all its seeds."""

    setting: tuple[tuple[str, str], ...]
    scores: dict[str, SeedScores]
    """By metric: the validation score, by which settings are ranked, then the test scores, `flickr2016 bleu`."""


@dataclass(frozen=True)
class SweepResult:
    """All settings of a sweep, the best on the validation set first."""

    settings: list[SettingResult]
    path: Path
    """sweep.json."""

    def p_values(self, result: SettingResult) -> dict[str, float | None]:
        """Return the p-value of the difference between a setting and the best one, by metric."""
        best = self.settings[0]
        return {
            metric: None if result is best else best.scores[metric].p_value(scores) for metric, scores in result.scores.items()
        }

    def to_json(self) -> dict[str, object]:
        return {
            "settings": [
                {
                    "setting": dict(one.setting),
                    "scores": {
                        metric: {**scores.to_json(), "p_value": self.p_values(one)[metric]}
                        for metric, scores in one.scores.items()
                    },
                }
                for one in self.settings
            ]
        }


def run_sweep(
    recipe: str | Path,
    out: str | Path,
    grid: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    jobs: int = 1,
) -> SweepResult:
    """Train and score every combination of a grid, `["train.steps=100,200", "seed=1,2,3"]`, in run folders under `out`, `jobs` at
    a time on each device."""
    out = Path(out)
    trials = make_trials(grid)
    for trial in trials:  # a wrong setting is reported before anything is trained
        settings = to_recipe(recipe, [*overrides, *trial.overrides])
    start_folder(out, to_recipe(recipe, overrides).digest())
    devices = visible_devices(device)
    together = f", {jobs} at a time" if jobs > 1 else ""
    note(f"{len(trials)} runs on {', '.join(devices)}{together}; finished ones in {out} are kept")
    run_trials([(recipe, out / trial.folder, [*overrides, *trial.overrides]) for trial in trials], devices * jobs)
    result = summarize(trials, out, tasks.recipe_task(settings).metrics)
    atomic_write(result.path, json.dumps(result.to_json(), indent=1) + "\n")
    return result


def make_trials(grid: Sequence[str]) -> list[Trial]:
    """Return every combination of the values in `SETTING=VALUE,VALUE…`; commas inside brackets and quotes do not separate."""
    axes: dict[str, list[str]] = {}
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UserError(f"--set {axis!r} is not of the form section.setting=value,value, such as train.steps=1000,2000")
        if name.strip() in axes:
            raise UserError(f"--set {name.strip()} is given twice; list all its values in one: {name.strip()}=A,B")
        axes[name.strip()] = split_values(values)
    if (number := math.prod(map(len, axes.values()))) > MAX_TRIALS:
        raise UserError(f"--set: {number:,} combinations; at most {MAX_TRIALS:,}")
    trials = [Trial(tuple(zip(axes, values))) for values in itertools.product(*axes.values())]
    if len({trial.folder for trial in trials}) < len(trials):
        raise UserError("--set: two values differ only in characters that a folder's name cannot have; sweep them one by one")
    return trials


def split_values(text: str) -> list[str]:
    """Split at the commas that are outside brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    stripped = [value.strip() for value in values]
    if not all(stripped):
        raise UserError(f"--set …={text}: a value between two commas is missing")
    return list(dict.fromkeys(stripped))


def start_folder(out: Path, digest: str) -> None:
    """Make the sweep's folder; refuse one that holds a sweep of another recipe."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    path = out / "recipe.sha256"
    if path.is_file() and path.read_text(encoding="utf-8").strip() != digest:
        raise UserError(f"{out} holds a sweep of another recipe; choose another --out")
    atomic_write(path, digest + "\n")


def visible_devices(device: str) -> list[str]:
    """Return the devices to train on: all GPUs for "auto", if there are any."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [device]


def run_trials(work: list[tuple[str | Path, Path, list[str]]], devices: list[str]) -> None:
    """Train and score each (recipe, run folder, overrides), in this process or in one process for each entry of `devices`."""
    if len(devices) == 1:
        for recipe, folder, overrides in work:
            run_trial(recipe, folder, overrides, devices[0])
        return
    waiting: SimpleQueue[tuple[str | Path, Path, list[str]]] = SimpleQueue()
    for one in work:
        waiting.put(one)

    def work_on(device: str) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            while True:
                try:
                    recipe, folder, overrides = waiting.get_nowait()
                except Empty:
                    return
                process.submit(run_trial, recipe, folder, overrides, device).result()

    with ThreadPoolExecutor(len(devices)) as threads:
        for finished in [threads.submit(work_on, device) for device in devices]:
            finished.result()


def run_trial(recipe: str | Path, folder: Path, overrides: list[str], device: str) -> None:
    """Train a run and score it on its test sets, as `regard train` does; go on with one that has been started."""
    if (folder / "model.safetensors").is_file():
        run = load_native(folder, device=device)
    elif list_checkpoints(folder / "checkpoints"):
        run = train(folder, device=device, resume=True)
    else:
        run = train(recipe, folder, overrides=overrides, device=device)
    if run.data.tests and not (folder / "scores.json").is_file():
        evaluate(run)
        write_card(run)


def summarize(trials: list[Trial], out: Path, metrics: Sequence[str]) -> SweepResult:
    """Return mean and spread of each setting, the best first by the validation score that chooses checkpoints."""
    by_setting: dict[tuple[tuple[str, str], ...], dict[str, dict[str, float]]] = {}
    for trial in trials:
        scores = by_setting.setdefault(trial.setting, {})
        for metric, score in read_scores(out / trial.folder, metrics).items():
            scores.setdefault(metric, {})[trial.seed] = score
    results = [
        SettingResult(setting, {metric: SeedScores(by_seed) for metric, by_seed in scores.items()})
        for setting, scores in by_setting.items()
    ]
    ranked_by = next(iter(results[0].scores))
    results.sort(key=lambda result: result.scores[ranked_by].mean, reverse=ranked_by in metrics)
    return SweepResult(results, out / "sweep.json")


def read_scores(folder: Path, metrics: Sequence[str]) -> dict[str, float]:
    """Return the validation score of a finished run's best checkpoint, and the first metric of each test set."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [record for record in records if record.get("best")]
    if not evaluations:
        raise UserError(f"{folder} has no evaluation: set train.evaluate_every to at most train.steps")
    valid = next((metric for metric in metrics if metric in evaluations[-1]), "valid_loss")
    found = {valid: float(evaluations[-1][valid])}
    path = folder / "scores.json"
    for name, scores in (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}).items():
        metric = valid.removeprefix("valid_")
        metric = metric if metric in scores else next(iter(scores))
        found[f"{name} {metric}"] = float(scores[metric]["score"])
    return found

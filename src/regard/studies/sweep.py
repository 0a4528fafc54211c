"""A sweep: train a recipe with every combination of some settings, and compare them by mean and spread over the seeds.

Each combination is an ordinary run folder. A sweep that was interrupted goes on where it stopped: finished runs are kept, others
resume. Several runs are trained at once: one on each GPU, or more (studies/trials.py).
"""

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard import tasks
from regard.errors import UserError
from regard.files import atomic_write
from regard.run.train import to_recipe
from regard.scoring import paired_t_test
from regard.studies.trials import Trial, run_trials, visible_devices
from regard.training.log import note

MAX_POINTS = 10_000
SEED = "seed"


@dataclass(frozen=True)
class GridPoint:
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
        """The values without the seed: what the runs of one row of the table have in common."""
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

    @property
    def digits(self) -> int:
        """The decimal places to show: losses and perplexities near 1 need more than percentages."""
        return 3 if abs(self.mean) < 10 else 1

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


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
    """Train and score every combination of a grid, `["train.steps=100,200", "seed=1,2,3"]`, in run folders under `out`.

    `jobs` is the number of runs at once on each device.
    """
    out = Path(out)
    points = make_grid(grid)
    for point in points:  # a wrong setting is reported before anything is trained
        settings = to_recipe(recipe, [*overrides, *point.overrides])
    start_folder(out, to_recipe(recipe, overrides).digest())
    devices = visible_devices(device, jobs)
    note(f"{len(points)} runs on {', '.join(dict.fromkeys(devices))}, {len(devices)} at once; finished ones in {out} are kept")
    trials = [Trial(recipe, out / point.folder, (*overrides, *point.overrides)) for point in points]
    for state in run_trials(trials, devices):
        if state.status != "finished":
            raise UserError(f"{state.trial.folder}: {state.status}")
    result = summarize(points, out, tasks.recipe_task(settings).metrics)
    atomic_write(result.path, json.dumps(result.to_json(), indent=1) + "\n")
    return result


def make_grid(grid: Sequence[str]) -> list[GridPoint]:
    """Return every combination of the values in `SETTING=VALUE,VALUE…`; commas inside brackets and quotes do not separate."""
    axes: dict[str, list[str]] = {}
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise UserError(f"--set {axis!r} is not of the form section.setting=value,value, such as train.steps=1000,2000")
        if name.strip() in axes:
            raise UserError(f"--set {name.strip()} is given twice; list all its values in one: {name.strip()}=A,B")
        axes[name.strip()] = split_values(values)
    if (number := math.prod(map(len, axes.values()))) > MAX_POINTS:
        raise UserError(f"--set: {number:,} combinations; at most {MAX_POINTS:,}")
    points = [GridPoint(tuple(zip(axes, values))) for values in itertools.product(*axes.values())]
    if len({point.folder for point in points}) < len(points):
        raise UserError("--set: two values differ only in characters that a folder's name cannot have; sweep them one by one")
    return points


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


def summarize(points: list[GridPoint], out: Path, metrics: Sequence[str]) -> SweepResult:
    """Return mean and spread of each setting, the best first by the validation score that chooses checkpoints."""
    by_setting: dict[tuple[tuple[str, str], ...], dict[str, dict[str, float]]] = {}
    for point in points:
        scores = by_setting.setdefault(point.setting, {})
        for metric, score in read_scores(out / point.folder, metrics).items():
            scores.setdefault(metric, {})[point.seed] = score
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

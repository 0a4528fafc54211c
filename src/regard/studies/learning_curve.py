"""A learning curve: the accuracy over one setting of a sweep, such as the number of labelled examples, with a line for each
combination of the others, and paired tests of the first line against the rest.

Every seed of a sweep answers the same test examples, so that the answers of several seeds to one example are not independent. Its
share of right answers over the seeds is one observation: the interval resamples examples, and the p-value comes from a
randomization test over examples. The second p-value, a t-test over the seeds' scores, covers the randomness of training instead.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard import tasks
from regard.corpus.dataset import read_dataset
from regard.corpus.examples import Examples
from regard.errors import UserError
from regard.files import atomic_write, file_name
from regard.run.train import to_recipe
from regard.scoring import bootstrap_interval, paired_randomization_test
from regard.scoring.score import percentage
from regard.show.figures.curves import learning_curve_figure
from regard.show.figures.html_pages import HtmlReport
from regard.studies.report import write_report
from regard.studies.sweep import SEED, GridPoint, SeedScores, make_grid, run_sweep
from regard.tasks.shared.data_record import DATA_FILE
from regard.tasks.shared.run_folder import read_json
from regard.tasks.task import Task

LIMIT = "data.limit"
"""A setting whose value 0 stands for all examples."""


@dataclass(frozen=True)
class Point:
    """One line of the curve at one value of the axis."""

    name: str
    """The settings of the line, "features.layer = mix"."""
    value: str
    position: float
    """Where the value lies on the axis."""
    scores: SeedScores
    counts: np.ndarray
    """(N, 2): the right items of each test example, as a mean over the seeds, and all its items."""


@dataclass(frozen=True)
class Difference:
    """The first line less another one, at one value of the axis."""

    value: str
    name: str
    difference: float
    low: float
    high: float
    p_value: float
    """Of a randomization test over the test examples."""
    p_value_seeds: float | None
    """Of a t-test over the seeds."""

    def row(self) -> list[str]:
        """Return its row of the table."""
        return [
            self.value,
            self.name,
            f"{self.difference:+.1f} [{self.low:+.1f}, {self.high:+.1f}]",
            format_p_value(self.p_value),
            "–" if self.p_value_seeds is None else format_p_value(self.p_value_seeds),
        ]


@dataclass(frozen=True)
class LearningCurve:
    """The points of all lines, the first line's first, and its differences from the others."""

    axis: str
    test: str
    """The name of the test set."""
    points: list[Point]
    differences: list[Difference]
    report: Path

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(point.name for point in self.points))

    def rows(self) -> list[list[str]]:
        """Return the rows of the table: a value of the axis, and the scores of each line."""
        values = dict.fromkeys(point.value for point in self.points)
        return [[value, *(str(point.scores) for point in self.points if point.value == value)] for value in values]

    def to_json(self) -> dict[str, object]:
        return {
            "axis": self.axis,
            "test": self.test,
            "points": [
                {"name": point.name, "value": point.value, "position": point.position, **point.scores.to_json()}
                for point in self.points
            ],
            "differences": [vars(one) for one in self.differences],
        }


def run_learning_curve(
    recipe: str | Path, out: str | Path, grid: Sequence[str], axis: str, *, device: str = "auto", jobs: int = 1
) -> LearningCurve:
    """Train every combination of a grid into `out`, as `run_sweep` does, and write curve.json and curve.html there."""
    out, combinations = Path(out), make_grid(grid)
    settings = to_recipe(recipe, combinations[0].overrides)
    task = tasks.recipe_task(settings)
    if axis not in dict(combinations[0].values):
        raise UserError(f"--curve {axis}: give its values, such as --set {axis}=100,1000")
    if task.count_correct is None:
        raise UserError(f"--curve needs a task that has right and wrong answers, classify or tag; task = {task.name!r}")
    run_sweep(recipe, out, grid, device=device, jobs=jobs)
    tests: dict[str, Any] = read_dataset(settings.data, train=False).tests
    if not tests:
        raise UserError("--curve needs a test set: give data.test or data.held_out")
    name, examples = list(tests.items())[-1]
    points = collect_points(combinations, out, axis, task, name, examples)
    curve = LearningCurve(axis, name, points, compare_lines(points), out / "curve.html")
    atomic_write(out / "curve.json", json.dumps(curve.to_json(), indent=1) + "\n")
    write_curve_report(curve, len(examples), settings.digest())
    return curve


def collect_points(
    combinations: Sequence[GridPoint], out: Path, axis: str, task: Task, test: str, examples: Examples
) -> list[Point]:
    """Return the points of a finished sweep, from what its runs answered for one test set: line by line, each by position."""
    groups: dict[tuple[str, str], list[GridPoint]] = {}
    fixed = set.intersection(*(set(one.values) for one in combinations))  # the same in all runs: no part of a line's name
    for one in combinations:
        values = dict(one.values)
        rest = [
            f"{name.removeprefix('model.')} = {value}"
            for name, value in one.setting
            if name != axis and (name, value) not in fixed
        ]
        groups.setdefault((", ".join(rest) or "accuracy", values[axis]), []).append(one)
    lines = list(dict.fromkeys(name for name, _ in groups))
    points = []
    for (name, value), seeds in groups.items():
        answers = np.array([count_right(out / one.folder, task, test, examples) for one in seeds], np.float64)  # (S, N, 2)
        scores = {one.seed: percentage(right.sum(0)) for one, right in zip(seeds, answers)}
        all_examples = axis == LIMIT and value == "0"
        position = training_examples(out / seeds[0].folder) if all_examples else to_number(axis, value)
        points.append(Point(name, "all" if all_examples else value, position, SeedScores(scores), answers.mean(0)))
    return sorted(points, key=lambda point: (lines.index(point.name), point.position))


def count_right(folder: Path, task: Task, test: str, examples: Examples) -> list[tuple[int, int]]:
    """Return how many items of each test example a run had right, and how many there are."""
    path = folder / "outputs" / f"{file_name(test)}.txt"
    outputs = path.read_text(encoding="utf-8").split("\n")[:-1]
    if len(outputs) != len(examples):
        raise UserError(f"{path} has {len(outputs):,} lines, and the test set {len(examples):,} examples; evaluate the run again")
    assert task.count_correct is not None
    return task.count_correct(outputs, examples)


def training_examples(folder: Path) -> int:
    """Return how many examples a run was trained on."""
    sets: dict[str, Any] = read_json(folder / DATA_FILE, dict)["sets"]
    return int(sets["training"]["examples"])


def to_number(axis: str, value: str) -> float:
    """Return a value of the axis as a number."""
    try:
        return float(value)
    except ValueError:
        raise UserError(f"--curve {axis}: its values are drawn on an axis, and {value!r} is no number") from None


def compare_lines(points: Sequence[Point]) -> list[Difference]:
    """Return the differences of the first line from each other one, at every value."""
    found = []
    for first in (point for point in points if point.name == points[0].name):
        for other in (point for point in points if point.value == first.value and point.name != first.name):
            right = np.stack([first.counts[:, 0] - other.counts[:, 0], first.counts[:, 1]], axis=1)
            low, high = bootstrap_interval(right, percentage)
            p_value, p_value_seeds = paired_randomization_test(right[:, 0]), first.scores.p_value(other.scores)
            found.append(Difference(first.value, other.name, percentage(right.sum(0)), low, high, p_value, p_value_seeds))
    return found


def write_curve_report(curve: LearningCurve, number: int, digest: str) -> None:
    """Write curve.html and its figure."""
    lines = {
        name: [(point.position, point.scores.mean, point.scores.spread or 0.0) for point in curve.points if point.name == name]
        for name in curve.names
    }
    compared = ["", "less", "difference", "p (examples)", "p (seeds)"]
    tables = [(f"Accuracy on {curve.test}", [curve.axis, *curve.names], curve.rows())]
    if curve.differences:
        tables.append((f"{curve.names[0]}, compared", compared, [one.row() for one in curve.differences]))
    seeds = len(curve.points[0].scores.by_seed)
    report = HtmlReport(
        title=f"Learning curve over {curve.axis}",
        summary=f"Accuracy in percent on the {number:,} examples of {curve.test}, mean ± standard deviation of {seeds} seeds.",
        facts=[("recipe", digest)],
        tables=tables,
        notes=[
            "Differences have 95% intervals of a bootstrap over the test examples; p (examples): a randomization test over the "
            f"test examples, each with its mean over the seeds; p (seeds): a t-test over the seeds ({SEED})."
        ],
    )
    caption = "Accuracy; bars are standard deviations over the seeds."
    axis = "training examples" if curve.axis == LIMIT else curve.axis
    write_report(curve.report, report, {"curve": (caption, learning_curve_figure(lines, axis))})


def format_p_value(p_value: float) -> str:
    """Return a p-value as in a table."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"

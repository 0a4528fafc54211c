"""Train a recipe again with several seeds, and compare its scores with those that it reports (`score.SET.METRIC`)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.recipe import ReportedScore
from regard.run.train import to_recipe
from regard.studies.sweep import SeedScores, make_grid, run_sweep

DEFAULT_SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Reproduction:
    """The scores of one metric on one test set, and the one that the recipe reports, if any."""

    test_set: str
    metric: str
    measured: SeedScores
    reported: ReportedScore | None

    @property
    def is_within(self) -> bool:
        """Whether the mean lies within two standard deviations of the reported one."""
        if self.reported is None:
            return True
        low, high = self.reported.interval
        return low <= self.measured.mean <= high

    @property
    def verdict(self) -> str:
        """Return "within", or by how much the mean is above or below the interval."""
        if self.reported is None:
            return "not reported"
        low, high = self.reported.interval
        if self.is_within:
            return "within"
        digits = self.measured.digits + 1
        mean = self.measured.mean
        return f"{low - mean:.{digits}f} below" if mean < low else f"{mean - high:.{digits}f} above"

    def to_toml(self) -> str:
        """Return the line that reports this score in a recipe."""
        names = ".".join(name if name.replace("_", "").isalnum() else json.dumps(name) for name in (self.test_set, self.metric))
        digits, spread = self.measured.digits + 1, self.measured.spread or 0.0
        seeds = ", ".join(self.measured.by_seed)
        return f"score.{names} = {{ mean = {self.measured.mean:.{digits}f}, spread = {spread:.{digits}f}, seeds = [{seeds}] }}"

    def to_json(self) -> dict[str, object]:
        reported = None if self.reported is None else self.reported.model_dump(mode="json")
        measured = self.measured.to_json()
        return {"set": self.test_set, "metric": self.metric, **measured, "reported": reported, "verdict": self.verdict}


def reproduce(
    recipe: str | Path,
    out: str | Path,
    seeds: Sequence[int] = (),
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    jobs: int = 1,
    measure: bool = False,
) -> list[Reproduction]:
    """Train a recipe with each seed into folders under `out`, `jobs` at once; return the scores beside the reported ones.

    The seeds are those of the recipe's reported scores by default. With `measure`, return every score of every test set, also
    of a recipe that reports none. What is finished in `out` is kept, and what was interrupted resumes.
    """
    reported = {
        (test_set, metric): score
        for test_set, scores in to_recipe(recipe, overrides).score.items()
        for metric, score in scores.items()
    }
    if not reported and not measure:
        raise UserError(
            f"{recipe} reports no score (score.SET.METRIC); train it with --measure, which prints the lines to put into it"
        )
    seeds = list(seeds) or next((score.seeds for score in reported.values()), list(DEFAULT_SEEDS))
    grid = [f"seed={','.join(map(str, seeds))}"]
    run_sweep(recipe, out, grid, overrides=overrides, device=device, jobs=jobs)
    found = read_all_scores({point.seed: Path(out) / point.folder for point in make_grid(grid)})
    if unknown := [name for name in reported if name not in found]:
        known = ", ".join(f"score.{test_set}.{metric}" for test_set, metric in found)
        raise UserError(f"{recipe}: score.{'.'.join(unknown[0])} is not measured; there are: {known or 'no test sets'}")
    names = list(found) if measure else list(reported)
    return [Reproduction(*name, SeedScores(found[name]), reported.get(name)) for name in names]


def read_all_scores(folders: dict[str, Path]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the scores of finished runs by (test set, metric) and seed."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for seed, folder in folders.items():
        path = folder / "scores.json"
        sets = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for test_set, scores in sets.items():
            for metric, score in scores.items():
                found.setdefault((test_set, metric), {})[seed] = float(score["score"])
    return found

"""Train a list of recipes side by side on one GPU within a time limit, and keep a table of their scores as they come in.

    python benchmarks/gpu_results.py benchmarks/gpu_results.toml --jobs 8 --limit 540 --out runs/results
    python benchmarks/gpu_results.py plan.toml --device cpu --set train.steps=2 --set train.evaluate_every=2     (a dry run)

The plan is a list of [[runs]] with `recipe` and optionally `name`, `set` (overrides), `seeds` ([1, 2, 3]) and `after`: the name
of runs that must be finished first; `{after}` in an override is the folder of the one with the same seed, or of the only one.
results.json and results.md are written whenever a run ends and every few seconds. At the time limit all runs write a checkpoint
and end; the same command continues them. NVIDIA's Multi-Process Service is started if it is installed and does not run yet.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.files import atomic_write
from regard.studies.sweep import SeedScores
from regard.studies.trials import Trial, TrialState, mps_is_running, run_trials, visible_devices
from regard.tasks import read_recipe
from regard.training.log import read_records

FIELDS = {"recipe", "name", "set", "seeds", "after"}


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan."""

    name: str
    seed: int
    trial: Trial

    @property
    def title(self) -> str:
        return f"{self.name}, seed {self.seed}"


def read_plan(path: Path, out: Path, overrides: Sequence[str], only: Sequence[str] = ()) -> list[PlannedRun]:
    """Return the runs of a plan in its order, or those named and what they come after, with their recipes checked.

    `overrides` apply to all of them.
    """
    planned: list[PlannedRun] = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("runs", []):
        if unknown := set(entry) - FIELDS:
            raise UserError(f"{path}: no field {min(unknown)!r} in [[runs]]; there are: {', '.join(sorted(FIELDS))}")
        recipe, name = Path(entry["recipe"]), str(entry.get("name", Path(entry["recipe"]).stem))
        if name in {one.name for one in planned}:
            raise UserError(f"{path}: two runs are named {name!r}; give one another name")
        for seed in entry.get("seeds", [1, 2, 3]):
            before = find_run(planned, entry["after"], seed, path) if "after" in entry else None
            filled = [str(one).replace("{after}", str(before and before.trial.folder)) for one in entry.get("set", [])]
            settings = (*filled, *overrides, f"seed={seed}")
            after = () if before is None else (before.trial.folder,)
            planned.append(PlannedRun(name, seed, Trial(recipe, out / f"{name}-seed-{seed}", settings, after)))
    if unknown := set(only) - {one.name for one in planned}:
        raise UserError(f"--only {min(unknown)}: {path} has no run of this name")
    chosen = {one.trial.folder for one in planned if not only or one.name in only}
    for one in reversed(planned):
        chosen |= set(one.trial.after) if one.trial.folder in chosen else set()
    planned = [one for one in planned if one.trial.folder in chosen]
    if not planned:
        raise UserError(f"{path} has no [[runs]]")
    for one in planned:  # a mistake is reported before anything is trained
        read_recipe(one.trial.recipe, one.trial.overrides)
    return planned


def find_run(planned: list[PlannedRun], name: str, seed: int, path: Path) -> PlannedRun:
    """Return the run of this name and seed, or the only one of this name."""
    named = [one for one in planned if one.name == name]
    found = [one for one in named if one.seed == seed] or (named if len(named) == 1 else [])
    if not found:
        raise UserError(f"{path}: after = {name!r}: no run of this name with seed {seed} stands before it")
    return found[0]


def to_row(run: PlannedRun, state: TrialState) -> dict[str, Any]:
    """Return how far a run is, its best validation scores, and its test scores."""
    folder = run.trial.folder
    events = list(read_records(folder / "log.jsonl"))
    evaluations = [event for event in events if event.get("best")]
    valid = {name: value for name, value in (evaluations or [{}])[-1].items() if name.startswith("valid_")}
    path = folder / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {
        "name": run.name,
        "seed": run.seed,
        "status": state.status,
        "seconds": state.seconds and round(state.seconds, 1),
        "step": max((event.get("step", 0) for event in events), default=0),
        "valid": valid,
        "test": {
            f"{test_set} {metric}": score["score"] for test_set, metrics in scores.items() for metric, score in metrics.items()
        },
        "recipe": str(run.trial.recipe),
        "overrides": list(run.trial.overrides),
    }


def write_results(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write results.json and results.md: every run, then mean and standard deviation of each name."""
    atomic_write(out / "results.json", json.dumps(rows, indent=1) + "\n")
    lines = ["| run | status | seconds | step | best validation | test |", "|---|---|---|---|---|---|"]
    for row in rows:
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        cells = [f"{row['name']}, seed {row['seed']}", row["status"], seconds, f"{row['step']:,}"]
        lines.append(f"| {' | '.join([*cells, join_scores(row['valid']), join_scores(row['test'])])} |")
    lines += ["", "| mean ± standard deviation | seeds | test |", "|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        finished = [row for row in rows if row["name"] == name and row["test"]]
        means = {
            metric: SeedScores({str(row["seed"]): row["test"][metric] for row in finished if metric in row["test"]})
            for metric in (finished[0]["test"] if finished else {})
        }
        lines.append(f"| {name} | {len(finished)} | {', '.join(f'{metric} {mean}' for metric, mean in means.items())} |")
    atomic_write(out / "results.md", "\n".join(lines) + "\n")


def join_scores(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


@contextmanager
def multi_process_service(*, needed: bool) -> Iterator[None]:
    """Start MPS for the block, if it is installed and does not run already."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not needed or control is None or mps_is_running():
        yield
        return
    subprocess.run([control, "-d"], check=False)
    try:
        yield
    finally:
        subprocess.run([control], input="quit\n", text=True, check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--jobs", type=int, default=4, help="runs at once")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds; the checkpoints take up to 20 more")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="train these of the plan, and what they come after"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="override a setting of every recipe")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(arguments)
    try:
        planned = read_plan(args.plan, args.out, args.overrides, args.only)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    with multi_process_service(needed=args.device != "cpu" and torch.cuda.is_available()):
        states = run_trials(
            [one.trial for one in planned],
            visible_devices(args.device, args.jobs),
            seconds=args.limit,
            on_change=lambda states: write_results(args.out, [to_row(*pair) for pair in zip(planned, states)]),
        )
    print((args.out / "results.md").read_text(encoding="utf-8"))
    return int(any(state.status != "finished" for state in states))


if __name__ == "__main__":
    sys.exit(main())

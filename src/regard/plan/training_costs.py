"""The training costs of Vaswani et al. 2017 (table 2), and those of runs beside them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.plan.planner import TYPICAL_LENGTH, plan_recipe, run_vocabulary
from regard.tasks import read_recipe


class PublishedSystem(NamedTuple):
    """BLEU on newstest2014, as printed, and training FLOPs; English to German and to French."""

    name: str
    bleu_de: str | None
    bleu_fr: str | None
    flops_de: float | None
    flops_fr: float | None


PUBLISHED_COSTS = [
    PublishedSystem("ByteNet", "23.75", None, None, None),
    PublishedSystem("Deep-Att + PosUnk", None, "39.2", None, 1.0e20),
    PublishedSystem("GNMT + RL", "24.6", "39.92", 2.3e19, 1.4e20),
    PublishedSystem("ConvS2S", "25.16", "40.46", 9.6e18, 1.5e20),
    PublishedSystem("MoE", "26.03", "40.56", 2.0e19, 1.2e20),
    PublishedSystem("Deep-Att + PosUnk ensemble", None, "40.4", None, 8.0e20),
    PublishedSystem("GNMT + RL ensemble", "26.30", "41.16", 1.8e20, 1.1e21),
    PublishedSystem("ConvS2S ensemble", "26.36", "41.29", 7.7e19, 1.2e21),
    PublishedSystem("Transformer base", "27.3", "38.1", 3.3e18, 3.3e18),  # table 2 has one figure for both languages
    PublishedSystem("Transformer big", "28.4", "41.8", 2.3e19, 2.3e19),
]

NOTES = [
    "Published BLEU is on tokenised text with German compounds split; ours is cased sacreBLEU (13a): the two are not comparable, "
    "even on the same test set.",
    "Published FLOPs are what the devices could have done in the time: for the Transformer, "
    "8 P100 × 9.5 TFLOP/s × 12 h = 3.3·10¹⁸ (base) "
    "and × 3.5 days = 2.3·10¹⁹ (big). Ours are the matrix products of the completed steps, assuming full batches and "
    f"sentences of {TYPICAL_LENGTH} tokens: by this count base has 29% of its published figure and big 42%.",
]


class RunCost(NamedTuple):
    """A run's BLEU on one test set with its interval and signature, and the FLOPs of its training so far."""

    name: str
    test: str
    bleu: float | None
    low: float | None
    high: float | None
    signature: str
    steps: int
    flops: float | None


class CostTable(NamedTuple):
    """The published systems, and runs beside them (see `run_costs`)."""

    runs: Sequence[RunCost] = ()

    def to_json(self) -> dict[str, object]:
        published = [
            {
                **row._asdict(),
                "bleu_de": None if row.bleu_de is None else float(row.bleu_de),
                "bleu_fr": None if row.bleu_fr is None else float(row.bleu_fr),
            }
            for row in PUBLISHED_COSTS
        ]
        return {"published": published, "runs": [row._asdict() for row in self.runs], "notes": NOTES}


def run_costs(folders: Sequence[str | Path]) -> list[RunCost]:
    """Return a row for each test set of each run; a run that was not evaluated has one row without BLEU."""
    return [row for folder in folders for row in _run_rows(Path(folder))]


def _run_rows(folder: Path) -> list[RunCost]:
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml); give folders written by regard train")
    recipe = read_recipe(folder / "recipe.toml")
    vocabulary, _ = run_vocabulary(folder)
    steps = _completed_steps(folder / "log.jsonl")
    features = getattr(recipe.model, "features", None)  # another run that does part of the work
    flops = None if features else plan_recipe(str(folder), recipe, vocabulary).flops_per_step * steps
    path, rows = folder / "scores.json", []
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        for test, metrics in scores.items():
            if "bleu" in metrics:
                bleu = metrics["bleu"]
                score, low, high = (float(bleu[key]) for key in ("score", "low", "high"))
                rows.append(RunCost(folder.name, test, score, low, high, str(bleu["signature"]), steps, flops))
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); write it again with: regard evaluate {folder}"
        ) from None
    return rows or [RunCost(folder.name, "", None, None, None, "", steps, flops)]


def _completed_steps(log: Path) -> int:
    """Return the last logged training step, or 0. A last line without a newline is still being written."""
    completed = 0
    if not log.is_file():
        return completed
    for number, line in enumerate(log.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            entry = json.loads(line)
            completed = max(completed, int(entry["step"]) if "loss" in entry else 0)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{log}:{number} is not a log entry ({type(error).__name__}: {error}); remove the line") from None
    return completed

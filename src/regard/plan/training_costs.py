"""The training costs of Vaswani et al. 2017 (table 2), and one's own runs beside them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.plan.planner import TYPICAL_LENGTH, plan_recipe, run_vocabulary
from regard.tasks import read_recipe


class PublishedSystem(NamedTuple):
    """BLEU on newstest2014, as printed, and the FLOPs of the training; English to German and to French."""

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
    PublishedSystem("Transformer base", "27.3", "38.1", 3.3e18, 3.3e18),  # one figure for both languages in the table
    PublishedSystem("Transformer big", "28.4", "41.8", 2.3e19, 2.3e19),
]

NOTES = [
    "Published BLEU is on tokenised text, German compounds split; ours is cased sacreBLEU (13a): the two are not comparable, "
    "even on the same test set.",
    "Published FLOPs are what the devices could have done in the time: for the Transformer, "
    "8 P100 × 9.5 TFLOP/s × 12 h = 3.3·10¹⁸ (base) "
    "and × 3.5 days = 2.3·10¹⁹ (big). Ours are the matrix products of the steps done, full batches and sentences of "
    f"{TYPICAL_LENGTH} tokens assumed: counted so, base comes to 29% of its published figure and big to 42%.",
]


class RunCost(NamedTuple):
    """A run's BLEU on one test set, with its interval and signature, and the FLOPs of its training so far."""

    name: str
    test: str
    bleu: float | None
    low: float | None
    high: float | None
    signature: str
    steps: int
    flops: float | None


@dataclass(frozen=True)
class CostTable:
    published: list[PublishedSystem]
    own: list[RunCost]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "published": [plain(row) for row in self.published], "own": [row._asdict() for row in self.own]}


def plain(row: PublishedSystem) -> dict[str, Any]:
    scores = {
        name: None if score is None else float(score) for name, score in (("bleu_de", row.bleu_de), ("bleu_fr", row.bleu_fr))
    }
    return {**row._asdict(), **scores}


def compare_costs(own: Sequence[RunCost] = ()) -> CostTable:
    """The published table and one's own runs (`own_costs`)."""
    return CostTable(PUBLISHED_COSTS, list(own), NOTES)


def run_costs(folders: Sequence[str | Path]) -> list[RunCost]:
    """Each run's row for each of its test sets; a run that was not evaluated yet has one without BLEU."""
    return [row for folder in folders for row in run_cost_rows(Path(folder))]


def run_cost_rows(folder: Path) -> list[RunCost]:
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml); give folders that regard train made")
    recipe = read_recipe(folder / "recipe.toml")
    vocabulary, _ = run_vocabulary(folder)
    steps = steps_done(folder / "log.jsonl")
    flops = None
    if getattr(recipe.model, "features", None) is None:  # else part of the work is another run's
        flops = plan_recipe(str(folder), recipe, vocabulary).flops_a_step * steps
    path = folder / "scores.json"
    if not path.is_file():
        return [RunCost(folder.name, "", None, None, None, "", steps, flops)]
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        found = {test: metrics["bleu"] for test, metrics in scores.items() if "bleu" in metrics}
        rows = [
            RunCost(
                folder.name,
                test,
                float(bleu["score"]),
                float(bleu["low"]),
                float(bleu["high"]),
                str(bleu["signature"]),
                steps,
                flops,
            )
            for test, bleu in found.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); write it again with: regard evaluate {folder}"
        ) from None
    return rows or [RunCost(folder.name, "", None, None, None, "", steps, flops)]


def steps_done(log: Path) -> int:
    """The last step of training that was logged; 0 before there is any. A last line without its end is still being written."""
    done = 0
    if not log.is_file():
        return done
    for number, line in enumerate(log.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            record = json.loads(line)
            done = max(done, int(record["step"]) if "loss" in record else 0)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{log}:{number} is not a record of training ({type(error).__name__}: {error}); remove the line"
            ) from None
    return done

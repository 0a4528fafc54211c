"""Where attention is not the reason: a spurious cue is planted in the training data, and explanations are asked to find it.

In training, images of one label nearly always bear a watermark, and texts of one label a name, which have nothing to do with the
label: the husky that was recognised by the snow (Ribeiro et al. 2016), the horse by its photographer's mark (Lapuschkin et al.
2019). The study measures how far a model relies on the cue, which attribution methods rank it first, and whether the measures
of faithfulness, which do not know of it, tell which method to trust.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from regard.explain.faithfulness import RANDOM_BASELINE, GroundTruth
from regard.explain.methods import METHODS
from regard.explain.report import measure_output
from regard.explain.selection import ExplainedOutput
from regard.explain.text_outputs import select_output
from regard.run.evaluate import evaluate
from regard.run.train import train
from regard.scoring.correlation import average_ranks, pearson
from regard.show.explanation import explanation_figure
from regard.show.figures.curves import cue_accuracy_figure, cue_method_figure
from regard.show.figures.html_pages import HtmlReport
from regard.studies.cue_data import MODALITIES, Modality
from regard.studies.report import write_report
from regard.tasks.base import Run

CUE_RATE = 0.95
"""How many of the training examples of the cued label bear the cue."""
SETS = {"cue": "with the cue", "removed": "without the cue", "swapped": "cue on the other label"}
"""The test sets: the same examples, with the cue on its label, on none, and on the other one."""
ADVANTAGE_LIMITS = (-math.inf, 0.0, 1.0, 2.0, 3.0, math.inf)
"""Where the rows of the table by advantage begin and end, in nats."""


@dataclass(frozen=True)
class CueResult:
    """One model: its accuracy on every test set, and of each method how often the cue is ranked first, and its measures."""

    modality: str
    seed: int
    planted: bool
    accuracy: dict[str, float]
    methods: dict[str, dict[str, float]]
    best_finds_cue: float
    """How often the method that the measures of faithfulness prefer, output by output, ranks the cue first."""


def run_cue_study(
    out: Path, *, seeds: int = 10, steps: int = 200, examples: int = 800, explained: int = 10, device: str = "auto"
) -> Path:
    """Train models with and without the planted cue into `out`, explain them, and return the path of the report."""
    console = Console(stderr=True, highlight=False)
    results, figures = [], {}
    for modality in MODALITIES:
        for seed in range(1, seeds + 1):
            for planted in (True, False):
                console.print(f"{modality.name}, seed {seed}, {'with' if planted else 'without'} the cue in training")
                run = train_model(modality, out, seed, planted, steps, examples, device)
                results.append(measure_model(modality, run, seed, planted, explained if planted else 0))
                if planted and seed == 1:
                    figures[modality.name] = example_figure(modality, run, explained)
    return write_study(out, results, figures)


def train_model(modality: Modality, out: Path, seed: int, planted: bool, steps: int, examples: int, device: str) -> Run:
    """Train a model on examples of a label of which most bear the cue, or none do."""
    folder = out / f"{modality.name}-{seed}-{'cue' if planted else 'control'}"
    data, rng = out / "data" / folder.name, np.random.default_rng(seed)

    def write(name: str, split: str, number: int, has_cue: Callable[[str], bool]) -> list[str]:
        made = modality.examples(split, number, seed)
        return [str(modality.write(data / name, [(one.label, one.content(has_cue(one.label))) for one in made]))]

    def sometimes(label: str) -> bool:
        return planted and label == modality.labels[-1] and rng.random() < CUE_RATE

    cues: dict[str, Callable[[str], bool]] = {
        "cue": lambda label: label == modality.labels[-1],
        "removed": lambda label: False,
        "swapped": lambda label: label == modality.labels[0],
    }
    sets = {
        "train": write("train", "train", examples, sometimes),
        "valid": write("valid", "valid", examples // 8, sometimes),
        "test": {name: write(name, "test", examples // 4, has_cue) for name, has_cue in cues.items()},
    }
    recipe = {"task": "classify", "seed": seed, **modality.recipe, "data": {**modality.recipe["data"], **sets}}
    recipe["train"] = {**modality.recipe["train"], "steps": steps}
    return train(recipe, folder, device=device)


def cue_outputs(modality: Modality, run: Run, number: int) -> Iterator[ExplainedOutput]:
    """Yield the cued label of test examples that bear the cue and are given that label, with the cue as the known truth."""
    made = modality.examples("test", 4 * number, run.recipe.seed)
    given = (one.content(True) for one in made if one.label == modality.labels[-1])
    found = 0
    for content in given:
        selected = select_output(run, Image.fromarray(content) if isinstance(content, np.ndarray) else content)
        if found == number or repr(modality.labels[-1]) not in selected.description:
            continue
        found += 1
        truth = GroundTruth(modality.cue_features(selected), tuple(range(len(selected.features))))
        yield replace(selected, truth={"cue": truth})


def measure_model(modality: Modality, run: Run, seed: int, planted: bool, explained: int) -> CueResult:
    """Return the accuracy of a model on every test set, and the measures of every method over `explained` examples."""
    accuracy = {result.name: result.scores["accuracy"].score for result in evaluate(run, save=False)}
    rows, preferred = [], []
    for index, selected in enumerate(cue_outputs(modality, run, explained) if explained else ()):
        _, _, _, measured, _ = measure_output(selected, list(METHODS), None, seed=index)
        rows.append(measured)
        best = max((name for name in measured if name != RANDOM_BASELINE), key=lambda name: measured[name]["advantage"])
        preferred.append(measured[best]["cue"])
    methods = {
        name: {key: float(np.mean([row[name][key] for row in rows])) for key in ("cue", "comprehensiveness", "sufficiency")}
        for name in (rows[0] if rows else ())
    }
    for name in methods:
        if name != RANDOM_BASELINE:
            methods[name]["advantage"] = float(np.mean([row[name]["advantage"] for row in rows]))
    return CueResult(modality.name, seed, planted, accuracy, methods, float(np.mean(preferred)) if preferred else float("nan"))


def example_figure(modality: Modality, run: Run, number: int) -> Any:
    """Draw the explanation of one example that bears the cue."""
    for one in modality.examples("test", 4 * number, run.recipe.seed):
        if one.label == modality.labels[-1]:
            content = one.content(True)
            given = Image.fromarray(content) if isinstance(content, np.ndarray) else content
            return explanation_figure(run.explain(given, label=modality.labels[-1]))
    raise AssertionError("no example has the label of the cue")


def faithfulness_predicts(result: CueResult) -> float:
    """Return Spearman's correlation over methods between the advantage over random features and how often the cue is first."""
    names = [name for name in result.methods if name != RANDOM_BASELINE]
    advantage, found = (np.array([result.methods[name][key] for name in names]) for key in ("advantage", "cue"))
    return pearson(average_ranks(advantage), average_ranks(found)) / 100 if len(names) > 2 and found.std() else float("nan")


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean over seeds and the range."""
    known = [value for value in values if value == value]
    if not known:
        return "–"
    mean = f"{np.mean(known):z.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):z.{digits}f} to {max(known):z.{digits}f})"


def write_study(out: Path, results: Sequence[CueResult], figures: dict[str, Any]) -> Path:
    """Write cue.json, the figures, and cue.html."""
    (out / "cue.json").write_text(json.dumps([result.__dict__ for result in results], indent=1) + "\n", encoding="utf-8")
    tables, drawn = [], {}
    for name in dict.fromkeys(result.modality for result in results):
        own = [result for result in results if result.modality == name]
        planted = [result for result in own if result.planted]
        tables += [accuracy_table(name, own), method_table(name, planted), advantage_table(name, planted)]
        drawn[f"{name}-example"] = (f"One of the {name} with the cue, explained by each method.", figures[name])
    scores = [(r.modality, r.planted, r.accuracy) for r in results]
    drawn["accuracy"] = ("Accuracy by test set; points are seeds.", cue_accuracy_figure(scores, SETS))
    pairs = [
        (result.modality, name, row["advantage"], row["cue"])
        for result in results
        for name, row in result.methods.items()
        if name != RANDOM_BASELINE
    ]
    caption = "Each method: its faithfulness, and how often it ranks the cue first; points are seeds."
    drawn["methods"] = (caption, cue_method_figure(pairs))
    report = HtmlReport(
        "Where attention is not the reason",
        f"A cue that has nothing to do with the label is on {CUE_RATE:.0%} of the training examples of one label.",
        tables=tables,
        notes=["The means over seeds, with the range from the lowest to the highest seed."],
    )
    return write_report(out / "cue.html", report, drawn)


def accuracy_table(name: str, results: Sequence[CueResult]) -> tuple[str, list[str], list[list[str]]]:
    rows = [
        [
            f"trained {'with' if planted else 'without'} the cue",
            *(mean_and_spread([result.accuracy[key] for result in results if result.planted == planted], 1) for key in SETS),
        ]
        for planted in (True, False)
    ]
    return f"{name}: accuracy in percent", ["", *SETS.values()], rows


def method_table(name: str, results: Sequence[CueResult]) -> tuple[str, list[str], list[list[str]]]:
    def cell(method: str, key: str) -> str:
        return mean_and_spread([result.methods[method][key] for result in results if key in result.methods.get(method, {})])

    measures = ("cue", "comprehensiveness", "sufficiency", "advantage")
    methods = list(dict.fromkeys(method for result in results for method in result.methods))
    rows = [[method, *(cell(method, key) for key in measures)] for method in methods]
    for what, values in (
        ("the method with the largest advantage, output by output", [result.best_finds_cue for result in results]),
        ("rank correlation of advantage and cue first, over methods", [faithfulness_predicts(result) for result in results]),
    ):
        rows.append([what, mean_and_spread(values), "", "", ""])
    return f"{name}: which methods rank the cue first", ["", "cue first", *measures[1:]], rows


def advantage_table(name: str, results: Sequence[CueResult]) -> tuple[str, list[str], list[list[str]]]:
    """Return for each range of the advantage the number of methods and models in it, and how often these rank the cue first."""
    measured = [row for result in results for method, row in result.methods.items() if method != RANDOM_BASELINE]
    rows = []
    for low, high in pairwise(ADVANTAGE_LIMITS):
        first = [row["cue"] for row in measured if low <= row["advantage"] < high]
        limits = f"below {high:g}" if low == -math.inf else f"{low:g} or more" if high == math.inf else f"{low:g} to {high:g}"
        rows.append([limits, str(len(first)), mean_and_spread(first)])
    return f"{name}: the cue by advantage", ["advantage over random features, nats", "methods and models", "cue first"], rows

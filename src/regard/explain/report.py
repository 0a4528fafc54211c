"""Attributions of a run's outputs, always together with measures of their faithfulness."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.explain.attention_graph import attention_graph
from regard.explain.explanation import AlternativeOutput, Explanation, FaithfulnessReport
from regard.explain.faithfulness import (
    RANDOM_BASELINE,
    class_discrimination,
    mean_score,
    measure_faithfulness,
    permutation_effect,
    step_names,
    summarise,
)
from regard.explain.methods import METHODS, attribute
from regard.explain.selection import PREDICTED, ExplainedOutput, OutputSelection
from regard.explain.target import TEXT_WORDING, AttributionTarget
from regard.explain.text_outputs import is_foreign, load_examples, select_output, select_outputs
from regard.explain.transformers_targets import explained_model
from regard.scoring.score import SEED
from regard.tasks.base import Run
from regard.tasks.shared.images import ImageInput
from regard.tasks.transformers_models import TransformersRun

RANDOMIZED_SEED = 1
MAX_RANDOMIZED_PARAMETERS = 2_000_000_000
"""A larger model of transformers is not built a second time with random weights: the two may not fit."""


def explain_one(run: Run, given: ImageInput, method: str = "all", selection: OutputSelection = PREDICTED) -> Explanation:
    """Explain the run's output for a text or an image, or another output that is selected."""
    methods, randomized = parse_methods(method), randomized_model(run)
    selected = select_output(run, given, selection).with_attention_of(selection.layer, selection.head)
    check_shown_attention(selected.target)
    values, other_values, unavailable, measured, effect = measure_output(selected, methods, randomized)
    against = None
    if selected.against is not None:
        other, description = selected.against
        against = AlternativeOutput(description, to_lists(other_values), output_score(other))
    return Explanation(
        selected.description,
        selected.features,
        to_lists(values),
        unavailable,
        measured,
        effect,
        selected.target.wording,
        output_score(selected.target),
        selected.image,
        against,
        "" if effect is None else describe_attention(selected.target),
    )


def explain_set(
    run: Run,
    data: str,
    method: str = "all",
    *,
    number: int = 200,
    selection: OutputSelection = PREDICTED,
    reference: Path | None = None,
    gold: Path | None = None,
    progress: bool = False,
) -> FaithfulnessReport:
    """Measure the methods over a set of the recipe or a file, which may have references and a gold alignment."""
    methods, randomized = parse_methods(method), randomized_model(run)
    rows, effects = [], []
    unavailable: dict[str, str] = {}
    wording = TEXT_WORDING
    examples = load_examples(run, data, reference, gold)
    for index, selected in enumerate(select_outputs(run, examples, number, selection)):
        _, _, reasons, measured, effect = measure_output(selected, methods, randomized, seed=index)
        unavailable, wording = unavailable | reasons, selected.target.wording
        rows.append(measured)
        effects.append(float("nan") if effect is None else effect)
        if progress:
            print(f"\r{index + 1} outputs", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    if not rows:
        raise UserError(f"--data {data}: it has nothing to explain")
    mean_effect = mean_score("permutation effect", effects)
    steps = [tuple(step_names(row[RANDOM_BASELINE])) for row in rows]
    short = sum(not names[0].endswith("%") for names in steps)
    most = max((names for names in steps if names[0].endswith("%") == (2 * short < len(rows))), key=len)
    return FaithfulnessReport(
        Path(data).name, len(rows), summarise(rows), mean_effect, unavailable, wording, steps=most, short=short
    )


def measure_output(
    selected: ExplainedOutput, methods: Sequence[str], randomized: nn.Module | None, seed: int = SEED
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str], dict[str, dict[str, float]], float | None]:
    """Return the attributions of the output and of the one it is compared with, why methods do not apply, all measures, and the
    permutation effect of a model with attention."""
    target, others = selected.target, dict[str, Tensor]()
    values, unavailable = attribute(target, methods)
    if randomized is None:
        unavailable["randomized"] = "the model is too large to be built a second time, with random weights"
    measured = measure_faithfulness(target, values, randomized=randomized, truth=selected.truth, seed=seed)
    if selected.against is not None:
        other = selected.against[0]
        others = attribute(other, methods)[0]
        for name, row in class_discrimination(target, other, values, others, randomized=randomized, seed=seed).items():
            measured[name] |= row
    try:
        effect: float | None = permutation_effect(target, seed)
    except UserError:  # no attention to permute
        effect = None
    return values, others, unavailable, measured, effect


def check_shown_attention(target: AttributionTarget) -> None:
    """Refuse a layer or a head that the model does not have; of a model without attention, its methods say so."""
    if target.layer is None and target.head is None:
        return
    try:
        graph = attention_graph(target)
    except UserError:
        return
    graph.shown(target)


def describe_attention(target: AttributionTarget) -> str:
    """Return which attention weights are shown and permuted, in words."""
    graph = attention_graph(target)
    layers, heads = len(graph.attending), graph.attending[0].weights.size(0)
    head = f"head {target.head}" if target.head is not None else "mean over heads" if heads > 1 else "its head"
    return f"layer {target.layer or layers} of {layers}, {head}"


def to_lists(values: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: numbers.tolist() for name, numbers in values.items()}


def output_score(target: AttributionTarget) -> float:
    return float(target.to_probability(target.full_score()))


def parse_methods(method: str) -> list[str]:
    chosen = list(METHODS) if method == "all" else method.split(",")
    for name in chosen:
        if name not in METHODS:
            raise UserError(f"--method {name}: no such method; use all, or some of {', '.join(METHODS)}, separated by commas")
    return chosen


def randomized_model(run: Run) -> nn.Module | None:
    """Return the run's model with random weights, as before training; None where it is too large."""
    if is_foreign(run) and sum(p.numel() for p in run.model.parameters()) > MAX_RANDOMIZED_PARAMETERS:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOMIZED_SEED)
        if is_foreign(run):
            return explained_model(cast(TransformersRun, run), randomized=True)
        return run._build_model().to(run.device).eval()

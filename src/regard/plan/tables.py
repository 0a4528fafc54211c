"""Plans and costs as tables on a terminal; plain text when piped."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from regard.plan.block import BlockPlan
from regard.plan.flops import Component, total_cost
from regard.plan.layer_types import LAYER_TYPES, LayerComparison, LayerTiming
from regard.plan.parallelism import GpuCluster, ParallelStrategy
from regard.plan.planner import Plan
from regard.plan.training_costs import NOTES, PUBLISHED_COSTS, CostTable

NONE = "–"
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
READING_ORDER = [
    "words",
    "patches",
    "class_token",
    "distillation_token",
    "segments",
    "positions",
    "embedding_norm",
    "projection",
    "self-attention",
    "cross-attention",
    "cells",
    "feed-forward",
    "residual projection",
    "norms",
]
Planned = Plan | BlockPlan | LayerComparison | CostTable


def render_text(planned: Planned, *, by_layer: bool = False, width: int = 100) -> str:
    """Return the tables as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False)
    console.print(*render(planned, by_layer=by_layer), sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def render(planned: Planned, *, by_layer: bool = False) -> list[RenderableType]:
    """Return the tables for a rich console; `by_layer` lists every layer of a plan separately."""
    match planned:
        case Plan():
            notes = [*planned.notes, "memory without the allocator's reserve and kernel workspaces"]
            return [
                _heading(planned.name, notes),
                _components_table(planned, by_layer),
                _flops_table(planned),
                _memory_table(planned),
                _time_table(planned),
                *(_parallelism_tables(planned) if planned.strategies else []),
            ]
        case BlockPlan():
            return _block_tables(planned)
        case LayerComparison():
            return _layer_type_tables(planned)
        case CostTable():
            return [_published_table(), *([_runs_table(planned)] if planned.runs else []), *map(_note, NOTES)]


def _components_table(plan: Plan, by_layer: bool) -> Table:
    table = _table(["component", "parameters", "fraction", "forward FLOPs / token", "fraction"])
    whole = plan.total

    def row(name: str, components: Iterable[Component], style: str = "", parameters: str | None = None) -> None:
        cost = total_cost(components)
        flops = 2 * cost.macs_per_token
        table.add_row(
            name,
            parameters or _count(cost.parameters),
            _fraction(cost.parameters, whole.parameters),
            _count(round(flops)),
            _fraction(flops, plan.flops_per_token),
            style=style,
        )

    tie = getattr(plan.recipe.model, "tie", plan.recipe.task == "masked")  # a masked model ties output and word embeddings
    names = {
        ("source embedding", "all"): "embedding, shared",
        ("target embedding", "target"): "target embedding, shared",
        ("words", True): "embedding, shared",
        ("words", False): "embedding",
    }
    for stack in dict.fromkeys(sorted((c.location.stack for c in plan.components), key=_stack_rank)):
        inside = [c for c in plan.components if c.location.stack == stack]
        depth = len({c.location.layer for c in inside} - {None})
        if not depth:
            shared = stack == "output" and tie not in ("none", False) and not total_cost(inside).parameters
            row(names.get((stack, tie), stack), inside, parameters="(shared)" if shared else None)
            continue
        row(f"{stack}, {depth} layers" if depth > 1 else f"{stack}, 1 layer", inside, style="bold")
        for name, group in _group_components(inside, by_layer):
            row(f"  {name}", group)
    table.add_section()
    row("total", plan.components, style="bold")
    return table


def _stack_rank(stack: str) -> int:
    """Return a sort key: embeddings first, the output last, other stacks in their order."""
    return 0 if "embedding" in stack or stack == "words" else 2 if stack == "output" else 1


def _group_components(components: list[Component], by_layer: bool) -> Iterable[tuple[str, list[Component]]]:
    """Yield components by kind, or by layer and kind, in the order of the forward pass."""
    order = READING_ORDER + sorted({c.location.kind for c in components} - set(READING_ORDER))
    layers = sorted({c.location.layer for c in components if c.location.layer is not None}) if by_layer else []
    for layer in [*layers, None]:
        for kind in order:
            group = [c for c in components if c.location.kind == kind and (c.location.layer == layer or not by_layer)]
            if group:
                last = "last norm" if by_layer and kind == "norms" else kind or "other"
                yield (last.replace("_", " ") if layer is None else f"{layer + 1} {kind}"), group


def _flops_table(plan: Plan) -> Table:
    train = plan.recipe.train
    passes = "2 (R-Drop) × 3" if train.regularize.r_drop else "3"
    forward = f"{passes} × forward (backward is twice), {plan.tokens_per_step:,} positions"
    thumb = f"6 · parameters · positions of one side; ours is {plan.flops / plan.rule_of_thumb:.2f} of it"
    rows = [
        ["per step", _scientific(plan.flops_per_step), forward],
        [f"all {train.steps:,} steps", _scientific(plan.flops), "matrix products only"],
        ["rule of thumb", _scientific(plan.rule_of_thumb), thumb],
    ]
    if plan.published_hours is not None and plan.published_flops is not None:
        ours = f"ours is {plan.flops / plan.published_flops:.2f} of it"
        published = f"8 P100 × 9.5 TFLOP/s sustained × {plan.published_hours:g} h; {ours}"
        rows.append(["as published", _scientific(plan.published_flops), published])
    return _table(["training", "FLOPs", ""], rows, bold="all", left=(0, 2))


def _memory_table(plan: Plan) -> Table:
    header = [f"memory, {plan.recipe.train.budget(max(plan.lengths)):,} tokens per batch", *plan.memory]
    rows = _memory_rows(list(plan.memory.values()))
    return _table(header, [["activations, estimated" if name == "activations" else name, *sizes] for name, *sizes in rows])


def _memory_rows(columns: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """Return a row for every purpose that memory is used for, and the total."""
    names = dict.fromkeys(name for sizes in columns for name in sizes)
    rows = [[name, *(_bytes(sizes[name]) if name in sizes else NONE for sizes in columns)] for name in names]
    return [*rows, ["total", *(_bytes(sum(sizes.values())) for sizes in columns)]]


def _time_table(plan: Plan) -> Table:
    rows = [
        [
            device.name,
            f"{device.speed / 1e12:,.3g}",
            f"{device.utilisation:.0%}",
            _duration(plan.step_seconds(device)),
            _duration(plan.step_seconds(device) * plan.recipe.train.steps),
            device.basis,
        ]
        for device in plan.devices
    ]
    return _table(["time on", "TFLOP/s", "utilisation", "per step", "training", "basis"], rows, left=(0, 5))


def _parallelism_tables(plan: Plan) -> list[RenderableType]:
    strategies, cluster = plan.strategies, GpuCluster()
    names = [strategy.name for strategy in strategies]
    fits = [f"fits {cluster.memory / 1e9:.0f} GB", *("yes" if strategy.fits else "no" for strategy in strategies)]
    cells: dict[str, Callable[[ParallelStrategy], str]] = {
        "sent per GPU": lambda s: _bytes(s.bytes_sent),
        "computation": lambda s: _milliseconds(s.compute_seconds),
        "exposed communication": lambda s: _milliseconds(s.exposed_seconds),
        "total": lambda s: _milliseconds(s.step_seconds),
        "positions per second": lambda s: _count(round(plan.tokens_per_step / s.step_seconds)),
        f"all {plan.recipe.train.steps:,} steps": lambda s: _duration(s.step_seconds * plan.recipe.train.steps),
    }
    about = (
        f"{cluster.name}: {cluster.speed / 1e12:,.0f} TFLOP/s measured in large products, {cluster.utilisation:.0%} utilisation "
        f"as on one GPU; {cluster.node_bandwidth / 1e9:.0f} GB/s among the {cluster.gpus_per_node} of a node, "
        f"{cluster.network_bandwidth / 1e9:.0f} GB/s between nodes, both assumed "
        "(docs/scaling.md). " + " ".join(f"{strategy.name}: {strategy.description}." for strategy in strategies)
    )
    return [
        _table([f"each of {plan.gpus:,} GPUs", *names], [*_memory_rows([s.memory for s in strategies]), fits]),
        _table(["per step", *names], [[name, *map(cell, strategies)] for name, cell in cells.items()], bold="all"),
        _note(about),
    ]


def _block_tables(plan: BlockPlan) -> list[RenderableType]:
    table = _table(["component", "parameters", "multiplications per position", f"per sequence of {plan.tokens:,}"])

    def row(name: str, components: Iterable[Component], style: str = "") -> None:
        cost = total_cost(components)
        table.add_row(name, _count(cost.parameters), _count(cost.macs // plan.tokens), _count(cost.macs), style=style)

    for kind in ("self-attention", "feed-forward", "norms"):
        inside = [c for c in plan.components if c.location.kind == kind]
        row(kind, inside, style="bold")
        for operation in ("queries", "keys", "values", "scores", "mixing", "output", "inner", "gate", "outer"):
            if group := [c for c in inside if c.location.operation == operation]:
                row(f"  {operation}", group)
    table.add_section()
    row("total", plan.components, style="bold")
    table.add_section()
    config, width = plan.config, plan.config.width
    lecture = f"the lecture: {width}·{width}·{plan.tokens}"
    table.add_row(lecture, NONE, _count(plan.lecture_macs_per_position), _count(plan.lecture_macs))
    about = (
        f"width {width}, {config.heads} heads of key width {config.key_width or width // config.heads}, "
        f"feed-forward {config.feed_forward}, {plan.tokens:,} tokens"
    )
    return [
        _heading("one encoder block", [about]),
        table,
        Text("  About the lecture's count", style="bold"),
        *map(_note, plan.notes()),
    ]


def _layer_type_tables(found: LayerComparison) -> list[RenderableType]:
    s = found.sizes
    about = f"n = {s.n:,} tokens, width d = {s.d:,}, kernel size k = {s.k}, neighbourhood r = {s.r}, {s.heads} heads"
    titles = {"n": f"Milliseconds over n, at d = {s.d:,}", "d": f"Milliseconds over d, at n = {s.n:,}"}
    return [
        _heading("layer types (Vaswani et al. 2017, table 1)", [about]),
        _table(
            ["multiplications", "core, as\ntable 1", "at this\nn and d", "whole\nlayer, ours", "at this\nn and d"],
            [[t.name, t.core_order, _count(t.core(s)), t.exact_formula(s), _count(t.exact(s))] for t in LAYER_TYPES],
        ),
        _table(
            ["sequential operations, paths", "sequential", "at this n", "longest path", "at this n"],
            [[t.name, t.sequential_order, _count(t.sequential(s)), t.path_order, _count(t.path(s))] for t in LAYER_TYPES],
        ),
        *(_times_table(titles[over], over, timings) for over, timings in found.over.items()),
        *([_exponents_table(found)] if found.over else []),
        *map(_note, found.notes),
    ]


def _times_table(title: str, over: str, timings: list[LayerTiming]) -> Table:
    rows = []
    for value in sorted({getattr(t, over) for t in timings}):
        found = {t.layer: t.quartiles for t in timings if getattr(t, over) == value}
        rows.append([f"{value:,}", *(_median_and_quartiles(*found[layer.name], scale=1e3) for layer in LAYER_TYPES)])
    return _table([over, *(layer.name for layer in LAYER_TYPES)], rows, title=title, left=())


def _exponents_table(found: LayerComparison) -> Table:
    header = ["layer", "over", "core, as\ntable 1", "whole layer,\ncounted", "measured", "at sizes"]
    rows = [
        [
            exponent.layer,
            exponent.over,
            f"{exponent.core:.2f}",
            f"{exponent.exact:.2f}",
            "{1:.2f} ({0:.2f}–{2:.2f})".format(*exponent.measured),
            ", ".join(map(str, exponent.sizes)),
        ]
        for exponent in found.exponents
    ]
    return _table(header, rows, title="Growth: exponents at the largest sizes")


def _published_table() -> Table:
    rows = [
        [row.name, row.bleu_de or NONE, row.bleu_fr or NONE, _scientific(row.flops_de), _scientific(row.flops_fr)]
        for row in PUBLISHED_COSTS
    ]
    header = ["system", "BLEU en-de", "en-fr", "FLOPs en-de", "en-fr"]
    return _table(header, rows, title="Published (Vaswani et al. 2017, table 2)", bold="Transformer")


def _runs_table(costs: CostTable) -> Table:
    rows = []
    for row in costs.runs:
        interval = NONE if row.low is None or row.high is None else f"{row.low:.1f} to {row.high:.1f}"
        score = NONE if row.bleu is None else f"{row.bleu:.2f}"
        rows.append([row.name, row.test or "not evaluated", score, interval, _count(row.steps), _scientific(row.flops)])
    return _table(["run", "test set", "BLEU", "95% interval", "steps", "FLOPs"], rows, title="Your own runs", left=(0, 1))


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    title: str | None = None,
    bold: str = "total",
    left: Sequence[int] = (0,),
) -> Table:
    """Return a table; `left` are its left-aligned columns. A row whose name begins with `bold` is bold; a total is set apart."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", header_style="dim")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=index == 0)
    for row in rows:
        if row[0] == bold == "total":
            table.add_section()
        table.add_row(*row, style="bold" if row[0].startswith(bold) else "")
    return table


def _heading(name: str, notes: list[str]) -> RenderableType:
    return Padding(Text.assemble((name, "bold"), *(("\n" + note, "dim") for note in notes)), (0, 2))


def _note(sentence: str) -> RenderableType:
    return Padding(Text(sentence), (0, 2, 1, 2))


def _count(value: int) -> str:
    return f"{value:,}" if value else NONE


def _fraction(value: float, whole: float) -> str:
    return f"{value / whole:.1%}" if value else ""


def _scientific(value: float | None) -> str:
    """Return 3.3·10¹⁸ for 3.3e18."""
    if not value:
        return NONE
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(SUPERSCRIPT)}"


def _median_and_quartiles(low: float, median: float, high: float, scale: float = 1.0) -> str:
    """Return 12.3 (12.1–12.9), to three digits of the median."""
    digits = max(0, 2 - math.floor(math.log10(median * scale)))
    return f"{median * scale:.{digits}f} ({low * scale:.{digits}f}–{high * scale:.{digits}f})"


def _bytes(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= 1000 * (size / 1024):
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1024:,.1f} KiB"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:,.2f} ms"


def _duration(seconds: float) -> str:
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "h" and seconds >= length):
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 1 else _milliseconds(seconds)

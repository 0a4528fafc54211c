"""Plans and costs as tables for a terminal; plain text when piped."""

import io
import math
from collections.abc import Callable, Iterable

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
from regard.plan.training_costs import CostTable

NONE = "–"
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def render_text(shown: Plan | BlockPlan | LayerComparison | CostTable, *, by_layer: bool = False, width: int = 100) -> str:
    """The tables as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(*render(shown, by_layer=by_layer), sep="\n")
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def render(shown: Plan | BlockPlan | LayerComparison | CostTable, *, by_layer: bool = False) -> list[RenderableType]:
    """The same for a rich console; `by_layer` lists every layer of a plan by itself."""
    match shown:
        case Plan():
            about = [*shown.notes, "memory without the allocator's reserve and the kernels' workspace"]
            return [
                heading(shown.name, about),
                components_table(shown, by_layer),
                flops_table(shown),
                memory_table(shown),
                time_table(shown),
                *(parallelism_tables(shown) if shown.strategies else []),
            ]
        case BlockPlan():
            return block_tables(shown)
        case LayerComparison():
            return layer_type_tables(shown)
        case CostTable():
            return [published_table(shown), *([runs_table(shown)] if shown.own else []), *map(remark, shown.notes)]


def components_table(plan: Plan, by_layer: bool) -> Table:
    table = new_table("part", "parameters", "share", "FLOPs a token, forward", "share")
    whole = plan.total

    def row(name: str, of: Iterable[Component], style: str = "", parameters: str | None = None) -> None:
        mine = total_cost(of)
        flops = 2 * mine.multiplications_a_token
        table.add_row(
            name,
            parameters or format_count(mine.parameters),
            format_fraction(mine.parameters, whole.parameters),
            format_count(round(flops)),
            format_fraction(flops, plan.flops_a_token),
            style=style,
        )

    tie = getattr(plan.recipe.model, "tie", plan.recipe.task == "masked")  # masked words are said by the word embeddings
    names = {
        ("source embedding", "all"): "embedding, shared",
        ("target embedding", "target"): "target embedding, shared",
        ("token embedding", True): "embedding, shared",
        ("token embedding", False): "embedding",
    }
    for stack in dict.fromkeys(sorted((part.place.stack for part in plan.components), key=in_reading_order)):
        inside = [part for part in plan.components if part.place.stack == stack]
        depth = len({part.place.layer for part in inside} - {None})
        if not depth:
            shared = stack == "output" and tie not in ("none", False) and not total_cost(inside).parameters
            row(names.get((stack, tie), stack), inside, parameters="(shared)" if shared else None)
            continue
        row(f"{stack}, {depth} layers" if depth > 1 else f"{stack}, 1 layer", inside, style="bold")
        for name, group in group_components(inside, by_layer):
            row(f"  {name}", group)
    table.add_section()
    row("total", plan.components, style="bold")
    return table


def in_reading_order(stack: str) -> int:
    """Where a token meets a stack: embeddings first, the output last, the rest as they are."""
    return 0 if "embedding" in stack else 2 if stack == "output" else 1


def group_components(parts: list[Component], by_layer: bool) -> Iterable[tuple[str, list[Component]]]:
    """Parts by kind, or by layer and kind, in the order a token meets them."""
    order = [
        "token_embedding",
        "patches",
        "class_token",
        "distillation_token",
        "segments",
        "positions",
        "embedding_norm",
        "self-attention",
        "cross-attention",
        "cells",
        "feed-forward",
        "residual projection",
        "norms",
    ]
    order += sorted({part.place.kind for part in parts} - set(order))
    numbers = sorted({part.place.layer for part in parts if part.place.layer is not None}) if by_layer else []
    for layer in [*numbers, None]:
        for kind in order:
            group = [part for part in parts if part.place.kind == kind and (part.place.layer == layer or not by_layer)]
            if group:
                last = "last norm" if by_layer and kind == "norms" else kind or "the rest"
                yield (last.replace("_", " ") if layer is None else f"{layer + 1} {kind}"), group


def flops_table(plan: Plan) -> Table:
    train = plan.recipe.train
    passes = "2 (R-Drop) × 3" if train.regularize.r_drop else "3"
    table = new_table("training", "FLOPs", "")
    table.columns[2].justify = "left"
    table.add_row(
        "a step",
        format_scientific(plan.flops_a_step),
        f"{passes} × forward (backward is twice), {plan.tokens_a_step:,} positions",
    )
    table.add_row(f"all {train.steps:,} steps", format_scientific(plan.flops), "matrix products only", style="bold")
    table.add_row(
        "rule of thumb",
        format_scientific(plan.rule_of_thumb),
        f"6 · parameters · positions of one side; ours is {plan.flops / plan.rule_of_thumb:.2f} of it",
    )
    if plan.published_hours is not None and plan.published_flops is not None:
        table.add_row(
            "as published",
            format_scientific(plan.published_flops),
            f"8 P100 × 9.5 TFLOP/s sustained × {plan.published_hours:g} h; ours is {plan.flops / plan.published_flops:.2f} of it",
        )
    return table


def memory_table(plan: Plan) -> Table:
    table = new_table(f"memory, {plan.recipe.train.budget(max(plan.lengths)):,} tokens a batch", *plan.memory)
    for name in dict.fromkeys(name for sizes in plan.memory.values() for name in sizes):
        estimate = ", estimated" if name == "activations" else ""
        table.add_row(
            f"{name}{estimate}", *(format_bytes(sizes[name]) if name in sizes else NONE for sizes in plan.memory.values())
        )
    table.add_section()
    table.add_row("total", *(format_bytes(sum(sizes.values())) for sizes in plan.memory.values()), style="bold")
    return table


def time_table(plan: Plan) -> Table:
    table = new_table("time on", "TFLOP/s", "used", "a step", "training", "where from")
    table.columns[-1].justify = "left"
    for device in plan.devices:
        table.add_row(
            device.name,
            f"{device.speed / 1e12:,.3g}",
            f"{device.utilisation:.0%}",
            format_duration(device.seconds(plan.flops_a_step)),
            format_duration(device.seconds(plan.flops)),
            device.basis,
        )
    return table


def parallelism_tables(plan: Plan) -> list[RenderableType]:
    names = [way.name for way in plan.strategies]
    memory = new_table(f"each of {plan.gpus:,} GPUs", *names)
    for name in dict.fromkeys(name for way in plan.strategies for name in way.memory):
        memory.add_row(name, *(format_bytes(way.memory[name]) if name in way.memory else NONE for way in plan.strategies))
    memory.add_section()
    memory.add_row("total", *(format_bytes(way.total) for way in plan.strategies), style="bold")
    room = GpuCluster()
    memory.add_row(f"fits {room.memory / 1e9:.0f} GB", *("yes" if way.fits else "no" for way in plan.strategies))
    steps = new_table("a step", *names)
    rows: list[tuple[str, Callable[[ParallelStrategy], str]]] = [
        ("sent by a GPU", lambda way: format_bytes(way.sent)),
        ("computing", lambda way: format_milliseconds(way.computing)),
        ("waiting", lambda way: format_milliseconds(way.waiting)),
        ("together", lambda way: format_milliseconds(way.step)),
        ("positions a second", lambda way: format_count(round(plan.tokens_a_step / way.step))),
        (f"all {plan.recipe.train.steps:,} steps", lambda way: format_duration(way.step * plan.recipe.train.steps)),
    ]
    for name, shown in rows:
        steps.add_row(name, *map(shown, plan.strategies), style="bold" if name.startswith("all") else "")
    about = (
        f"{room.name}: {room.speed / 1e12:,.0f} TFLOP/s seen in large products, {room.utilisation:.0%} used, as base does; "
        f"{room.near / 1e9:.0f} GB/s to the {room.gpus} of a machine, {room.far / 1e9:.0f} GB/s beyond, both assumed "
        "(docs/scaling.md). " + " ".join(f"{way.name}: {way.about}." for way in plan.strategies)
    )
    return [memory, steps, remark(about)]


def format_milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:,.2f} ms"


def block_tables(plan: BlockPlan) -> list[RenderableType]:
    table = new_table("part", "parameters", "multiplications a position", f"a sequence of {plan.tokens:,}")

    def row(name: str, of: Iterable[Component], style: str = "") -> None:
        mine = total_cost(of)
        table.add_row(
            name,
            format_count(mine.parameters),
            format_count(mine.multiplications // plan.tokens),
            format_count(mine.multiplications),
            style=style,
        )

    for kind in ("self-attention", "feed-forward", "norms"):
        inside = [part for part in plan.components if part.place.kind == kind]
        row(kind, inside, style="bold")
        for step in ("queries", "keys", "values", "scores", "mixing", "output", "inner", "gate", "outer"):
            if mine := [part for part in inside if part.place.step == step]:
                row(f"  {step}", mine)
    table.add_section()
    row("total", plan.components, style="bold")
    table.add_section()
    shape, width = plan.shape, plan.shape.width
    table.add_row(
        f"the deck: {width}·{width}·{plan.tokens}", NONE, format_count(plan.deck_a_position), format_count(plan.deck_a_sequence)
    )
    about = (
        f"width {width}, {shape.heads} heads of key width {shape.key_width or width // shape.heads}, "
        f"feed-forward {shape.feed_forward}, {plan.tokens:,} tokens"
    )
    return [
        heading("one encoder block", [about]),
        table,
        Text("  About the deck's count", style="bold"),
        *map(remark, plan.left_out()),
    ]


def layer_type_tables(shown: LayerComparison) -> list[RenderableType]:
    s = shown.sizes
    about = f"n = {s.n:,} tokens, d = {s.d:,} wide, kernel k = {s.k}, neighbourhood r = {s.r}, {s.heads} heads"
    work = new_table("multiplications", "core, as\ntable 1", "at this\nn and d", "whole\nlayer, ours", "at this\nn and d")
    order = new_table("steps and paths", "steps in a row", "at this n", "longest path", "at this n")
    for kind in LAYER_TYPES:
        work.add_row(kind.name, kind.order, format_count(kind.core(s)), kind.formula(s), format_count(kind.exact(s)))
        order.add_row(kind.name, kind.steps_order, format_count(kind.steps(s)), kind.path_order, format_count(kind.path(s)))
    page: list[RenderableType] = [heading("layer types (Vaswani et al. 2017, table 1)", [about]), work, order]
    fixed = {"n": f"Milliseconds over n, at d = {s.d:,}", "d": f"Milliseconds over d, at n = {s.n:,}"}
    page += [times_table(fixed[over], over, timings) for over, timings in shown.over.items()]
    return [*page, *([exponents_table(shown)] if shown.over else []), *map(remark, shown.notes)]


def times_table(title: str, over: str, timings: list[LayerTiming]) -> Table:
    table = new_table(over, *(kind.name for kind in LAYER_TYPES), title=title)
    table.columns[0].justify = "right"
    for value in sorted({getattr(t, over) for t in timings}):
        found = {t.layer: t.quartiles for t in timings if getattr(t, over) == value}
        table.add_row(f"{value:,}", *(format_quartiles(*found[kind.name], scale=1e3) for kind in LAYER_TYPES))
    return table


def exponents_table(shown: LayerComparison) -> Table:
    table = new_table(
        "layer",
        "over",
        "core, as\ntable 1",
        "whole layer,\ncounted",
        "measured",
        "at sizes",
        title="Growth: exponents at the largest sizes",
    )
    for slope in shown.slopes:
        low, median, high = slope.measured
        table.add_row(
            slope.layer,
            slope.over,
            f"{slope.core:.2f}",
            f"{slope.exact:.2f}",
            f"{median:.2f} ({low:.2f}–{high:.2f})",
            ", ".join(map(str, slope.sizes)),
        )
    return table


def format_quartiles(low: float, median: float, high: float, scale: float = 1.0) -> str:
    """12.3 (12.1–12.9): the median and the quartiles, to three digits of the median."""
    digits = max(0, 2 - math.floor(math.log10(median * scale)))
    return f"{median * scale:.{digits}f} ({low * scale:.{digits}f}–{high * scale:.{digits}f})"


def published_table(shown: CostTable) -> Table:
    table = new_table("system", "BLEU en-de", "en-fr", "FLOPs en-de", "en-fr", title="Published (Vaswani et al. 2017, table 2)")
    for row in shown.published:
        table.add_row(
            row.name,
            row.bleu_de or NONE,
            row.bleu_fr or NONE,
            format_scientific(row.flops_de),
            format_scientific(row.flops_fr),
            style="bold" if row.name.startswith("Transformer") else "",
        )
    return table


def runs_table(shown: CostTable) -> Table:
    table = new_table("run", "test set", "BLEU", "95% interval", "steps", "FLOPs", title="Your own runs")
    table.columns[1].justify = "left"
    for row in shown.own:
        interval = NONE if row.low is None or row.high is None else f"{row.low:.1f} to {row.high:.1f}"
        score = NONE if row.bleu is None else f"{row.bleu:.2f}"
        table.add_row(
            row.name, row.test or "not evaluated", score, interval, format_count(row.steps), format_scientific(row.flops)
        )
    return table


def new_table(first: str, *others: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def heading(name: str, notes: list[str]) -> RenderableType:
    return Padding(Text.assemble((name, "bold"), *(("\n" + note, "dim") for note in notes)), (0, 2))


def remark(sentence: str) -> RenderableType:
    return Padding(Text(sentence), (0, 2, 1, 2))


def format_count(value: int) -> str:
    return f"{value:,}" if value else NONE


def format_fraction(value: float, whole: float) -> str:
    return f"{value / whole:.1%}" if value else ""


def format_scientific(value: float | None) -> str:
    """3.3e18 -> 3.3·10¹⁸."""
    if not value:
        return NONE
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(SUPERSCRIPT)}"


def format_bytes(count: float) -> str:
    unit = "KiB"
    count /= 1024
    for larger in ("MiB", "GiB", "TiB"):
        if count < 1000:
            break
        count, unit = count / 1024, larger
    return f"{count:,.1f} {unit}"


def format_duration(seconds: float) -> str:
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "h" and seconds >= length):
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 1 else format_milliseconds(seconds)

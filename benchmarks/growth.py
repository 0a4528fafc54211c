"""Compare the predictions of `regard plan` with measurements, each in its own process.

    python benchmarks/growth.py [--out growth.svg] [--precision fp32] [--only works]

First three workloads, the base Transformer, GPT-2 124M and ViT-B/16: the time of a step predicted by `regard plan --measure` and
measured; memory counted, and the peak. Then time and memory over sentence length, batch size, width and beam, drawn against the
count of FLOPs (scaled to the last point) and the count of bytes (unscaled).
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from regard.decoding.batching import SearchParams, decode_all, text_sources
from regard.plan.planner import PRESET_SETTINGS, Plan, plan_recipe
from regard.plan.step_time import measure_step, time_steps
from regard.show.figures.figure_files import save_figure
from regard.show.figures.style import house_style, panel_title, theme
from regard.tasks import build_recipe, find_task
from regard.tokens.special_tokens import BOS, EOS, PAD

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
WORKLOADS = {
    "base": ("base", 32_000, (640, 40) if GPU else (16, 32)),
    "gpt2": ("gpt2", 50_304, (32, 1024) if GPU else (2, 256)),
    "vit": ("vit-base", 1_000, (256, 197) if GPU else (4, 197)),
}
GPU_FACTOR = 16 if GPU else 1
SWEEPS = {
    "length": ("tokens per sentence", [{"rows": 4 * GPU_FACTOR, "length": length} for length in (16, 32, 64, 128, 256, 512)]),
    "batch": ("sentences per batch, of 32 tokens", [{"rows": rows * GPU_FACTOR, "length": 32} for rows in (2, 4, 8, 16, 32)]),
    "width": ("width", [{"rows": 8 * GPU_FACTOR, "length": 32, "width": width} for width in (128, 256, 512, 1024)]),
    "beam": ("hypotheses per sentence", [{"rows": 8, "length": 25, "beam": beam} for beam in (1, 2, 4, 8, 16)]),
}
DATA = {"translate": {"train": ["a", "b"], "valid": ["a", "b"]}, "language": {"train": ["a"], "valid": ["a"]}}


@dataclass
class Point:
    seconds: float
    bytes: float
    flops: float
    counted: float
    predicted: float | None = None


def make_plan(work: str, rows: int, length: int, width: int | None, precision: str) -> Plan:
    """Return the plan of training steps with this many examples of this length."""
    preset, vocabulary, _ = WORKLOADS[work]
    chosen = json.loads(json.dumps(PRESET_SETTINGS[preset]))
    task = chosen.get("task", "translate")
    batch = {"images_per_batch": rows} if work == "vit" else {"tokens_per_batch": rows * length}
    wider = {} if width is None else {"width": width, "heads": width // 64, "feed_forward": 4 * width}
    settings = {
        "data": DATA.get(task),
        **chosen,
        "model": {**chosen.get("model", {}), "preset": preset, **wider, **({"max_length": 1024} if work == "base" else {})},
        **({} if work == "vit" else {"tokens": {"size": vocabulary}}),
        "train": {
            "precision": precision,
            "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
            **batch,
            **({"compile": True, "cuda_graphs": True} if GPU else {}),
        },
    }
    recipe = build_recipe(settings, name=work)
    return plan_recipe(work, recipe, (vocabulary, vocabulary), (length, length))


def memory_in_use() -> int:
    """Return the bytes in use by this process, or on its GPU, after the libraries have been initialised."""
    layer = torch.nn.Linear(64, 64, device=DEVICE)
    layer(torch.ones(8, 64, device=DEVICE)).sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    return torch.cuda.memory_allocated() if GPU else process_status("VmRSS")


def peak_memory() -> int:
    return torch.cuda.max_memory_allocated() if GPU else process_status("VmHWM")


def process_status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def measure_training(work: str, rows: int, length: int, precision: str, width: int | None = None) -> Point:
    plan, before = make_plan(work, rows, length, width, precision), memory_in_use()
    seconds = time_steps(plan, DEVICE, rows, [plan.recipe])[0]
    return Point(seconds, peak_memory() - before, plan.flops_per_step, sum(plan.memory[precision].values()))


def measure_decoding(rows: int, length: int, beam: int, precision: str) -> Point:
    """Translate sentences with end tokens suppressed, so that all take the same number of steps."""
    plan, before = make_plan("base", rows, length, None, precision), memory_in_use()
    recipe, vocabulary = plan.recipe, plan.vocabulary
    with torch.device(DEVICE):
        task = find_task("translate", "transformer")
        model = task.build(recipe.model, *task.model_sizes(recipe, vocabulary), recipe.train.regularize).eval()
    with torch.no_grad():
        model.output.weight[[EOS, PAD, BOS]] = 0
        model.output.weight *= 4
    sentences, found = torch.randint(4, vocabulary[0], (rows, length)).tolist(), []
    for _ in range(4):
        start = time.perf_counter()
        sources = text_sources(sentences, device=DEVICE, max_length=length, max_tokens=length - 1)
        decode_all(model, sources, SearchParams(beam=beam, length_penalty=0.6, batch_tokens=beam * 10**6), device=DEVICE)
        found.append(time.perf_counter() - start)
    encoder = sum(component.macs for component in plan.components if component.location.stack == "encoder")
    others = plan.total.macs - encoder
    settings = recipe.model
    cache = 2 * 4 * rows * beam * settings.decoder_layers * 2 * length * settings.width  # of the past and the source; reordered
    logits = 3 * 4 * rows * beam * vocabulary[1]  # logits, log-probabilities, scores
    return Point(
        min(found[1:]),
        peak_memory() - before,
        2 * rows * (encoder + beam * others),
        plan.memory[precision]["parameters"] + cache + logits,
    )


def measure(point: dict[str, Any]) -> Point:
    """Measure a point in its own process, so that nothing is left over from another one."""
    done = subprocess.run([sys.executable, __file__, "--point", json.dumps(point)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{point}: {done.stderr.strip().splitlines()[-1]}")
    return Point(**json.loads(done.stdout.splitlines()[-1]))


def measure_here(point: dict[str, Any]) -> Point:
    if point.pop("predict", False):
        plan = make_plan(point["work"], point["rows"], point["length"], None, point["precision"])
        return Point(0.0, 0.0, 0.0, 0.0, measure_step(plan, str(DEVICE)).devices[0].seconds(plan.flops_per_step))
    return measure_decoding(**point) if "beam" in point else measure_training(**point)


def report_workloads(precision: str) -> None:
    for work, (_, _, (rows, length)) in WORKLOADS.items():
        point = {"work": work, "rows": rows, "length": length, "precision": precision}
        predicted, found = measure({**point, "predict": True}).predicted, measure(point)
        assert predicted is not None
        print(
            json.dumps(
                {
                    **point,
                    "predicted, s": round(predicted, 4),
                    "measured, s": round(found.seconds, 4),
                    "predicted / measured": round(predicted / found.seconds, 3),
                    "counted, MiB": round(found.counted / 2**20),
                    "peak, MiB": round(found.bytes / 2**20),
                    "counted / peak": round(found.counted / found.bytes, 3),
                }
            ),
            flush=True,
        )


def measure_growth(precision: str) -> dict[str, tuple[str, list[int], list[Point]]]:
    found = {}
    for name, (axis, series) in SWEEPS.items():
        points = [measure({"precision": precision, **({} if name == "beam" else {"work": "base"}), **point}) for point in series]
        sizes = [point["rows" if name == "batch" else name] for point in series]
        found[name] = axis, sizes, points
        for size, point in zip(sizes, points):
            print(
                json.dumps(
                    {
                        name: size,
                        "seconds": round(point.seconds, 4),
                        "GFLOP": round(point.flops / 1e9, 1),
                        "MiB": round(point.bytes / 2**20),
                        "counted, MiB": round(point.counted / 2**20),
                    }
                ),
                flush=True,
            )
    return found


def growth_figure(found: dict[str, tuple[str, list[int], list[Point]]]) -> Figure:
    """Draw seconds above and memory below; points are measured, dashed lines counted."""
    with house_style():
        figure = Figure(figsize=(3.1 * len(found), 5.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.1))
        grid = figure.subplots(2, len(found), sharex="col")
        for (name, (axis, sizes, points)), above, below in zip(found.items(), *grid):
            last = points[-1].seconds / points[-1].flops
            for axes, dashed, measured, counted, colour in (
                (above, "FLOPs counted", [p.seconds for p in points], [p.flops * last for p in points], theme().series[0]),
                (
                    below,
                    "bytes counted",
                    [p.bytes / 2**30 for p in points],
                    [p.counted / 2**30 for p in points],
                    theme().series[1],
                ),
            ):
                axes.plot(sizes, counted, color=theme().muted, linewidth=1.2, dashes=(4, 3), label=dashed)
                axes.plot(sizes, measured, color=colour, marker="o", markersize=4.5, linestyle="none", label="measured")
                axes.set_xscale("log", base=2)
                axes.set_xticks(sizes, [str(size) for size in sizes])
                axes.xaxis.set_minor_locator(NullLocator())
                axes.grid()
            above.set_yscale("log")
            above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            above.yaxis.set_minor_locator(NullLocator())
            below.set_ylim(bottom=0)
            panel_title(above, f"over the {name}")
            below.set_xlabel(axis)
        grid[0][0].set_ylabel("seconds")
        grid[1][0].set_ylabel("peak GiB")
        grid[0][0].legend()
        grid[1][0].legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16" if GPU else "fp32")
    parser.add_argument("--only", choices=("works", "growth"))
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point is not None:
        print(json.dumps(vars(measure_here(args.point))))
        return
    if args.only != "growth":
        report_workloads(args.precision)
    if args.only != "works":
        figure = growth_figure(measure_growth(args.precision))
        if args.out is not None:
            save_figure(figure, args.out)


if __name__ == "__main__":
    main()

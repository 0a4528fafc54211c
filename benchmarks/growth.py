"""Does cost grow as `regard plan` counts, and does a step take what it foretells? Every point is measured in its own process.

    python benchmarks/growth.py [--out growth.svg] [--precision fp32] [--only works]

First the three works: the base Transformer, GPT-2 124M, ViT-B/16: a step foretold by `regard plan --measure`, and taken; memory
counted, and the peak. Then time and memory over the length of sentences, the batch, the width and the beam, drawn against the
count of FLOPs (scaled to the last point) and the count of bytes (as it is).
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

from regard.decoding.batching import decode_all, make_search
from regard.plan.planner import PRESET_SETTINGS, Plan, model_sizes, plan_recipe
from regard.plan.step_time import measure_step, time_steps
from regard.show.figures.style import MUTED, SERIES, house_style, panel_title, save_figure
from regard.tasks import build_recipe, find_task
from regard.tokens.special_tokens import BOS, EOS, PAD

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
WORKS = {
    "base": ("base", 32_000, (640, 40) if GPU else (16, 32)),
    "gpt2": ("gpt2", 50_304, (32, 1024) if GPU else (2, 256)),
    "vit": ("vit-base", 1_000, (256, 197) if GPU else (4, 197)),
}
MORE = 16 if GPU else 1
SERIES_OF = {
    "length": ("tokens a sentence", [{"rows": 4 * MORE, "length": length} for length in (16, 32, 64, 128, 256, 512)]),
    "batch": ("sentences a batch, of 32 tokens", [{"rows": rows * MORE, "length": 32} for rows in (2, 4, 8, 16, 32)]),
    "width": ("width", [{"rows": 8 * MORE, "length": 32, "width": width} for width in (128, 256, 512, 1024)]),
    "beam": ("hypotheses a sentence", [{"rows": 8, "length": 25, "beam": beam} for beam in (1, 2, 4, 8, 16)]),
}
DATA = {"translate": {"train": ["a", "b"], "valid": ["a", "b"]}, "language": {"train": ["a"], "valid": ["a"]}}


@dataclass
class Point:
    seconds: float
    bytes: float
    flops: float
    counted: float
    foretold: float | None = None


def planned(work: str, rows: int, length: int, width: int | None, precision: str) -> Plan:
    """The plan of steps of so many examples of this length."""
    preset, vocabulary, _ = WORKS[work]
    given = json.loads(json.dumps(PRESET_SETTINGS[preset]))
    task = given.get("task", "translate")
    batch = {"images_per_batch": rows} if work == "vit" else {"tokens_per_batch": rows * length}
    wider = {} if width is None else {"width": width, "heads": width // 64, "feed_forward": 4 * width}
    settings = {
        "data": DATA.get(task),
        **given,
        "model": {**given.get("model", {}), "preset": preset, **wider, **({"max_length": 1024} if work == "base" else {})},
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


def held() -> int:
    """Bytes that this process, or its GPU memory, holds once the libraries are awake."""
    layer = torch.nn.Linear(64, 64, device=DEVICE)
    layer(torch.ones(8, 64, device=DEVICE)).sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    return torch.cuda.memory_allocated() if GPU else status("VmRSS")


def peak() -> int:
    return torch.cuda.max_memory_allocated() if GPU else status("VmHWM")


def status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def trained(work: str, rows: int, length: int, precision: str, width: int | None = None) -> Point:
    plan, before = planned(work, rows, length, width, precision), held()
    seconds = time_steps(plan, DEVICE, rows, [plan.recipe])[0]
    return Point(seconds, peak() - before, plan.flops_a_step, sum(plan.memory[precision].values()))


def decoded(rows: int, length: int, beam: int, precision: str) -> Point:
    """Sentences translated without an end, so that all take as many steps."""
    plan, before = planned("base", rows, length, None, precision), held()
    recipe, vocabulary = plan.recipe, plan.vocabulary
    with torch.device(DEVICE):
        model = find_task("translate", "transformer").models["transformer"](recipe.model, *model_sizes(recipe, vocabulary), recipe.train.regularize).eval()
    with torch.no_grad():
        model.output.weight[[EOS, PAD, BOS]] = 0
        model.output.weight *= 4
    sentences, found = torch.randint(4, vocabulary[0], (rows, length)).tolist(), []
    for _ in range(4):
        begun = time.perf_counter()
        decode_all(
            sentences,
            make_search(model, beam=beam, alpha=0.6),
            batch_tokens=10**6,
            device=DEVICE,
            most=length,
            max_tokens=length - 1,
        )
        found.append(time.perf_counter() - begun)
    encoder = sum(part.multiplications for part in plan.parts if part.place.stack == "encoder")
    others = plan.total.multiplications - encoder
    settings = recipe.model
    cache = 2 * 4 * rows * beam * settings.decoder_layers * 2 * length * settings.width  # of the past and the source; moved
    said = 3 * 4 * rows * beam * vocabulary[1]  # logits, log-probabilities, scores
    return Point(
        min(found[1:]), peak() - before, 2 * rows * (encoder + beam * others), plan.memory[precision]["parameters"] + cache + said
    )


def measured(point: dict[str, Any]) -> Point:
    """In a process of its own, so that nothing is left over from another point."""
    told = subprocess.run([sys.executable, __file__, "--point", json.dumps(point)], capture_output=True, text=True, check=False)
    if told.returncode:
        raise SystemExit(f"{point}: {told.stderr.strip().splitlines()[-1]}")
    return Point(**json.loads(told.stdout.splitlines()[-1]))


def answer(point: dict[str, Any]) -> Point:
    if point.pop("foretell", False):
        plan = planned(point["work"], point["rows"], point["length"], None, point["precision"])
        return Point(0.0, 0.0, 0.0, 0.0, measure_step(plan, str(DEVICE)).devices[0].seconds(plan.flops_a_step))
    return decoded(**point) if "beam" in point else trained(**point)


def report_works(precision: str) -> None:
    for work, (_, _, (rows, length)) in WORKS.items():
        point = {"work": work, "rows": rows, "length": length, "precision": precision}
        foretold, found = measured({**point, "foretell": True}).foretold, measured(point)
        assert foretold is not None
        print(
            json.dumps(
                {
                    **point,
                    "foretold, s": round(foretold, 4),
                    "taken, s": round(found.seconds, 4),
                    "foretold / taken": round(foretold / found.seconds, 3),
                    "counted, MiB": round(found.counted / 2**20),
                    "peak, MiB": round(found.bytes / 2**20),
                    "counted / peak": round(found.counted / found.bytes, 3),
                }
            ),
            flush=True,
        )


def grown(precision: str) -> dict[str, tuple[str, list[int], list[Point]]]:
    found = {}
    for name, (axis, series) in SERIES_OF.items():
        points = [measured({"precision": precision, **({} if name == "beam" else {"work": "base"}), **point}) for point in series]
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


def drawn(found: dict[str, tuple[str, list[int], list[Point]]]) -> Figure:
    """Above seconds, below memory; points are measured, dashed lines counted."""
    with house_style():
        figure = Figure(figsize=(3.1 * len(found), 5.6), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.1))
        grid = figure.subplots(2, len(found), sharex="col")
        for (name, (axis, sizes, points)), above, below in zip(found.items(), *grid):
            last = points[-1].seconds / points[-1].flops
            for axes, dashed, measured, counted, colour in (
                (above, "FLOPs counted", [p.seconds for p in points], [p.flops * last for p in points], SERIES[0]),
                (below, "bytes counted", [p.bytes / 2**30 for p in points], [p.counted / 2**30 for p in points], SERIES[1]),
            ):
                axes.plot(sizes, counted, color=MUTED, linewidth=1.2, dashes=(4, 3), label=dashed)
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
        grid[1][0].set_ylabel("GiB at the most")
        grid[0][0].legend()
        grid[1][0].legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16" if GPU else "fp32")
    parser.add_argument("--only", choices=("works", "growth"))
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point is not None:
        print(json.dumps(vars(answer(given.point))))
        return
    if given.only != "growth":
        report_works(given.precision)
    if given.only != "works":
        figure = drawn(grown(given.precision))
        if given.out is not None:
            save_figure(figure, given.out)


if __name__ == "__main__":
    main()

"""Measure data loading: Multi30k from its files with `small`, including reading, BPE-dropout and batching.

    python benchmarks/loading.py [--steps 1500] [--every 100] [--idle]    (with Multi30k in data/multi30k)

Reports target tokens per second and the fraction of the time in which the loop waited for the next batch, over the last half of
the steps. A GPU with queued steps waits at most that long. CUDA graphs are used if there is a GPU. `--idle`: steps do nothing,
to measure how fast batches can be made.
"""

import json
import os
import tempfile
from pathlib import Path
from statistics import median

import torch
from harness import parse_args, quartiles

from regard.batches.batch import Batch
from regard.run.train import train
from regard.training.loop import TrainingLoop

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k-en-de.toml"
SMALL = ["model.width=256", "model.heads=4", "model.feed_forward=1024", "train.regularize.r_drop=0", "decode.beam=1"]


def empty_step(trainer: TrainingLoop, micro_batches: list[tuple[int, int, Batch]]) -> tuple[torch.Tensor, int]:
    """Advance the loop without computing anything."""
    state = trainer.state
    state.step, state.epoch, state.index = state.step + 1, micro_batches[-1][0], micro_batches[-1][1] + 1
    return torch.zeros((), device=trainer.device), sum(batch.label_count() for *_, batch in micro_batches)


def main() -> None:
    args = parse_args(__doc__, steps=1500, every=100, idle=False)
    if args.idle:
        TrainingLoop.step = empty_step  # type: ignore[method-assign]
    use_graphs = torch.cuda.is_available()
    overrides = [
        f"train.steps={args.steps}",
        f"train.log_every={args.every}",
        f"train.evaluate_every={args.steps}",
        f"train.save_every={args.steps}",
        "train.evaluate_sentences=100",
        f"train.cuda_graphs={str(use_graphs).lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = train(RECIPE, Path(folder, "run"), overrides=[*SMALL, *overrides])
        records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    steady = [record for record in records if "loss" in record and record["step"] > args.steps / 2]
    speeds, waits = ([record[name] for record in steady] for name in ("tokens_per_second", "data_wait_fraction"))
    print(
        json.dumps(
            {
                "what": "Multi30k, small",
                "cuda_graphs": use_graphs,
                "idle": args.idle,
                "target tokens per second": round(median(speeds)),
                "quartiles": quartiles(speeds, 0),
                "data_wait_fraction": round(sum(waits) / len(waits), 4),
                "maximum": max(waits),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    )


if __name__ == "__main__":
    main()

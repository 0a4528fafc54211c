"""Whether the data come in time: Multi30k from its files with `small`, reading, segmenting anew and batching included.

    python benchmarks/loading.py [--steps 1500] [--every 100] [--idle]    (with Multi30k in data/multi30k)

Target tokens a second and the share of the time in which the loop waited for the next batch, over the last half of the steps. On
a GPU, which has steps to take meanwhile, its own waiting is at most that. Recorded steps where there is one. `--idle`: nothing is
learned, so that it is told how fast batches could come.
"""

import json
import os
import tempfile
from pathlib import Path
from statistics import median

import torch
from turns import asked, spread

from regard.batches.batch import Batch
from regard.run.train import train
from regard.training.loop import Trainer

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k-en-de.toml"
SMALL = ["model.width=256", "model.heads=4", "model.feed_forward=1024", "train.regularize.r_drop=0", "decode.beam=1"]


def pass_over(trainer: Trainer, micro_batches: list[tuple[int, int, Batch]]) -> tuple[torch.Tensor, int]:
    """A step in which nothing happens."""
    progress = trainer.state
    progress.step, progress.epoch, progress.index = progress.step + 1, micro_batches[-1][0], micro_batches[-1][1] + 1
    return torch.zeros((), device=trainer.device), sum(batch.label_count() for *_, batch in micro_batches)


def main() -> None:
    given = asked(__doc__, steps=1500, every=100, idle=False)
    if given.idle:
        Trainer.step = pass_over  # type: ignore[method-assign]
    graphs = torch.cuda.is_available()
    length = [
        f"train.steps={given.steps}",
        f"train.log_every={given.every}",
        f"train.evaluate_every={given.steps}",
        f"train.save_every={given.steps}",
        "train.evaluate_sentences=100",
        f"train.cuda_graphs={str(graphs).lower()}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = train(RECIPE, Path(folder, "run"), overrides=[*SMALL, *length])
        records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    steady = [record for record in records if "loss" in record and record["step"] > given.steps / 2]
    speeds, waits = ([record[name] for record in steady] for name in ("tokens_per_second", "data_wait_fraction"))
    print(
        json.dumps(
            {
                "what": "Multi30k, small",
                "cuda_graphs": graphs,
                "idle": given.idle,
                "target tokens a second": round(median(speeds)),
                "quartiles": spread(speeds, 0),
                "data_wait_fraction": round(sum(waits) / len(waits), 4),
                "most": max(waits),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    )


if __name__ == "__main__":
    main()

"""Measure start-up times: `regard --help`, and a process that loads a run of the `small` preset and translates one sentence.

python benchmarks/cpu_startup.py [--rounds 5] [--run RUN]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from harness import quartiles, time_alternating

TEXT = "The small dog sees the cat."
RECIPE = {
    "task": "translate",
    "data": {"world": {"kind": "bilingual", "number": 200, "held_out": 20}},
    "tokens": {"size": 300},
    "model": {"preset": "small"},
    "train": {"steps": 1, "tokens_per_batch": 512, "precision": "fp32"},
    "decode": {"beam": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run
        if run is None:
            import regard

            run = Path(folder, "small")
            regard.train(RECIPE, run)
        torch.set_num_threads(1)

        def regard_command(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "regard", *words], check=True, capture_output=True)

        times = time_alternating(
            {
                "regard --help": lambda: regard_command("--help"),
                "regard translate, one sentence": lambda: regard_command("translate", str(run), TEXT, "--max-tokens", "12"),
                "python, import torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
                "python, nothing": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
            },
            args.rounds,
        )
    for name, seconds in times.items():
        print(
            json.dumps(
                {
                    "what": name,
                    "seconds": round(sorted(seconds)[len(seconds) // 2], 3),
                    "quartiles": quartiles(seconds, 3),
                    "minimum": round(min(seconds), 3),
                    "load": round(os.getloadavg()[0], 2),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

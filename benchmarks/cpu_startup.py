"""How long one waits: for `regard --help`, and for the first translation by a run of the `small` preset, from nothing.

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
from turns import spread, take_turns

TEXT = "The small dog sees the cat."
WORLD = {
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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = given.run
        if run is None:
            import regard

            run = Path(place, "small")
            regard.train(WORLD, run)
        torch.set_num_threads(1)

        def ask(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "regard", *words], check=True, capture_output=True)

        times = take_turns(
            {
                "regard --help": lambda: ask("--help"),
                "regard translate, one sentence": lambda: ask("translate", str(run), TEXT, "--max-tokens", "12"),
                "python, import torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
                "python, nothing": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
            },
            given.rounds,
        )
    for name, seconds in times.items():
        print(
            json.dumps(
                {
                    "what": name,
                    "seconds": round(sorted(seconds)[len(seconds) // 2], 3),
                    "quartiles": spread(seconds, 3),
                    "least": round(min(seconds), 3),
                    "load": round(os.getloadavg()[0], 2),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

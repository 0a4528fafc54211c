"""Run the GPU benchmarks one after another and print one table: our best engine, the best peer, their ratio, the target.

python benchmarks/gpu_table.py [--rounds 3]       (one idle GPU; some 10 minutes, most of them compilation)
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import parse_args

WORKS = {
    "GPT-2 124M training, 32 × 1,024": ("gpu_training.py gpt2", 580_000),
    "base training, 640 × (40 + 40)": ("gpu_training.py base", 850_000),
    "ViT-B/16 training, 256": ("gpu_training.py vit", 3_400),
    "BERT-base encoding, 64 × 512": ("gpu_decoding.py bert", 2_500_000),
    "the same, lengths 32 to 512": ("gpu_decoding.py mixed", None),
    "base decoding, 64 × 25, beam 4": ("gpu_decoding.py base", 100_000),
    "the same, one sentence": ("gpu_decoding.py base --rows 1", 2_000),
    "GPT-2 generation 128 + 256, 64 texts": ("gpu_decoding.py gpt2", 110_000),
    "the same, one text": ("gpu_decoding.py gpt2 --rows 1", 2_500),
}
"""Each work with its command and the target, in units per second."""


def run(command: str, rounds: int) -> list[dict[str, Any]]:
    """Return the rows that a benchmark prints, one per engine."""
    script, *options = command.split()
    path = str(Path(__file__).parent / script)
    done = subprocess.run([sys.executable, path, *options, "--rounds", str(rounds)], stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def speed(row: dict[str, Any]) -> float:
    return next(float(value) for name, value in row.items() if name.endswith("per second"))


def main() -> None:
    args = parse_args(__doc__, rounds=3)
    print("| work | per second | best peer | ratio | target |\n|---|---|---|---|---|")
    failed = False
    for work, (command, target) in WORKS.items():
        rows = run(command, args.rounds)
        ours, peers = ([row for row in rows if row["engine"].startswith("regard") == own] for own in (True, False))
        failed |= not (ours and peers)
        if ours and peers:
            us, them = max(ours, key=speed), max(peers, key=speed)
            met = "" if target is None else f"{target:,}: {'met' if speed(us) >= target else 'missed'}"
            cells = [work, *(f"{row['engine']} {speed(row):,.0f}" for row in (us, them)), f"{speed(us) / speed(them):.2f}", met]
            print(f"| {' | '.join(cells)} |", flush=True)
        else:
            print(f"| {work} | failed: python benchmarks/{command} | | | |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

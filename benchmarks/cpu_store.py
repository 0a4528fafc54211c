"""Measure the token store: texts to sub-word ids, hashed, written and memory-mapped; with BPE-dropout and without.

python benchmarks/cpu_store.py FILE... [--size 8000] [--rounds 3]    (texts, one per line, plain or .gz; about 500,000)
"""

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from regard.batches.token_store import open_token_store
from regard.recipe import TokenSettings
from regard.tokens.tokenizer import train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lines: list[str] = []
    for path in args.files:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines += [column for line in raw.decode("utf-8").splitlines() for column in line.split("\t") if column]
    tokenizer = train_tokenizer(TokenSettings(kind="bpe", size=args.size), lines)
    for dropout in (0.0, 0.1):
        speeds = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as cache:
                os.environ["XDG_CACHE_HOME"] = cache
                start = time.perf_counter()
                store = open_token_store(lines, tokenizer, bpe_dropout=dropout)
                speeds.append(len(store.ids.flat) / (time.perf_counter() - start))
        print(
            json.dumps(
                {
                    "what": "token store",
                    "bpe_dropout": dropout,
                    "texts": len(lines),
                    "tokens": len(store.ids.flat),
                    "tokens per second": round(statistics.median(speeds)),
                    "minimum": round(min(speeds)),
                    "load": round(os.getloadavg()[0], 2),
                }
            )
        )


if __name__ == "__main__":
    main()

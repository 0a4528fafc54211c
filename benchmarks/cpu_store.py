"""How fast the token store is built: texts to ids in sub-words, hashed, written and mapped again; with BPE-dropout and without.

python benchmarks/cpu_store.py FILE... [--size 8000] [--rounds 3]    (texts, one a line, plain or .gz; some 500,000 are best)
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
    given = parser.parse_args()
    lines: list[str] = []
    for file in given.files:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines += [column for line in raw.decode("utf-8").splitlines() for column in line.split("\t") if column]
    tokenizer = train_tokenizer(TokenSettings(kind="bpe", size=given.size), lines)
    for dropout in (0.0, 0.1):
        speeds = []
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as cache:
                os.environ["XDG_CACHE_HOME"] = cache
                began = time.perf_counter()
                side = open_token_store(lines, tokenizer, bpe_dropout=dropout)
                speeds.append(len(side.ids.flat) / (time.perf_counter() - began))
        print(
            json.dumps(
                {
                    "what": "token store",
                    "bpe_dropout": dropout,
                    "texts": len(lines),
                    "tokens": len(side.ids.flat),
                    "tokens a second": round(statistics.median(speeds)),
                    "least": round(min(speeds)),
                    "load": round(os.getloadavg()[0], 2),
                }
            )
        )


if __name__ == "__main__":
    main()

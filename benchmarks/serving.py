"""What serving gives and what it withstands: one client after another, 64 at once, ten times as many requests as can be
answered, and after the flood.

    python benchmarks/serving.py RUN --source FILE    (a run that translates, and sentences for it, one a line; 2 cores)

The clients are a process of their own, so that they do not take the server's turn in Python.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM = 20


class Clients:
    """Keep-alive connections that ask as fast as they are answered; or, all together, so many times a second (`rate`), whatever
    they are answered."""

    def __init__(self, port: int, sentences: list[str], **options: Any):
        self.port, self.sentences = port, sentences
        self.options = {name: value for name, value in options.items() if value is not None}
        self.next = 0
        self.answers: list[tuple[int, float, float]] = []
        """Status, seconds, and when."""

    async def one(self, until: float | None, number: int | None, every: float, wait: float) -> None:
        """One that asks every so many seconds, at the soonest, after it has waited."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        asked = 0
        await asyncio.sleep(wait)
        while (until is None or time.monotonic() < until) and (number is None or asked < number):
            text = self.sentences[self.next % len(self.sentences)]
            self.next, asked = self.next + 1, asked + 1
            body = json.dumps({"text": text, **self.options}).encode()
            began = time.monotonic()
            writer.write(
                b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = int(head[9:12]), int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            await reader.readexactly(length)
            self.answers.append((status, time.monotonic() - began, time.monotonic()))
            await asyncio.sleep(max(0.0, began + every - time.monotonic()))
        writer.close()

    def ask(
        self, clients: int, *, seconds: float | None = None, each: int | None = None, rate: float | None = None
    ) -> dict[str, Any]:
        every = 0.0 if rate is None else clients / rate

        async def all_of_them() -> None:
            until = None if seconds is None else time.monotonic() + seconds
            await asyncio.gather(*(self.one(until, each, every, every * place / clients) for place in range(clients)))

        self.answers = []
        began = time.monotonic()
        asyncio.run(all_of_them())
        took = time.monotonic() - began
        good = [seconds for status, seconds, _ in self.answers if status == 200]
        whens = sorted(when for status, _, when in self.answers if status == 200 and (seconds is None or when <= began + seconds))
        refused = [seconds for status, seconds, _ in self.answers if status in (429, 503)]
        return {
            "clients": clients,
            "seconds": round(took, 2),
            "served": len(good),
            "per_second": round((len(whens) - 1) / (whens[-1] - whens[0]), 2) if len(whens) > 1 else 0.0,
            "p50_ms": quantile(good, 0.5),
            "p99_ms": quantile(good, 0.99),
            "refused": len(refused),
            "refused_p50_ms": quantile(refused, 0.5),
            "refused_p99_ms": quantile(refused, 0.99),
            "other": sorted({status for status, *_ in self.answers} - {200, 429, 503}),
        }


def quantile(values: list[float], share: float) -> float | None:
    return round(1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))], 1) if values else None


def memory(process: int) -> float:
    """Resident, in MB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1]) / 1024  # type: ignore[index]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run")
    options.add_argument("--source", type=Path, required=True)
    options.add_argument("--beam", type=int)
    options.add_argument("--max-tokens", type=int)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--device", default="cpu")
    given = options.parse_args()
    sentences = [line for line in given.source.read_text(encoding="utf-8").splitlines() if line.strip()]
    words = [
        sys.executable,
        "-m",
        "regard",
        "serve",
        given.run,
        "--port",
        "0",
        "--device",
        given.device,
        "--max-batch-size",
        str(given.clients),
        "--queue",
        str(2 * given.clients),
    ]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip())[1])  # type: ignore[index]
        next(line for line in server.stderr if '"serving"' in line)
        log = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        time.sleep(1)
        clients = Clients(port, sentences, beam=given.beam, max_tokens=given.max_tokens)
        clients.ask(1, each=WARM)
        found = [("alone", clients.ask(1, seconds=given.seconds))]
        alone, ratios, resident = found[0][1]["per_second"], [], [memory(server.pid)]
        for _ in range(given.rounds):  # in turns, so that whatever else the machine does meets both
            together = clients.ask(given.clients, seconds=given.seconds)
            flood = clients.ask(10 * given.clients, seconds=given.seconds, rate=10 * together["per_second"])
            found += [("together", together), ("flood", flood)]
            ratios.append((together["per_second"] / alone, flood["per_second"] / together["per_second"]))
            resident.append(memory(server.pid))
        began = time.monotonic()
        after = clients.ask(1, each=5)
        after["healthy_after_s"] = round(
            time.monotonic() - began - statistics.fmean(seconds for _, seconds, _ in clients.answers) * 4, 2
        )
        for name, figures in [*found, ("after", after)]:
            print(json.dumps({"part": name, **figures}))
        batching, goodput = ([round(one, 2) for one in of] for of in zip(*ratios))
        print(
            json.dumps(
                {
                    "part": "whole",
                    "batching": statistics.median(batching),
                    "each_batching": batching,
                    "goodput": statistics.median(goodput),
                    "each_goodput": goodput,
                    "memory_mb": [round(value) for value in resident],
                }
            )
        )
        log.terminate()
    finally:
        server.terminate()
        server.wait(15)


if __name__ == "__main__":
    main()

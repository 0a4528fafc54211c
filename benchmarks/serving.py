"""Measure the throughput of the server: one client, 64 concurrent clients, ten times as many requests as can be served, and the
recovery after this overload.

    python benchmarks/serving.py RUN --source FILE    (a translation run, and sentences for it, one per line; 2 cores)

The clients are a separate process, so that they do not compete for the server's Python lock.
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

WARM_UP_REQUESTS = 20


class Clients:
    """Keep-alive connections that send the next request after each response, or all together `rate` requests per second."""

    def __init__(self, port: int, sentences: list[str], **options: Any):
        self.port, self.sentences = port, sentences
        self.options = {name: value for name, value in options.items() if value is not None}
        self.next = 0
        self.responses: list[tuple[int, float, float]] = []
        """Status, seconds, and time of the response."""

    async def run_client(self, until: float | None, number: int | None, every: float, wait: float) -> None:
        """Run one client, which sends at most one request per `every` seconds, after an initial wait."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = 0
        await asyncio.sleep(wait)
        while (until is None or time.monotonic() < until) and (number is None or sent < number):
            text = self.sentences[self.next % len(self.sentences)]
            self.next, sent = self.next + 1, sent + 1
            body = json.dumps({"text": text, **self.options}).encode()
            start = time.monotonic()
            writer.write(
                b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = int(head[9:12]), int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            await reader.readexactly(length)
            self.responses.append((status, time.monotonic() - start, time.monotonic()))
            await asyncio.sleep(max(0.0, start + every - time.monotonic()))
        writer.close()

    def run(
        self, clients: int, *, seconds: float | None = None, each: int | None = None, rate: float | None = None
    ) -> dict[str, Any]:
        every = 0.0 if rate is None else clients / rate

        async def run_clients() -> None:
            until = None if seconds is None else time.monotonic() + seconds
            await asyncio.gather(*(self.run_client(until, each, every, every * index / clients) for index in range(clients)))

        self.responses = []
        start = time.monotonic()
        asyncio.run(run_clients())
        took = time.monotonic() - start
        good = [seconds for status, seconds, _ in self.responses if status == 200]
        times = sorted(
            finished
            for status, _, finished in self.responses
            if status == 200 and (seconds is None or finished <= start + seconds)
        )
        refused = [seconds for status, seconds, _ in self.responses if status in (429, 503)]
        return {
            "clients": clients,
            "seconds": round(took, 2),
            "served": len(good),
            "per_second": round((len(times) - 1) / (times[-1] - times[0]), 2) if len(times) > 1 else 0.0,
            "p50_ms": quantile(good, 0.5),
            "p99_ms": quantile(good, 0.99),
            "refused": len(refused),
            "refused_p50_ms": quantile(refused, 0.5),
            "refused_p99_ms": quantile(refused, 0.99),
            "other": sorted({status for status, *_ in self.responses} - {200, 429, 503}),
        }


def quantile(values: list[float], fraction: float) -> float | None:
    return round(1000 * sorted(values)[min(len(values) - 1, int(fraction * len(values)))], 1) if values else None


def resident_mb(process: int) -> float:
    """Return the resident memory in MB."""
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
    args = options.parse_args()
    sentences = [line for line in args.source.read_text(encoding="utf-8").splitlines() if line.strip()]
    command = [
        sys.executable,
        "-m",
        "regard",
        "serve",
        args.run,
        "--port",
        "0",
        "--device",
        args.device,
        "--max-batch-size",
        str(args.clients),
        "--max-queue",
        str(2 * args.clients),
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip())[1])  # type: ignore[index]
        next(line for line in server.stderr if '"serving"' in line)
        log = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        time.sleep(1)
        clients = Clients(port, sentences, beam=args.beam, max_tokens=args.max_tokens)
        clients.run(1, each=WARM_UP_REQUESTS)
        found = [("single", clients.run(1, seconds=args.seconds))]
        single, ratios, resident = found[0][1]["per_second"], [], [resident_mb(server.pid)]
        for _ in range(args.rounds):  # alternating, so that other load affects both
            concurrent = clients.run(args.clients, seconds=args.seconds)
            overload = clients.run(10 * args.clients, seconds=args.seconds, rate=10 * concurrent["per_second"])
            found += [("concurrent", concurrent), ("overload", overload)]
            ratios.append((concurrent["per_second"] / single, overload["per_second"] / concurrent["per_second"]))
            resident.append(resident_mb(server.pid))
        start = time.monotonic()
        after = clients.run(1, each=5)
        after["healthy_after_s"] = round(
            time.monotonic() - start - statistics.fmean(seconds for _, seconds, _ in clients.responses) * 4, 2
        )
        for name, figures in [*found, ("after", after)]:
            print(json.dumps({"part": name, **figures}))
        batching, goodput = ([round(value, 2) for value in values] for values in zip(*ratios))
        print(
            json.dumps(
                {
                    "part": "summary",
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

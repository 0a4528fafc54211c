"""Attack a server on loopback, and measure meanwhile how long /health and an authenticated client wait, and its memory.

    python benchmarks/server_attacks.py [RUN] [--seconds 12] [--files 1024] [--only NAME]

Each attack is bounded in connections, bytes and time, and aims only at the server that this script starts. RUN should be a model
that reads texts; without it, a tiny one is trained. The clients of `readers` and `files` (the server may open few files) have no
token, those of the other attacks have one.
"""

import argparse
import json
import os
import re
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

TOKEN = secrets.token_urlsafe()
PAGE_REQUEST = b"GET /page/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
TINY = {
    "task": "language",
    "data": {"world": {"number": 200, "held_out": 10}, "language": "target"},
    "tokens": {"size": 300},
    "model": {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 64},
    "train": {"steps": 3, "tokens_per_batch": 512, "evaluate_every": 3, "save_every": 3, "log_every": 3},
}


class AttackedServer:
    """`regard serve` in a process of its own, with a token and a limit on open files."""

    def __init__(self, run: str, files: int):
        def limit_files() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", f"model={run}"]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the server runs)
        environment = {**os.environ, "REGARD_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, stderr=self.log, env=environment, preexec_fn=limit_files)
        self.port = self._wait_for_port()

    def _wait_for_port(self) -> int:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.1)
            self.log.seek(0)
            found = re.search(r"http://\S+:(\d+)", self.log.read())
            if found and answers(int(found[1]), "/ready", timeout=5):
                return int(found[1])
        raise SystemExit("the server does not start")

    def memory(self) -> tuple[float, float]:
        """Return the resident memory now, and its maximum, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        now, peak = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now, peak

    def log_lines(self) -> tuple[int, int]:
        """Return the number of lines in the log that are no requests, and of tracebacks."""
        self.log.seek(0)
        lines = self.log.read().splitlines()
        return sum('"event": "request"' not in line for line in lines), sum("Traceback" in line for line in lines)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def answers(port: int, path: str, timeout: float = 30.0) -> bool:
    """Return whether a new connection gets status 200."""
    headers = {"Authorization": f"Bearer {TOKEN}"} if path.startswith("/v1") else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=timeout):
            return True
    except OSError:
        return False


class Probe(threading.Thread):
    """A client that asks for one path again and again, each time over a new connection."""

    def __init__(self, port: int, path: str):
        super().__init__(daemon=True)
        self.port, self.path, self.seconds, self.failures = port, path, list[float](), 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            start = time.perf_counter()
            if answers(self.port, self.path):
                self.seconds.append(time.perf_counter() - start)
            else:
                self.failures += 1

    def summary(self) -> str:
        ordered = sorted(self.seconds) or [float("inf")]
        middle, high = ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))]
        asked = len(self.seconds) + self.failures
        return f"{1000 * middle:6.0f} {1000 * high:7.0f} {1000 * ordered[-1]:7.0f} {self.failures:4d} of {asked}"


def connect(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(5)
    connection.connect(("127.0.0.1", port))
    return connection


def never_read(port: int, until: float, number: int) -> None:
    """Hold connections that request the page's files and never read; then open 200 a second for those that the server closes."""
    held: list[socket.socket] = []
    opened = number
    while time.monotonic() < until:
        for _ in range(min(opened, number - len(held))):
            try:
                held.append(connect(port))
                held[-1].sendall(60 * PAGE_REQUEST)
            except OSError:
                time.sleep(0.02)
        time.sleep(0.2)
        held, opened = [connection for connection in held if is_open(connection)], 40
    for connection in held:
        connection.close()


def is_open(connection: socket.socket) -> bool:
    """Whether the server still holds a connection, found by sending another request."""
    try:
        connection.setblocking(False)
        connection.send(PAGE_REQUEST)
    except BlockingIOError:
        pass
    except OSError:
        connection.close()
        return False
    return True


def post_repeatedly(port: int, until: float, path: str, body: bytes, clients: int, read: bool = True) -> None:
    """Send one body again and again from several clients with the token."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    request = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send() -> None:
        while time.monotonic() < until:
            try:
                with connect(port) as connection:
                    connection.settimeout(until - time.monotonic() + 0.1)
                    connection.sendall(request)
                    if read:
                        connection.recv(100)
                    else:
                        time.sleep(2)
            except OSError:
                time.sleep(0.05)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


MANY_KEYS = b"{" + b",".join(b'"k%d":0' % number for number in range(600_000)) + b"}"
ESCAPES = b'{"text": "' + b"\\u0041" * 1_300_000 + b'"}'
LONG_TEXTS = json.dumps({"text": ["Der Hund " * 1500] * 64}).encode()
WORDS = json.dumps({"text": ["Der Hund schläft"] * 64, "pool": "words"}).encode()
ATTACKS: dict[str, Callable[[int, float], None]] = {
    "readers": lambda port, until: never_read(port, until, 1050),
    "files": lambda port, until: never_read(port, until, 900),
    "keys": lambda port, until: post_repeatedly(port, until, "/v1/embed", MANY_KEYS, 20),
    "escapes": lambda port, until: post_repeatedly(port, until, "/v1/embed", ESCAPES, 20),
    "texts": lambda port, until: post_repeatedly(port, until, "/v1/embed", LONG_TEXTS, 20),
    "unread": lambda port, until: post_repeatedly(port, until, "/v1/embed", WORDS, 40, read=False),
}
"""Few files are left to the server of `files`."""


def tiny_run(folder: Path) -> str:
    from regard.run.train import train

    return str(train(TINY, folder / "run", device="cpu").folder)


def measure(name: str, run: str, files: int, seconds: float) -> None:
    server = AttackedServer(run, files if name == "files" else 4096)
    try:
        probes = [Probe(server.port, "/health"), Probe(server.port, "/v1/models")]
        before = server.memory()[0]
        attack = threading.Thread(target=ATTACKS[name], args=(server.port, time.monotonic() + seconds), daemon=True)
        attack.start()
        time.sleep(0.5)
        for probe in probes:
            probe.start()
        attack.join(seconds + 60)
        for probe in probes:
            probe.done.set()
        for probe in probes:
            probe.join(60)
        after, peak = server.memory()
        lines, tracebacks = server.log_lines()
        print(f"{name:8s} health {probes[0].summary()} | token {probes[1].summary()}", end=" | ")
        print(f"{before:5.0f} {peak:6.0f} {after:6.0f} MB | log {lines} lines, {tracebacks} tracebacks", flush=True)
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a run folder; without it, a tiny model is trained")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each attack")
    parser.add_argument("--files", type=int, default=1024, help="open files that the server may have in `files`")
    parser.add_argument("--only", choices=ATTACKS, help="one attack")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or tiny_run(Path(folder))
        print("attack   ms: median, p99, maximum, failed          | the same with the token | memory before, peak, after")
        for name in [arguments.only] if arguments.only else ATTACKS:
            measure(name, run, arguments.files, arguments.seconds)


if __name__ == "__main__":
    main()

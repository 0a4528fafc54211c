"""Compute metrics in processes of their own, while this one decodes the next set.

sacreBLEU counts n-grams and edits in Python, about a second for a thousand sentences and three metrics. Threads would take turns
with the search, so that these are processes: each reads one JSON list per line, the name of a function of `regard.scoring` with
its arguments and options, and writes the result. A number in JSON is the same float. If a process fails, the result is computed
here.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, ParamSpec, TypeVar

from regard import scoring
from regard.scoring.score import Score

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
MAX_PROCESSES = 4
MIN_SENTENCES = 500
"""Fewer are scored sooner than a process starts."""
COMMAND = (sys.executable, "-m", "regard.scoring.background")


class MetricsProcesses:
    """Processes that compute metrics, and a thread for each that waits for it."""

    def __init__(self, number: int):
        self._threads = ThreadPoolExecutor(number, "metrics", initializer=self._start)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self) -> None:
        if hasattr(signal, "pthread_sigmask"):  # a process that has ended is an OSError, in commands too, which end on SIGPIPE
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        pipe = subprocess.PIPE
        process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._own.process = process
        self._processes.append(process)

    def submit(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
    ) -> Callable[[], Result]:
        """Begin to compute a metric; return a function that waits for the result."""

        def ask() -> Result:
            answer = self._ask(json.dumps([function.__name__, arguments, options]).encode() + b"\n")
            return json.loads(answer, object_hook=as_score) if answer else function(*arguments, **options)

        return self._threads.submit(ask).result

    def _ask(self, request: bytes) -> bytes:
        """Return the answer of this thread's process; nothing if it has failed."""
        process: subprocess.Popen[bytes] = self._own.process
        assert process.stdin is not None and process.stdout is not None
        try:
            while request:  # not through a buffer, which would be written again when the pipe is closed
                request = request[os.write(process.stdin.fileno(), request) :]
            return process.stdout.readline()
        except OSError:
            return b""

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with suppress(OSError), process:  # closes the pipes, and waits
                pass


_active: ContextVar[MetricsProcesses | None] = ContextVar("metrics processes", default=None)


@contextmanager
def background_metrics(sentences: int) -> Iterator[None]:
    """Within the block, let `in_background` use processes, if there are this many sentences to score and cores for it."""
    number = min(MAX_PROCESSES, (os.cpu_count() or 1) - 1)
    if sentences < MIN_SENTENCES or number < 1:
        yield
        return
    processes = MetricsProcesses(number)
    token = _active.set(processes)
    try:
        yield
    finally:
        _active.reset(token)
        processes.close()


def in_background(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
) -> Callable[[], Result]:
    """Begin to compute a function of `regard.scoring` in a process, within `background_metrics`, or compute it now; return a
    function that returns the result."""
    if (processes := _active.get()) is not None:
        return processes.submit(function, *arguments, **options)
    result = function(*arguments, **options)
    return lambda: result


def as_score(values: dict[str, Any]) -> Any:
    """Return a JSON object as the score that it was written from; others stay as they are."""
    return Score(**values) if values.keys() == Score.__dataclass_fields__.keys() else values


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        name, arguments, options = json.loads(line)
        assert name in scoring.__all__, name
        print(json.dumps(getattr(scoring, name)(*arguments, **options), default=asdict), flush=True)


if __name__ == "__main__":
    main()

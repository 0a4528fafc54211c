"""A thread in which one model works. Jobs wait in one queue per client, and the clients take turns. Texts are decoded together by
continuous batching; every other job runs alone, between two decoding steps."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from regard.decoding.continuous_batching import DecodingRequest
from regard.errors import UserError
from regard.server.errors import FAILURES, ApiError, redact_message
from regard.server.metrics import Metrics
from regard.server.settings import ServerSettings
from regard.tasks.base import Run
from regard.tasks.shared.requests import DecodingTask, StreamCallback, StreamedToken, open_continuous_batch

RESTART_SECONDS = 0.1
"""Pause before a worker that failed works again."""
JOIN_GROUPS = 8
"""When more texts wait than fit, they join in groups of at least 1/8 of the batch: each join copies the batch's cache."""
log = logging.getLogger("regard.server")
DECODING_VERBS = {"translate", "generate", "caption"}
TokenQueue = asyncio.Queue[tuple[int, StreamedToken | None]]
"""Streamed tokens with the index of their text; None at the end of a text."""


class StartJob(Protocol):
    """Runs in the model's thread; returns the DecodingTask of a job that decodes, else its result. The callback gets tokens."""

    def __call__(self, *, callback: StreamCallback | None) -> Any: ...


class Job:
    """One unit of work for a model."""

    def __init__(
        self,
        start: StartJob,
        *,
        client: str,
        decodes: bool = False,
        index: int = 0,
        tokens: TokenQueue | None = None,
    ):
        """`tokens` receives the tokens while they are generated, under the `index` of this text in its request."""
        self.start, self.client, self.decodes, self.index, self.tokens = start, client, decodes, index, tokens
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.task: DecodingTask | None = None
        self.cancelled = False

    def send_token(self, token: StreamedToken | None) -> None:
        if self.tokens is not None:
            self._call_soon(self.tokens.put_nowait, (self.index, token))

    def succeed(self, result: object) -> None:
        self._call_soon(self._settle, result, None)

    def fail(self, error: ApiError) -> None:
        self._call_soon(self._settle, None, error)

    def _settle(self, result: object, error: ApiError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)
        if self.tokens is not None:
            self.tokens.put_nowait((self.index, None))

    def _call_soon(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.cancelled = True


class Worker:
    """The queue and the thread of one model."""

    def __init__(self, name: str, run: Run, settings: ServerSettings, metrics: Metrics, kind: str = "decoding"):
        self.name, self.run, self.settings, self.metrics = name, run, settings, metrics
        self.changed = threading.Condition()
        self.queues: OrderedDict[str, deque[Job]] = OrderedDict()
        """Waiting jobs by client; the client at the front is served next."""
        self.queued = 0
        self.running: dict[DecodingRequest, Job] = {}
        """Jobs being decoded, by their request."""
        self.starting: list[Job] = []
        """Jobs taken from the queue in this round."""
        self.stopping = False
        self.seconds_per_text = 0.05
        """Moving average of the time between two finished texts."""
        self.batch = None if DECODING_VERBS.isdisjoint(run.task.verbs) else open_continuous_batch(run)
        self.thread = threading.Thread(target=self._loop, name=f"{name} {kind}", daemon=True)
        metrics.watch_worker(name, kind, lambda: len(self.running), lambda: self.queued)

    @property
    def alive(self) -> bool:
        return self.thread.is_alive() and not self.stopping

    # called in the event loop's thread

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all jobs, or none where there is no room: one client may fill half of the queue."""
        with self.changed:
            if not self.alive:
                raise ApiError(503, "the server is stopping; try again later", code="stopping", retry_after=5)
            client = jobs[0].client
            if (error := self.rejection(client, len(jobs))) is not None:
                raise error
            self.queues.setdefault(client, deque()).extend(jobs)
            self.queued += len(jobs)
            self.changed.notify()

    def rejection(self, client: str, number: int = 1) -> ApiError | None:
        """Return the error for a client whose jobs do not fit the queue, or None if they do."""
        own, wait = len(self.queues.get(client, ())), self.queued * self.seconds_per_text
        if self.queued + number > self.settings.max_queue:
            error = ApiError(
                503, f"{self.queued} texts are already waiting; try again later", code="queue_full", retry_after=wait
            )
        elif own + number > max(1, self.settings.max_queue // 2):
            error = ApiError(
                429, f"{own} of your texts are already waiting; send fewer at a time", code="too_many_waiting", retry_after=wait
            )
        else:
            return None
        self.metrics.rejected.labels(self.name).inc(number)
        return error

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Remove waiting jobs from the queue at once; running ones stop before the next step."""
        with self.changed:
            for job in jobs:
                if job.cancelled or job.future.done():
                    continue
                job.cancelled = True
                self.metrics.cancelled.labels(self.name).inc()
                queue = self.queues.get(job.client)
                if queue is not None and job in queue:
                    queue.remove(job)
                    self.queued -= 1
                    if not queue:
                        del self.queues[job.client]

    def stop(self) -> None:
        """Fail the waiting jobs and cancel the running ones."""
        with self.changed:
            self.stopping = True
            for queue in self.queues.values():
                for job in queue:
                    job.fail(ApiError(503, "the server is stopping", code="stopping", retry_after=5))
            self.queues.clear()
            self.queued = 0
            for job in self.running.values():
                job.cancelled = True
            self.changed.notify()

    # called in the model's thread

    def _loop(self) -> None:
        """Work until the worker is stopped; whatever ends the work fails the jobs at hand, and the work begins again."""
        while not self.stopping:
            try:
                self._work()
            except BaseException:  # SystemExit too: the thread must not end while the server runs
                with self.changed:
                    waiting = [job for queue in self.queues.values() for job in queue]
                    jobs = [*self.starting, *self.running.values(), *waiting]
                    self.queues.clear()
                    self.queued = 0
                self._fail_all(jobs)
                self._start_empty_batch()
                time.sleep(RESTART_SECONDS)

    def _work(self) -> None:
        while True:
            with self.changed:
                while not self.queues and not self.running and not self.stopping:
                    self.changed.wait()
                if self.stopping and not self.running:
                    return
                self.starting = self.take_jobs()
            self._run_round(self.starting)

    def take_jobs(self) -> list[Job]:
        """Take the next jobs of each client in turn: as many texts as fit the batch, and at most one other job."""
        taken: list[Job] = []
        free = self.settings.max_batch_size - len(self.running)
        if self.queued > free and free < self.settings.max_batch_size // JOIN_GROUPS:
            free = 0  # not all fit anyway: wait until a group can join
        skipped = 0
        while self.queues and skipped < len(self.queues):
            client, queue = next(iter(self.queues.items()))
            self.queues.move_to_end(client)
            texts = sum(job.decodes for job in taken)
            fits = texts < free if queue[0].decodes else texts == len(taken)
            if not fits:
                skipped += 1
                continue
            skipped = 0
            taken.append(queue.popleft())
            self.queued -= 1
            if not queue:
                del self.queues[client]
        return taken

    def _run_round(self, jobs: Sequence[Job]) -> None:
        """Start the jobs taken, then decode one step for all running texts."""
        start, before = time.monotonic(), len(self.running)
        new = [job for job in jobs if not job.cancelled and self._start(job)]
        if new:
            self._attempt(lambda: self._join(new), new)
        if self.running:
            self._attempt(self._step, list(self.running.values()))
        finished = before + len(new) - len(self.running)
        if finished > 0:
            self.seconds_per_text += 0.2 * ((time.monotonic() - start) / finished - self.seconds_per_text)

    def _start(self, job: Job) -> bool:
        """Start a job; finish it unless it has a text to decode. Return whether it has."""
        try:
            result = job.start(callback=None if job.tokens is None else job.send_token)
            if job.decodes and result.request is not None:
                job.task = result
                return True
            job.succeed(result.result() if job.decodes else result)
        except UserError as error:
            job.fail(ApiError(422, redact_message(str(error), self.run.folder, self.name), code="invalid_input"))
        except ApiError as error:
            job.fail(error)
        except FAILURES:
            self._fail_all([job])
        return False

    def _join(self, jobs: Sequence[Job]) -> None:
        """Add new texts to the running batch."""
        assert self.batch is not None
        requests = {job.task.request: job for job in jobs if job.task is not None and job.task.request is not None}
        self.batch.add(requests)
        self.running |= requests

    def _step(self) -> None:
        assert self.batch is not None
        self.metrics.steps.labels(self.name).inc()
        self.metrics.tokens.labels(self.name).inc(len(self.running))
        cancelled = {request for request, job in self.running.items() if job.cancelled}
        done = self.batch.step(cancelled.__contains__)
        for request in cancelled:
            message = "the server is stopping" if self.stopping else "the request was cancelled"
            self.running.pop(request).fail(ApiError(503, message, code="cancelled"))
        for request in done:
            job = self.running.pop(request, None)
            if job is not None and job.task is not None:
                job.succeed(job.task.result())

    def _attempt(self, function: Callable[[], None], jobs: Sequence[Job]) -> None:
        """Run a step of the batch; if it fails, fail these and all running jobs and start an empty batch."""
        try:
            function()
        except FAILURES:
            self._fail_all([*jobs, *self.running.values()])
            self._start_empty_batch()

    def _start_empty_batch(self) -> None:
        self.running.clear()
        self.batch = None if self.batch is None else open_continuous_batch(self.run)

    def _fail_all(self, jobs: Sequence[Job]) -> None:
        log.exception("failure", extra={"model": self.name})
        self.metrics.failures.labels(self.name).inc()
        for job in jobs:
            job.fail(ApiError(500, "internal error; see the server's log", code="failure"))

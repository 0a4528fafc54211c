"""A thread in which a model works. Texts that are asked for wait in turn, those of a client behind each other and the clients
side by side; they are written together; everything else is done between two steps, one thing at a time."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from regard.errors import UserError
from regard.server.errors import ApiError, redact_message
from regard.server.metrics import Metrics
from regard.server.settings import ServerSettings
from regard.tasks.shared.requests import DecodingTask, StreamedToken, open_continuous_batch

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Whatever may go wrong in a model: the request has failed, the server goes on."""
MIN_JOIN_FRACTION = 8
"""Where more wait than there is room for, texts begin in groups of one part in so many of all: whatever is being written is moved
once for each that joins it."""
FAILURE_MESSAGE = "the server failed at this; its log says why"
log = logging.getLogger("regard.server")
OnToken = Callable[[StreamedToken], None]


class Job:
    """One thing that is asked of a model. `begin` is called in the model's thread: it gives a Task, whose text is written with
    others', or is the whole work."""

    def __init__(
        self,
        begin: Callable[[OnToken], Any],
        *,
        client: str,
        decodes: bool = False,
        index: int = 0,
        pieces: "asyncio.Queue[tuple[int, StreamedToken | None]] | None" = None,
    ):
        """`pieces` is told what is written while it is, and None at the end; `index` says of which text of a request."""
        self.begin, self.client, self.decodes, self.index, self.pieces = begin, client, decodes, index, pieces
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.task: DecodingTask | None = None
        self.unwanted = False

    def tell(self, piece: StreamedToken | None) -> None:
        if self.pieces is not None:
            self.soon(self.pieces.put_nowait, (self.index, piece))

    def succeed(self, result: Any) -> None:
        self.soon(self.settle, result, None)

    def fail(self, error: ApiError) -> None:
        self.soon(self.settle, None, error)

    def settle(self, result: Any, error: ApiError | None) -> None:
        if not self.future.done():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        if self.pieces is not None:
            self.pieces.put_nowait((self.index, None))

    def soon(self, what: Callable[..., Any], *given: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(what, *given)
        except RuntimeError:  # the loop is closed: nobody is there to hear it
            self.unwanted = True


class Worker:
    def __init__(self, name: str, run: Any, settings: ServerSettings, metrics: Metrics, part: str = "writes"):
        self.name, self.run, self.settings, self.metrics = name, run, settings, metrics
        self.ready = threading.Condition()
        self.waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self.number = 0
        """Tickets that wait."""
        self.running: dict[Any, Job] = {}
        self.stopping = False
        self.pace = 0.05
        """Seconds that a text takes from one end of the queue to the next, on the average."""
        self.together = open_continuous_batch(run) if hasattr(run.model, "step") else None
        self.thread = threading.Thread(target=self.work, name=f"{name} {part}", daemon=True)
        metrics.watch("regard_waiting", lambda: self.number, model=name, part=part)
        metrics.watch("regard_running", lambda: len(self.running), model=name, part=part)

    @property
    def alive(self) -> bool:
        return self.thread.is_alive() and not self.stopping

    # from the server's thread

    def start(self) -> None:
        self.thread.start()

    def submit(self, tickets: Sequence[Job]) -> None:
        """All of them, or none where there is no room: one client may fill half of the queue."""
        with self.ready:
            if self.stopping or not self.thread.is_alive():
                raise ApiError(503, "the server is stopping; try another time", code="stopping", retry=5)
            more, client = len(tickets), tickets[0].client
            if (refused := self.full(client, more)) is not None:
                raise refused
            self.waiting.setdefault(client, deque()).extend(tickets)
            self.number += more
            self.ready.notify()

    def full(self, client: str, more: int = 1) -> ApiError | None:
        """What is answered to a client whose texts have no room."""
        mine, wait = len(self.waiting.get(client, ())), self.number * self.pace
        if self.number + more > self.settings.queue:
            refused = ApiError(503, f"{self.number} texts are waiting already; try again later", code="queue_full", retry=wait)
        elif mine + more > max(1, self.settings.queue // 2):
            refused = ApiError(
                429, f"{mine} of your texts are waiting already; send fewer at a time", code="too_many_waiting", retry=wait
            )
        else:
            return None
        self.metrics.count("regard_refused_total", more, model=self.name)
        return refused

    def give_up(self, tickets: Sequence[Job]) -> None:
        """What waits leaves the queue at once; what is being written stops before the next step."""
        with self.ready:
            for ticket in tickets:
                if ticket.unwanted or ticket.future.done():
                    continue
                ticket.unwanted = True
                self.metrics.count("regard_cancelled_total", model=self.name)
                line = self.waiting.get(ticket.client)
                if line is not None and ticket in line:
                    line.remove(ticket)
                    self.number -= 1
                    if not line:
                        del self.waiting[ticket.client]

    def stop(self) -> None:
        """Refuse what waits, and give up what is being written."""
        with self.ready:
            self.stopping = True
            for line in self.waiting.values():
                for ticket in line:
                    ticket.fail(ApiError(503, "the server is stopping", code="stopping", retry=5))
            self.waiting.clear()
            self.number = 0
            for ticket in self.running.values():
                ticket.unwanted = True
            self.ready.notify()

    # in the model's thread

    def work(self) -> None:
        try:
            while True:
                with self.ready:
                    while not self.waiting and not self.running and not self.stopping:
                        self.ready.wait()
                    if self.stopping and not self.running:
                        return
                    taken = self.take()
                self.round(taken)
        finally:  # also where something gave way that nobody thought of
            with self.ready:
                self.stopping = True
                left = [*self.running.values(), *(ticket for line in self.waiting.values() for ticket in line)]
            for ticket in left:
                ticket.fail(ApiError(503, "the model has stopped", code="stopping"))

    def take(self) -> list[Job]:
        """The next ones of each client in turn: as many texts as there is room for, and at most one thing else."""
        taken: list[Job] = []
        room = self.settings.max_batch_size - len(self.running)
        if self.number > room and room < self.settings.max_batch_size // MIN_JOIN_FRACTION:
            room = 0  # some have to wait in any case: they come together a little later
        passed = 0
        while self.waiting and passed < len(self.waiting):
            client, line = next(iter(self.waiting.items()))
            self.waiting.move_to_end(client)
            texts = sum(ticket.decodes for ticket in taken)
            fits = texts < room if line[0].decodes else texts == len(taken)
            if not fits:
                passed += 1
                continue
            passed = 0
            taken.append(line.popleft())
            self.number -= 1
            if not line:
                del self.waiting[client]
        return taken

    def round(self, taken: Sequence[Job]) -> None:
        """Begin what was taken, and go a step on with everything."""
        began, before = time.monotonic(), len(self.running)
        begun: list[Job] = []
        for ticket in taken:
            if not ticket.unwanted and self.begin(ticket) and ticket.task is not None:
                begun.append(ticket)
        if begun:
            self.attempt(lambda: self.add(begun), begun)
        if self.running:
            self.attempt(self.step, list(self.running.values()))
        ended = before + len(begun) - len(self.running)
        if ended > 0:
            self.pace += 0.2 * ((time.monotonic() - began) / ended - self.pace)

    def begin(self, ticket: Job) -> bool:
        """Do what can be done at once; whether there is a text to be written."""
        try:
            result = ticket.begin(ticket.tell)
            if ticket.decodes and result.request is not None:
                ticket.task = result
                return True
            ticket.succeed(result.result() if ticket.decodes else result)
        except UserError as mistake:
            ticket.fail(ApiError(422, redact_message(str(mistake), self.run.folder, self.name), code="mistake"))
        except ApiError as refused:
            ticket.fail(refused)
        except FAILURES:
            self.broke([ticket])
        return False

    def add(self, begun: Sequence[Job]) -> None:
        assert self.together is not None
        requests = {
            ticket.task.request: ticket for ticket in begun if ticket.task is not None and ticket.task.request is not None
        }
        self.together.add(requests)
        self.running |= requests

    def step(self) -> None:
        assert self.together is not None
        self.metrics.count("regard_steps_total", model=self.name)
        self.metrics.count("regard_tokens_total", len(self.running), model=self.name)
        unwanted = {request for request, ticket in self.running.items() if ticket.unwanted}
        done = self.together.step(unwanted.__contains__)
        for request in unwanted:
            ticket = self.running.pop(request)
            ticket.fail(ApiError(503, "the server is stopping" if self.stopping else "given up", code="cancelled"))
        for request in done:
            ended = self.running.pop(request, None)
            if ended is not None and ended.task is not None:
                ended.succeed(ended.task.result())

    def attempt(self, what: Callable[[], None], tickets: Sequence[Job]) -> None:
        """If it fails, these have; where texts were being written together, all of them."""
        try:
            what()
        except FAILURES:
            self.broke([*tickets, *self.running.values()])
            self.running.clear()
            self.together = open_continuous_batch(self.run)

    def broke(self, tickets: Sequence[Job]) -> None:
        log.exception("failure", extra={"model": self.name})
        self.metrics.count("regard_failures_total", model=self.name)
        for ticket in tickets:
            ticket.fail(ApiError(500, FAILURE_MESSAGE, code="failure"))

"""From a request to its answer: tickets are handed in, and given up when the client leaves or the time is over. Streams are
server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from regard.server.errors import Refused
from regard.server.worker import Ticket, Worker
from regard.tasks.streaming import Piece

Pieces = asyncio.Queue[tuple[int, Piece | None]]
LEFT = Refused(499, "the client has left", code="client_left")


async def leaves(request: Request) -> None:
    """Until the client does."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def left_over(seconds: float) -> Refused:
    return Refused(503, f"this took longer than {seconds:g} seconds; ask for less, or try again later", code="deadline", retry=5)


async def answered(request: Request, worker: Worker, tickets: Sequence[Ticket], seconds: float) -> list[Any]:
    """What is made of all tickets, in order."""
    worker.submit(tickets)
    whole = asyncio.gather(*(ticket.future for ticket in tickets))
    leaving = asyncio.create_task(leaves(request))
    both: set[asyncio.Future[Any]] = {whole, leaving}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if whole in done:
            return whole.result()
        raise LEFT if leaving in done else left_over(seconds)
    finally:
        leaving.cancel()
        worker.give_up(tickets)
        if not whole.done():
            whole.cancel()
            with suppress(asyncio.CancelledError):
                await whole


async def streamed(
    request: Request,
    worker: Worker,
    tickets: Sequence[Ticket],
    pieces: Pieces,
    seconds: float,
    event: Callable[[int, Piece], Any],
    last: Callable[[list[Any]], Any],
    ended: Callable[[int, Any], Any] = lambda index, result: None,
) -> StreamingResponse:
    """Events while texts are written: of each piece, of each text's end, and of the whole. What goes wrong before the first is
    an ordinary answer."""
    worker.submit(tickets)
    until = asyncio.get_running_loop().time() + seconds
    try:
        first = await soonest(pieces, until, leaves(request), seconds)
        if first[1] is None and tickets[first[0]].future.exception() is not None:
            tickets[first[0]].future.result()
    except (Refused, asyncio.CancelledError):
        worker.give_up(tickets)
        quiet(tickets)
        raise

    async def events() -> AsyncIterator[bytes]:
        waiting, (index, piece) = len(tickets), first
        try:
            while True:
                if piece is not None:
                    yield as_event(event(index, piece))
                else:
                    if (said := ended(index, tickets[index].future.result())) is not None:
                        yield as_event(said)
                    waiting -= 1
                    if not waiting:
                        break
                index, piece = await soonest(pieces, until, None, seconds)
            results = [ticket.future.result() for ticket in tickets]
            if (said := last(results)) is not None:
                yield as_event(await said if asyncio.iscoroutine(said) else said)
            yield b"data: [DONE]\n\n"
        except Refused as refused:
            yield as_event(refused.wrong())
            yield b"data: [DONE]\n\n"
        finally:
            worker.give_up(tickets)
            quiet(tickets)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def soonest(pieces: Pieces, until: float, leaving: Any, seconds: float) -> tuple[int, Piece | None]:
    """The next piece, unless the time is over, or the client gone, before it comes."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(pieces.get())]
    if leaving is not None:
        tasks.append(asyncio.create_task(leaving))
    try:
        left = until - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(tasks, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        raise LEFT if done else left_over(seconds)
    finally:
        for task in tasks:
            task.cancel()


def quiet(tickets: Sequence[Ticket]) -> None:
    """Nobody asks any more how they ended."""
    for ticket in tickets:
        if ticket.future.done() and not ticket.future.cancelled():
            ticket.future.exception()
        else:
            ticket.future.cancel()


def as_event(said: Any) -> bytes:
    text = said.model_dump_json() if isinstance(said, BaseModel) else json.dumps(said, ensure_ascii=False, allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"

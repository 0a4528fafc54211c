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

from regard.server.errors import ApiError
from regard.server.worker import Job, Worker
from regard.tasks.shared.requests import StreamedToken

Pieces = asyncio.Queue[tuple[int, StreamedToken | None]]
CLIENT_LEFT = ApiError(499, "the client has left", code="client_left")


async def wait_for_disconnect(request: Request) -> None:
    """Until the client does."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def deadline_error(seconds: float) -> ApiError:
    return ApiError(503, f"this took longer than {seconds:g} seconds; ask for less, or try again later", code="deadline", retry=5)


async def wait_for_results(request: Request, worker: Worker, tickets: Sequence[Job], seconds: float) -> list[Any]:
    """What is made of all tickets, in order."""
    worker.submit(tickets)
    whole = asyncio.gather(*(ticket.future for ticket in tickets))
    leaving = asyncio.create_task(wait_for_disconnect(request))
    both: set[asyncio.Future[Any]] = {whole, leaving}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if whole in done:
            return whole.result()
        raise CLIENT_LEFT if leaving in done else deadline_error(seconds)
    finally:
        leaving.cancel()
        worker.give_up(tickets)
        if not whole.done():
            whole.cancel()
            with suppress(asyncio.CancelledError):
                await whole


async def stream_events(
    request: Request,
    worker: Worker,
    tickets: Sequence[Job],
    pieces: Pieces,
    seconds: float,
    event: Callable[[int, StreamedToken], Any],
    last: Callable[[list[Any]], Any],
    ended: Callable[[int, Any], Any] = lambda index, result: None,
) -> StreamingResponse:
    """Events while texts are written: of each piece, of each text's end, and of the whole. What goes wrong before the first is
    an ordinary answer."""
    worker.submit(tickets)
    until = asyncio.get_running_loop().time() + seconds
    try:
        first = await next_token(pieces, until, wait_for_disconnect(request), seconds)
        if first[1] is None and tickets[first[0]].future.exception() is not None:
            tickets[first[0]].future.result()
    except (ApiError, asyncio.CancelledError):
        worker.give_up(tickets)
        discard_results(tickets)
        raise

    async def events() -> AsyncIterator[bytes]:
        waiting, (index, piece) = len(tickets), first
        try:
            while True:
                if piece is not None:
                    yield sse_event(event(index, piece))
                else:
                    if (said := ended(index, tickets[index].future.result())) is not None:
                        yield sse_event(said)
                    waiting -= 1
                    if not waiting:
                        break
                index, piece = await next_token(pieces, until, None, seconds)
            results = [ticket.future.result() for ticket in tickets]
            if (said := last(results)) is not None:
                yield sse_event(await said if asyncio.iscoroutine(said) else said)
            yield b"data: [DONE]\n\n"
        except ApiError as refused:
            yield sse_event(refused.wrong())
            yield b"data: [DONE]\n\n"
        finally:
            worker.give_up(tickets)
            discard_results(tickets)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def next_token(pieces: Pieces, until: float, leaving: Any, seconds: float) -> tuple[int, StreamedToken | None]:
    """The next piece, unless the time is over, or the client gone, before it comes."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(pieces.get())]
    if leaving is not None:
        tasks.append(asyncio.create_task(leaving))
    try:
        left = until - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(tasks, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        raise CLIENT_LEFT if done else deadline_error(seconds)
    finally:
        for task in tasks:
            task.cancel()


def discard_results(tickets: Sequence[Job]) -> None:
    """Nobody asks any more how they ended."""
    for ticket in tickets:
        if ticket.future.done() and not ticket.future.cancelled():
            ticket.future.exception()
        else:
            ticket.future.cancel()


def sse_event(said: Any) -> bytes:
    text = said.model_dump_json() if isinstance(said, BaseModel) else json.dumps(said, ensure_ascii=False, allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"

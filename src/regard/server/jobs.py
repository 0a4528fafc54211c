"""From a request to its response: submit jobs, wait for or stream their results, cancel them when the client leaves."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from PIL import Image
from pydantic import BaseModel

from regard.corpus.decode_image import decode_image
from regard.server import render
from regard.server.errors import ApiError
from regard.server.limits import client_address
from regard.server.models import ServedModel
from regard.server.settings import ServerSettings
from regard.server.worker import Job, TokenQueue, Worker
from regard.tasks.shared.requests import DecodingTask, StreamCallback, StreamedToken

CLIENT_LEFT = ApiError(499, "the client has left", code="client_disconnected")
Event = BaseModel | dict[str, Any]
StartDecoding = Callable[[StreamCallback], DecodingTask]


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def timeout_error(seconds: float) -> ApiError:
    return ApiError(
        503, f"this took longer than {seconds:g} seconds; ask for less, or try again later", code="timeout", retry_after=5
    )


async def wait_for_results(request: Request, worker: Worker, jobs: Sequence[Job], seconds: float) -> list[Any]:
    """Submit jobs and return their results, in order."""
    worker.submit(jobs)
    results = asyncio.gather(*(job.future for job in jobs))
    disconnect = asyncio.create_task(wait_for_disconnect(request))
    both: set[asyncio.Future[Any]] = {results, disconnect}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if results in done:
            return results.result()
        raise CLIENT_LEFT if disconnect in done else timeout_error(seconds)
    finally:
        disconnect.cancel()
        worker.cancel(jobs)
        if not results.done():
            results.cancel()
            with suppress(asyncio.CancelledError):
                await results


async def stream_events(
    request: Request,
    worker: Worker,
    jobs: Sequence[Job],
    tokens: TokenQueue,
    seconds: float,
    token_event: Callable[[int, StreamedToken], Event],
    final_event: Callable[[list[Any]], Any],
    end_event: Callable[[int, Any], Event | None] = lambda index, result: None,
) -> StreamingResponse:
    """Submit jobs and stream server-sent events: one per token, one at the end of each text, and a final one. An error before the
    first token is an ordinary error response."""
    worker.submit(jobs)
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        first = await next_token(tokens, deadline, wait_for_disconnect(request), seconds)
        if first[1] is None and jobs[first[0]].future.exception() is not None:
            jobs[first[0]].future.result()
    except (ApiError, asyncio.CancelledError):
        worker.cancel(jobs)
        discard_results(jobs)
        raise

    async def events() -> AsyncIterator[bytes]:
        remaining, (index, token) = len(jobs), first
        try:
            while True:
                if token is not None:
                    yield sse_event(token_event(index, token))
                else:
                    if (event := end_event(index, jobs[index].future.result())) is not None:
                        yield sse_event(event)
                    remaining -= 1
                    if not remaining:
                        break
                index, token = await next_token(tokens, deadline, None, seconds)
            event = final_event([job.future.result() for job in jobs])
            if asyncio.iscoroutine(event):
                event = await event
            if event is not None:
                yield sse_event(event)
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield sse_event(error.body())
            yield b"data: [DONE]\n\n"
        finally:
            worker.cancel(jobs)
            discard_results(jobs)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def next_token(
    tokens: TokenQueue, deadline: float, disconnect: Coroutine[Any, Any, None] | None, seconds: float
) -> tuple[int, StreamedToken | None]:
    """Return the next token, unless the deadline passes or the client leaves first."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(tokens.get())]
    if disconnect is not None:
        tasks.append(asyncio.create_task(disconnect))
    try:
        remaining = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(tasks, timeout=max(0.0, remaining), return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        raise CLIENT_LEFT if done else timeout_error(seconds)
    finally:
        for task in tasks:
            task.cancel()


def discard_results(jobs: Sequence[Job]) -> None:
    """Retrieve all exceptions, so that asyncio does not report them as never retrieved."""
    for job in jobs:
        if job.future.done() and not job.future.cancelled():
            job.future.exception()
        else:
            job.future.cancel()


def sse_event(event: Event) -> bytes:
    text = event.model_dump_json() if isinstance(event, BaseModel) else json.dumps(event, ensure_ascii=False, allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"


@dataclass(frozen=True)
class ModelRequest:
    """A request and the model that answers it."""

    request: Request
    model: ServedModel

    @staticmethod
    def create(request: Request, model: str | None, verb: str) -> "ModelRequest":
        served = request.app.state.models.find(model, verb)
        request.scope["model"] = served.name
        return ModelRequest(request, served)

    @property
    def _client(self) -> str:
        return client_address(self.request.scope)

    @property
    def _settings(self) -> ServerSettings:
        return self.request.app.state.settings

    async def analyse(self, function: Callable[[Any], Any]) -> Any:
        """Return what a function of the run returns, called in the thread of the analysis worker."""
        job = Job(lambda on_token: function(self.model.analysis_run), client=self._client)
        (result,) = await wait_for_results(self.request, self.model.analysis_worker, [job], self._settings.timeout)
        return result

    async def decode(self, starts: Sequence[StartDecoding]) -> list[Any]:
        """Return the decoded texts; they are decoded in one batch with those of other requests."""
        jobs = [Job(start, client=self._client, decodes=True, index=index) for index, start in enumerate(starts)]
        return await wait_for_results(self.request, self.model.worker, jobs, self._settings.timeout)

    async def stream(
        self,
        starts: Sequence[StartDecoding],
        token_event: Callable[[int, StreamedToken], Event],
        final_event: Callable[[list[Any]], Any],
        end_event: Callable[[int, Any], Event | None] = lambda index, result: None,
    ) -> Response:
        """Decode texts and stream their tokens."""
        tokens: TokenQueue = TokenQueue()
        jobs = [Job(start, client=self._client, decodes=True, index=index, tokens=tokens) for index, start in enumerate(starts)]
        return await stream_events(
            self.request, self.model.worker, jobs, tokens, self._settings.timeout, token_event, final_event, end_event
        )

    async def read_image(self, data: str) -> Image.Image:
        """Decode an image in a thread; its size is checked before its pixels are read."""
        encoded = data.partition(",")[2] if data.startswith("data:") else data
        try:
            return await asyncio.to_thread(
                lambda: decode_image(base64.b64decode(encoded, validate=True), "the image", self._settings.max_pixels)
            )
        except ValueError:
            raise ApiError(422, "image: should be an image in base64, or a data: URL", code="invalid", param="image") from None

    async def read_input(self, text: str | None, image: str | None) -> Any:
        """Return a text or an image, if the model takes that kind of input."""
        kind = "text" if image is None else "image"
        inputs = self.model.inputs
        if kind not in inputs:
            raise ApiError(422, f"{self.model.name} reads {' and '.join(inputs)}: give {inputs[0]}", code="invalid", param=kind)
        return render.mark_as_text(self.model.run, text or "") if image is None else await self.read_image(image)

    async def read_inputs(self, texts: str | list[str] | None, image: str | None) -> list[Any]:
        if texts is None:
            return [await self.read_input(None, image)]
        return [await self.read_input(text, None) for text in as_list(texts)]


def json_response(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


def as_list(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text

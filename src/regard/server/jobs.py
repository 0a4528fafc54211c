"""From a request to its response: submit jobs, wait for or stream their results, cancel them when the client leaves."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from PIL import Image
from pydantic import BaseModel

from regard.corpus.decode_image import count_pixels, decode_image
from regard.server.ablation import ablated
from regard.server.errors import FAILURES, ApiError
from regard.server.limits import FAILURE, client_address, log
from regard.server.models import ServedModel
from regard.server.request_types import AblatedHead
from regard.server.response_types import Result, ResultsResponse
from regard.server.settings import ServerSettings
from regard.server.worker import Job, StartJob, TokenQueue, Worker
from regard.tasks.contrastive import PlainText
from regard.tasks.shared.requests import StreamCallback, StreamedToken, open_continuous_batch

CLIENT_LEFT = ApiError(499, "the client has left", code="client_disconnected")
BYTES_PER_PIXEL = 8
"""Of an image while it is decoded: RGBA, and the RGB that is made of it."""
Event = BaseModel | Mapping[str, object]
ModelInput = str | Image.Image
RunType = TypeVar("RunType")


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def sse_event(event: Event) -> bytes:
    text = event.model_dump_json() if isinstance(event, BaseModel) else json.dumps(event, ensure_ascii=False, allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"


@dataclass(frozen=True)
class ModelRequest(Generic[RunType]):
    """A request and the model that answers it; the verb of the endpoint determines the type of its run."""

    request: Request
    model: ServedModel
    ablate: Sequence[AblatedHead] = ()
    """Heads that are switched off in this request."""

    @staticmethod
    def create(request: Request, model: str | None, verb: str, ablate: Sequence[AblatedHead] = ()) -> "ModelRequest[RunType]":
        served = request.app.state.models.find(model, verb)
        request.scope["model"] = served.name
        return ModelRequest(request, served, ablate)

    @property
    def run(self) -> RunType:
        return cast(RunType, self.model.run)

    @property
    def _settings(self) -> ServerSettings:
        settings: ServerSettings = self.request.app.state.settings
        return settings

    async def analyse(self, function: Callable[[RunType], Result]) -> Result:
        """Return what a function of the run returns, called in the thread of the analysis worker."""

        def start(callback: StreamCallback | None) -> Result:
            run = self.model.analysis_run
            with ablated(run, self.ablate):
                return function(cast(RunType, run))

        job = Job(start, client=client_address(self.request.scope))
        result: Result
        (result,) = await self._wait_for_results(self.model.analysis_worker, [job])
        return result

    async def respond(
        self, response_type: type[ResultsResponse[Result]], function: Callable[[RunType], Sequence[Result]]
    ) -> Response:
        """Answer with the results of a function of the run, called and written as JSON in the thread of the analysis worker."""
        name = self.model.name
        text = await self.analyse(lambda run: results_json(response_type(model=name, results=[]), function(run)))
        return Response(text, media_type="application/json")

    async def decode(self, starts: Sequence[StartJob]) -> list[Any]:
        """Return the decoded texts; they are decoded in one batch with those of other requests, unless heads are switched off."""
        if self.ablate:
            return await self._decode_alone(starts)
        return await self._wait_for_results(self.model.worker, self._decoding_jobs(starts))

    async def _decode_alone(self, starts: Sequence[StartJob]) -> list[Any]:
        """Return the decoded texts of this request only, decoded by the analysis worker until the client leaves."""

        def start(callback: StreamCallback | None) -> list[Any]:
            run = self.model.analysis_run
            batch, tasks = open_continuous_batch(run), [start(callback=None) for start in starts]
            with ablated(run, self.ablate):
                batch.add(task.request for task in tasks if task.request is not None)
                while len(batch):
                    if job.cancelled:
                        raise CLIENT_LEFT
                    batch.step()
            return [task.result() for task in tasks]

        job = Job(start, client=client_address(self.request.scope))
        results: list[Any]
        (results,) = await self._wait_for_results(self.model.analysis_worker, [job])
        return results

    def _decoding_jobs(self, starts: Sequence[StartJob], tokens: TokenQueue | None = None) -> list[Job]:
        return [
            Job(start, client=client_address(self.request.scope), decodes=True, index=index, tokens=tokens)
            for index, start in enumerate(starts)
        ]

    async def _wait_for_results(self, worker: Worker, jobs: Sequence[Job]) -> list[Any]:
        """Submit jobs and return their results, in order."""
        worker.submit(jobs)
        results = asyncio.gather(*(job.future for job in jobs))
        try:
            return await self._wait_for(results, self._settings.timeout)
        finally:
            worker.cancel(jobs)
            if not results.done():
                results.cancel()
                with suppress(asyncio.CancelledError):
                    await results

    async def _wait_for(self, future: asyncio.Future[Result], seconds: float, *, connected: bool = True) -> Result:
        """Return a future's result, unless the time is up or (if it must stay `connected`) the client leaves first."""
        disconnects = [asyncio.ensure_future(wait_for_disconnect(self.request))] if connected else []
        futures: list[asyncio.Future[Any]] = [future, *disconnects]
        try:
            done, _ = await asyncio.wait(futures, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for disconnect in disconnects:
                disconnect.cancel()
        if future in done:
            return future.result()
        message = f"this took longer than {self._settings.timeout:g} seconds; ask for less, or try again later"
        raise CLIENT_LEFT if done else ApiError(503, message, code="timeout", retry_after=5)

    async def stream(
        self,
        starts: Sequence[StartJob],
        token_event: Callable[[int, StreamedToken], Event],
        final_event: Callable[[list[Any]], Awaitable[Event | None]],
        end_event: Callable[[int, Any], Event | None],
    ) -> Response:
        """Decode texts and stream server-sent events: one per token, one at the end of each text, and a final one. An error
        before the first token is an ordinary error response."""
        tokens: TokenQueue = TokenQueue()
        jobs = self._decoding_jobs(starts, tokens)
        self.model.worker.submit(jobs)
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        try:
            first = await self._next_token(tokens, deadline)
            if first[1] is None:
                jobs[first[0]].future.result()
        except (ApiError, asyncio.CancelledError):
            self._abandon(jobs)
            raise

        async def events() -> AsyncIterator[Event | None]:
            remaining, (index, token) = len(jobs), first
            while True:
                yield end_event(index, jobs[index].future.result()) if token is None else token_event(index, token)
                remaining -= token is None
                if not remaining:
                    break
                index, token = await self._next_token(tokens, deadline, connected=False)
            yield await final_event([job.future.result() for job in jobs])

        async def send() -> AsyncIterator[bytes]:
            try:
                async for event in events():
                    if event is not None:
                        yield sse_event(event)
            except ApiError as error:
                yield sse_event(error.body())
            except FAILURES:
                log.exception("failure", extra={"model": self.model.name})
                yield sse_event(FAILURE.body())
            finally:
                self._abandon(jobs)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(send(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _next_token(
        self, tokens: TokenQueue, deadline: float, *, connected: bool = True
    ) -> tuple[int, StreamedToken | None]:
        token = asyncio.ensure_future(tokens.get())
        try:
            return await self._wait_for(token, deadline - asyncio.get_running_loop().time(), connected=connected)
        finally:
            token.cancel()

    def _abandon(self, jobs: Sequence[Job]) -> None:
        """Cancel decoding jobs, and retrieve their exceptions, so that asyncio does not report them as never retrieved."""
        self.model.worker.cancel(jobs)
        for job in jobs:
            if job.future.done() and not job.future.cancelled():
                job.future.exception()
            else:
                job.future.cancel()

    async def read_image(self, data: str) -> Image.Image:
        """Decode an image in a thread; its size is checked, and its memory reserved, before its pixels are read."""
        encoded = data.partition(",")[2] if data.startswith("data:") else data
        try:
            content = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
        except ValueError:
            raise ApiError(422, "image: should be an image in base64, or a data: URL", code="invalid", param="image") from None
        pixels = min(await asyncio.to_thread(count_pixels, content), self._settings.max_pixels)
        self.request.scope["reserve"](BYTES_PER_PIXEL * pixels)
        return await asyncio.to_thread(decode_image, content, "the image", self._settings.max_pixels)

    async def read_input(self, text: str | None, image: str | None) -> ModelInput:
        """Return a text or an image, if the model takes that kind of input; where it takes both, a text is marked as one."""
        kind = "text" if image is None else "image"
        inputs = self.model.info.inputs
        if kind not in inputs:
            raise ApiError(422, f"{self.model.name} reads {' and '.join(inputs)}: give {inputs[0]}", code="invalid", param=kind)
        if image is not None:
            return await self.read_image(image)
        return PlainText(text or "") if "image" in inputs else text or ""

    async def read_inputs(self, texts: str | list[str] | None, image: str | None) -> list[ModelInput]:
        if texts is None:
            return [await self.read_input(None, image)]
        return [await self.read_input(text, None) for text in as_list(texts)]


def results_json(empty: BaseModel, results: Sequence[object]) -> str:
    """Return a response with these results as JSON, written one by one: pydantic lets no other thread run while it writes."""
    text = empty.model_dump_json()
    assert text.endswith('"results":[]}')
    return f"{text[:-2]}{','.join(cast(BaseModel, one).model_dump_json() for one in results)}]}}"


def json_response(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


def as_list(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text

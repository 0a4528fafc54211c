"""The application: routes, and what they answer when something is wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from regard import __version__
from regard.errors import Mistake
from regard.server import openai_routes, verbs
from regard.server.errors import Refused, said_plainly
from regard.server.limits import Guard
from regard.server.metrics import Metrics
from regard.server.models import Shelf
from regard.server.responses import Health, Wrong
from regard.server.settings import Settings

PATIENCE = 1.0
"""Seconds for what cannot be given up, when the server stops."""
PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
}


def create_app(runs: dict[str, Any], settings: Settings | None = None) -> FastAPI:
    """A server of these runs, by their names."""
    settings = settings or Settings()
    metrics = Metrics()
    shelf = Shelf(runs, settings, metrics)

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        for worker in shelf.workers:
            worker.start()
        yield
        for worker in shelf.workers:
            worker.stop()
        for worker in shelf.workers:
            await asyncio.to_thread(worker.thread.join, PATIENCE / len(shelf.workers))

    app = FastAPI(
        title="regard",
        version=__version__,
        description="Attention models: used, and seen through.",
        docs_url=None,
        redoc_url=None,
        lifespan=working,
        responses=verbs.WRONG,
    )
    app.state.shelf, app.state.settings, app.state.metrics = shelf, settings, metrics
    app.include_router(verbs.router)
    app.include_router(openai_routes.router)
    add_signs_of_life(app)
    add_page(app)
    app.add_middleware(Guard, settings=settings, metrics=metrics, full=shelf.full)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(Mistake, mistaken)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, wrong)
    return app


def add_signs_of_life(app: FastAPI) -> None:
    shelf, metrics = app.state.shelf, app.state.metrics

    @app.get("/health", response_model=Health)
    async def health() -> Health:
        """That the server answers."""
        return Health(status="ok")

    @app.get("/ready", response_model=Health, responses={503: {"model": Health}})
    async def ready() -> Any:
        """Whether every model does."""
        if all(worker.alive for worker in shelf.workers):
            return Health(status="ok")
        return JSONResponse({"status": "stopping"}, status_code=503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def figures() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_page(app: FastAPI) -> None:
    """The page and what belongs to it: the files that were there when the server started, and no others."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in KINDS} if PAGE.is_dir() else {}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        if "index.html" not in files:
            return PlainTextResponse("regard is serving; see /v1/models\n")
        return FileResponse(files["index.html"], media_type=KINDS[".html"], headers={"Cache-Control": "no-cache"})

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise Refused(404, "there is no such file", code="not_found")
        return FileResponse(files[name], media_type=KINDS[files[name].suffix], headers={"Cache-Control": "no-cache"})


async def refused(request: Request, error: Any) -> Response:
    return error.response()


async def mistaken(request: Request, error: Any) -> Response:
    return Refused(422, said_plainly(str(error), "", ""), code="mistake").response()


async def invalid(request: Request, error: Any) -> Response:
    """What does not fit the types, by its place; never what was sent."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
    syntax = first["type"] == "json_invalid"
    message = "the request is no JSON" if syntax else f"{place or 'the request'}: {first['msg'].removeprefix('Value error, ')}"
    return Refused(400 if syntax else 422, said_plainly(message, "\0", ""), code="invalid", param=place[:200] or None).response()


async def wrong(request: Request, error: Any) -> Response:
    """What the framework refuses by itself."""
    message = {404: "there is no such endpoint; see /openapi.json", 405: "this endpoint takes another method"}
    answer = Refused(error.status_code, message.get(error.status_code, "the request cannot be read"), code="http").response()
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


__all__ = ["Wrong", "create_app"]

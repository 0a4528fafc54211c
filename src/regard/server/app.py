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
from regard.errors import UserError
from regard.server import openai_routes, verbs
from regard.server.errors import ApiError, redact_message
from regard.server.limits import RequestLimits
from regard.server.metrics import Metrics
from regard.server.models import ServedModels
from regard.server.response_types import ErrorResponse, HealthResponse
from regard.server.settings import ServerSettings

JOIN_SECONDS = 1.0
"""Seconds for what cannot be given up, when the server stops."""
PAGE_FOLDER = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
}


def create_app(runs: dict[str, Any], settings: ServerSettings | None = None) -> FastAPI:
    """A server of these runs, by their names."""
    settings = settings or ServerSettings()
    metrics = Metrics()
    shelf = ServedModels(runs, settings, metrics)

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        for worker in shelf.workers:
            worker.start()
        yield
        for worker in shelf.workers:
            worker.stop()
        for worker in shelf.workers:
            await asyncio.to_thread(worker.thread.join, JOIN_SECONDS / len(shelf.workers))

    app = FastAPI(
        title="regard",
        version=__version__,
        description="Attention models: used, and seen through.",
        docs_url=None,
        redoc_url=None,
        lifespan=working,
        responses=verbs.ERROR_RESPONSES,
    )
    app.state.models, app.state.settings, app.state.metrics = shelf, settings, metrics
    app.include_router(verbs.router)
    app.include_router(openai_routes.router)
    add_health_routes(app)
    add_page(app)
    app.add_middleware(RequestLimits, settings=settings, metrics=metrics, full=shelf.full)
    app.add_exception_handler(ApiError, handle_api_error)
    app.add_exception_handler(UserError, handle_user_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    return app


def add_health_routes(app: FastAPI) -> None:
    shelf, metrics = app.state.models, app.state.metrics

    @app.get("/health", response_model=HealthResponse)
    async def health() -> HealthResponse:
        """That the server answers."""
        return HealthResponse(status="ok")

    @app.get("/ready", response_model=HealthResponse, responses={503: {"model": HealthResponse}})
    async def ready() -> Any:
        """Whether every model does."""
        if all(worker.alive for worker in shelf.workers):
            return HealthResponse(status="ok")
        return JSONResponse({"status": "stopping"}, status_code=503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def figures() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_page(app: FastAPI) -> None:
    """The page and what belongs to it: the files that were there when the server started, and no others."""
    files = {path.name: path for path in PAGE_FOLDER.iterdir() if path.suffix in MEDIA_TYPES} if PAGE_FOLDER.is_dir() else {}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        if "index.html" not in files:
            return PlainTextResponse("regard is serving; see /v1/models\n")
        return FileResponse(files["index.html"], media_type=MEDIA_TYPES[".html"], headers={"Cache-Control": "no-cache"})

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "there is no such file", code="not_found")
        return FileResponse(files[name], media_type=MEDIA_TYPES[files[name].suffix], headers={"Cache-Control": "no-cache"})


async def handle_api_error(request: Request, error: Any) -> Response:
    return error.response()


async def handle_user_error(request: Request, error: Any) -> Response:
    return ApiError(422, redact_message(str(error), "", ""), code="mistake").response()


async def handle_validation_error(request: Request, error: Any) -> Response:
    """What does not fit the types, by its place; never what was sent."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
    syntax = first["type"] == "json_invalid"
    message = "the request is no JSON" if syntax else f"{place or 'the request'}: {first['msg'].removeprefix('Value error, ')}"
    return ApiError(
        400 if syntax else 422, redact_message(message, "\0", ""), code="invalid", param=place[:200] or None
    ).response()


async def handle_http_error(request: Request, error: Any) -> Response:
    """What the framework refuses by itself."""
    message = {404: "there is no such endpoint; see /openapi.json", 405: "this endpoint takes another method"}
    answer = ApiError(error.status_code, message.get(error.status_code, "the request cannot be read"), code="http").response()
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


__all__ = ["ErrorResponse", "create_app"]

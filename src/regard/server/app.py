"""The application: routes, error handlers, health checks, metrics and the web page."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from regard import __version__
from regard.errors import UserError
from regard.server import openai_routes, routes
from regard.server.errors import ApiError, redact_message
from regard.server.limits import RequestLimits
from regard.server.metrics import Metrics
from regard.server.models import ServedModels
from regard.server.response_types import HealthResponse
from regard.server.settings import ServerSettings
from regard.show.figures.html_pages import WEB
from regard.tasks.base import Run

JOIN_SECONDS = 1.0
"""Time for the workers to end when the server stops: a running job cannot be interrupted."""
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


def create_app(runs: Mapping[str, Run], settings: ServerSettings | None = None) -> FastAPI:
    """Return an application that serves these runs under their names."""
    settings = settings or ServerSettings()
    metrics = Metrics()
    models = ServedModels(runs, settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for worker in models.workers:
            worker.start()
        yield
        for worker in models.workers:
            worker.stop()
        for worker in models.workers:
            await asyncio.to_thread(worker.thread.join, JOIN_SECONDS / len(models.workers))

    app = FastAPI(
        title="regard",
        version=__version__,
        description="Use attention models, and see what they attend to.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=routes.ERROR_RESPONSES,
    )
    app.state.models, app.state.settings, app.state.metrics = models, settings, metrics
    app.include_router(routes.router)
    app.include_router(openai_routes.router)
    add_health_routes(app)
    add_page(app)
    app.add_middleware(RequestLimits, settings=settings, metrics=metrics, rejection=models.rejection)
    app.add_exception_handler(ApiError, handle_api_error)
    app.add_exception_handler(UserError, handle_user_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    return app


def add_health_routes(app: FastAPI) -> None:
    models, metrics = app.state.models, app.state.metrics

    @app.get("/health", response_model=HealthResponse)
    async def health() -> HealthResponse:
        """Whether the server answers."""
        return HealthResponse(status="ok")

    @app.get("/ready", response_model=HealthResponse, responses={503: {"model": HealthResponse}})
    async def ready() -> Any:
        """Whether every model's worker is running."""
        if all(worker.alive for worker in models.workers):
            return HealthResponse(status="ok")
        return JSONResponse({"status": "stopping"}, status_code=503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.to_text(), media_type=CONTENT_TYPE_LATEST)


def page_files() -> dict[str, Path]:
    """Return the files of the page by name: its own, and the drawing functions that exported pages use too."""
    if not PAGE_FOLDER.is_dir():
        return {}
    return {path.name: path for path in [*PAGE_FOLDER.iterdir(), WEB / "drawing.js"] if path.suffix in MEDIA_TYPES}


def add_page(app: FastAPI) -> None:
    """Serve the page's files; those that exist when the server starts, and no others."""
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if "index.html" not in files:
            return PlainTextResponse("regard is serving; see /v1/models\n")
        return FileResponse(files["index.html"], media_type=MEDIA_TYPES[".html"], headers={"Cache-Control": "no-cache"})

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "there is no such file", code="not_found")
        return FileResponse(files[name], media_type=MEDIA_TYPES[files[name].suffix], headers={"Cache-Control": "no-cache"})


async def handle_api_error(request: Request, error: Any) -> Response:
    return error.response()


async def handle_user_error(request: Request, error: Any) -> Response:
    return ApiError(422, redact_message(str(error)), code="invalid_input").response()


async def handle_validation_error(request: Request, error: Any) -> Response:
    """Name the field that does not validate; never repeat its value."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
    malformed = first["type"] == "json_invalid"
    message = (
        "the request is not JSON" if malformed else f"{field or 'the request'}: {first['msg'].removeprefix('Value error, ')}"
    )
    return ApiError(400 if malformed else 422, redact_message(message), code="invalid", param=field[:200] or None).response()


async def handle_http_error(request: Request, error: Any) -> Response:
    """Give the framework's own errors our form."""
    messages = {404: "there is no such endpoint; see /openapi.json", 405: "this endpoint takes another method"}
    response = ApiError(error.status_code, messages.get(error.status_code, "the request cannot be read"), code="http").response()
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response

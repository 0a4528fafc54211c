"""The application: routes, error handlers, health checks, metrics and the web page."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from regard import __version__
from regard.errors import UserError
from regard.server import openai_routes, routes, view_routes
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
SHARED_FILES = (
    *("theme.css", "colours.js", "drawing.js"),
    *("lens_grid.js", "lens_grid.css", "flow_diagram.js", "flow_diagram.css"),
)
"""Scripts and style sheets of show/web, which the pages that `regard show` writes have too."""
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
            worker.thread.start()
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
        routes=page_routes(),
    )
    app.state.models, app.state.settings, app.state.metrics = models, settings, metrics
    add_health_routes(app)
    for router in (routes.router, view_routes.router, openai_routes.router):
        app.include_router(router)
    app.add_middleware(
        RequestLimits,
        settings=settings,
        metrics=metrics,
        rejection=models.rejection,
        image_endpoints=models.image_endpoints,
    )
    add_error_handlers(app)
    return app


def add_health_routes(app: FastAPI) -> None:
    models, metrics = app.state.models, app.state.metrics

    @app.get("/health", response_model=HealthResponse)
    async def health() -> HealthResponse:
        """Whether the server answers."""
        return HealthResponse(status="ok")

    @app.get("/ready", response_model=HealthResponse, responses={503: {"model": HealthResponse}})
    async def ready() -> HealthResponse | JSONResponse:
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
    return {
        path.name: path for path in [*PAGE_FOLDER.iterdir(), *(WEB / name for name in SHARED_FILES)] if path.suffix in MEDIA_TYPES
    }


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page's files, which are read once, so that a response takes no descriptor. They need no token, so
    they cost little: plain routes, which FastAPI neither validates nor documents, before all others."""
    contents = {name: (path.read_bytes(), MEDIA_TYPES[path.suffix]) for name, path in page_files().items()}

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        request.scope["route"] = page if "name" in request.path_params else index  # for the log and the metrics
        if name not in contents:
            raise ApiError(404, "there is no such file", code="not_found")
        content, media_type = contents[name]
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    index, page = Route("/", page_file), Route("/page/{name}", page_file)
    return [index, page]


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with an ErrorResponse."""

    @app.exception_handler(ApiError)
    async def handle_api_error(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(UserError)
    async def handle_user_error(request: Request, error: UserError) -> Response:
        return ApiError(422, redact_message(str(error)), code="invalid_input").response()

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> Response:
        """Name the field that does not validate; never repeat its value."""
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
        malformed = first["type"] == "json_invalid"
        problem = f"{field or 'the request'}: {first['msg'].removeprefix('Value error, ')}"
        message = redact_message("the request is not JSON" if malformed else problem)
        return ApiError(400 if malformed else 422, message, code="invalid", param=field[:200] or None).response()

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        """Give the framework's own errors our form."""
        messages = {404: "there is no such endpoint; see /openapi.json", 405: "this endpoint takes another method"}
        message = messages.get(error.status_code, "the request cannot be read")
        response = ApiError(error.status_code, message, code="http").response()
        response.headers.update(error.headers or {})
        return response

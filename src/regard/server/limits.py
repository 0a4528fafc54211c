"""What every request goes through before it is looked at, and every answer before it leaves: who may ask, how much, how long;
what a page may do with it; one line in the log."""

import asyncio
import hmac
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.settings import ServerSettings

log = logging.getLogger("regard.server")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
IMAGE_ENDPOINTS = ("/v1/caption", "/v1/match", "/v1/classify", "/v1/embed", "/v1/attention", "/v1/explain")
"""Where a picture may be sent."""
AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class RequestLimits:
    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, full: Callable[[str], ApiError | None]):
        """`full` is what a client is told where there is no room for it: then its request is not even read."""
        self.app, self.settings, self.metrics, self.full = app, settings, metrics, full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here
        exchange = Exchange(scope, receive, send, self.settings)
        try:
            self.check(scope)
            if scope["method"] == "POST" and (refused := self.full(client_address(scope))) is not None:
                await exchange.receive()  # what has come of it, so that the connection may be kept
                raise refused
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            log.warning("cancelled", extra={"id": exchange.id})  # the server stops, the client does not read
        except ApiError as refused:
            if exchange.status == 0:
                await refused.response()(scope, receive, exchange.send)
        finally:
            self.note(scope, exchange)

    def check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        names = [host_name(value) for value in headers.get(b"host", [])]
        if len(names) != 1 or names[0] not in self.settings.host_names:
            raise ApiError(421, "this server does not answer to that Host; start it with --allow-host NAME", code="host")
        for origin in headers.get(b"origin", []):
            if host_name(origin.partition(b"://")[2]) not in self.settings.host_names:
                raise ApiError(403, "pages of other sites may not ask here", code="origin")
        if headers.get(b"sec-fetch-site", [b"none"])[0] == b"cross-site" and scope["method"] != "GET":
            raise ApiError(403, "pages of other sites may not ask here", code="origin")
        if self.settings.token is not None and requires_token(scope["path"]):
            given = headers.get(b"authorization", [b""])[0]
            if not hmac.compare_digest(given, b"Bearer " + self.settings.token.encode()):
                raise ApiError(401, "send the server's token: Authorization: Bearer TOKEN", code="token")
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get(b"content-type", [b""])[0].partition(b";")[0].strip().lower()
            if scope["method"] == "POST" and scope["path"].startswith("/v1/") and kind != b"application/json":
                raise ApiError(415, "send JSON: Content-Type: application/json", code="content_type")
            length = headers.get(b"content-length", [b""])[0]
            if length.isdigit() and int(length[:12]) > max_body_bytes(self.settings, scope["path"]):
                raise body_too_large(self.settings, scope["path"])

    def note(self, scope: Scope, exchange: "Exchange") -> None:
        seconds = time.monotonic() - exchange.began
        route = getattr(scope.get("route"), "path", None) or "other"
        status = exchange.status or 499
        self.metrics.count("regard_requests_total", endpoint=route, status=str(status))
        self.metrics.time(seconds, endpoint=route)
        log.info(
            "request",
            extra={
                "id": exchange.id,
                "method": scope["method"],
                "endpoint": route,
                "status": status,
                "seconds": round(seconds, 4),
                "read": exchange.read,
                "sent": exchange.sent,
                "client": client_address(scope),
                "model": scope.get("model"),
            },
        )


class Exchange:
    """One request and its answer, counted and timed while they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings):
        self.scope, self.inner_receive, self.inner_send, self.settings = scope, receive, send, settings
        self.began, self.id = time.monotonic(), secrets.token_hex(8)
        self.most = max_body_bytes(settings, scope["path"])
        self.read = self.sent = self.status = 0
        self.whole = False

    async def receive(self) -> Message:
        if self.whole:
            return await self.inner_receive()
        left = self.began + self.settings.body_seconds - time.monotonic()
        try:
            message = await asyncio.wait_for(self.inner_receive(), max(0.001, left))
        except TimeoutError:
            raise ApiError(408, f"the request did not come within {self.settings.body_seconds:g} seconds", code="slow") from None
        if message["type"] == "http.request":
            self.read += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.read > self.most:
                raise body_too_large(self.settings, self.scope["path"])
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message.get("headers", [])}
            more = [(b"x-request-id", self.id.encode()), *HEADERS]
            if b"cache-control" not in given:
                more.append((b"cache-control", b"no-store"))
            if not self.whole and self.scope["method"] not in ("GET", "HEAD"):
                more.append((b"connection", b"close"))  # what is still to come would be read as the next request
            message = {**message, "headers": [*message.get("headers", []), *more]}
        else:
            self.sent += len(message.get("body", b""))
        try:
            await asyncio.wait_for(self.inner_send(message), self.settings.send_seconds)
        except TimeoutError:
            raise ApiError(499, "the client does not read", code="client_left") from None


def client_address(scope: Scope) -> str:
    return (scope.get("client") or ["?"])[0]


def host_name(value: bytes) -> str | None:
    """The name in a Host header, without its port; None where it is no such thing."""
    found = AUTHORITY.fullmatch(value.decode("latin-1"))
    return None if found is None else found[1].lower().strip("[]")


def requires_token(path: str) -> bool:
    """What needs the token: all but the page itself, and whether the server is there."""
    return path.startswith("/v1") or path in ("/metrics", "/openapi.json")


def max_body_bytes(settings: ServerSettings, path: str) -> int:
    return settings.picture_body if path in IMAGE_ENDPOINTS else settings.body


def body_too_large(settings: ServerSettings, path: str) -> ApiError:
    return ApiError(413, f"the request is larger than {max_body_bytes(settings, path):,} bytes", code="too_large")


class JsonLogFormatter(logging.Formatter):
    """A line of JSON for each event."""

    def format(self, record: logging.LogRecord) -> str:
        usual = logging.makeLogRecord({}).__dict__
        more = {name: value for name, value in record.__dict__.items() if name not in usual and value is not None}
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        said = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage(), **more}
        return json.dumps(said, ensure_ascii=False, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Our events, and uvicorn's warnings."""
    handler: Any = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    for name, least in (("regard.server", level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)

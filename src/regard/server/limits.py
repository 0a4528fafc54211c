"""Middleware around every request: access checks, size and time limits, security headers, metrics and one log line."""

import asyncio
import hmac
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.middleware.trustedhost import TrustedHostMiddleware
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
"""Endpoints that take an image, and therefore larger bodies."""


class RequestLimits:
    """The outermost middleware: check, limit, time and log every request."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, rejection: Callable[[str], ApiError | None]):
        """`rejection` gives the error for a client whose job no queue would take: its request is then not even read."""
        self.app, self.settings, self.metrics, self.rejection = app, settings, metrics, rejection
        self.trusted_hosts = [f"[{name}]" if ":" in name else name for name in settings.host_names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSockets
        exchange = Exchange(scope, receive, send, self.settings)
        try:
            await self._check_host(scope, receive)
            self._check_headers(scope)
            if scope["method"] == "POST" and (error := self.rejection(client_address(scope))) is not None:
                await exchange.receive()  # read what has arrived, so that the connection can be kept alive
                raise error
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            log.warning("cancelled", extra={"id": exchange.id})  # the server stops, or the client does not read
        except ApiError as error:
            if exchange.status == 0:
                await error.response()(scope, receive, exchange.send)
        finally:
            self._record(scope, exchange)

    async def _check_host(self, scope: Scope, receive: Receive) -> None:
        """Reject other names in the Host header (DNS rebinding) by Starlette's check, with our JSON error instead of its text."""

        async def accept(scope: Scope, receive: Receive, send: Send) -> None:
            pass

        async def reject(message: Message) -> None:
            raise ApiError(421, "this server does not answer to that Host; start it with --allow-host NAME", code="host")

        await TrustedHostMiddleware(accept, self.trusted_hosts, www_redirect=False)(scope, receive, reject)

    def _check_headers(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        cross_site = headers.get(b"sec-fetch-site", [b"none"])[0] == b"cross-site" and scope["method"] != "GET"
        if cross_site or any(origin_host(origin) not in self.settings.host_names for origin in headers.get(b"origin", [])):
            raise ApiError(403, "pages of other sites may not use this server", code="origin")
        private = scope["path"].startswith("/v1") or scope["path"] in ("/metrics", "/openapi.json")  # not the page, not /health
        if self.settings.token is not None and private:
            given = headers.get(b"authorization", [b""])[0]
            if not hmac.compare_digest(given, b"Bearer " + self.settings.token.encode()):
                raise ApiError(401, "send the server's token: Authorization: Bearer TOKEN", code="token")
        if scope["method"] in ("POST", "PUT", "PATCH"):
            media_type = headers.get(b"content-type", [b""])[0].partition(b";")[0].strip().lower()
            if scope["method"] == "POST" and scope["path"].startswith("/v1/") and media_type != b"application/json":
                raise ApiError(415, "send JSON: Content-Type: application/json", code="content_type")
            length = headers.get(b"content-length", [b""])[0]
            if length.isdigit():
                check_body_size(int(length[:12]), self.settings, scope["path"])

    def _record(self, scope: Scope, exchange: "Exchange") -> None:
        seconds = time.monotonic() - exchange.start
        endpoint = getattr(scope.get("route"), "path", None) or "other"
        status = exchange.status or 499
        self.metrics.requests.labels(endpoint, str(status)).inc()
        self.metrics.request_duration.labels(endpoint).observe(seconds)
        log.info(
            "request",
            extra={
                "id": exchange.id,
                "method": scope["method"],
                "endpoint": endpoint,
                "status": status,
                "seconds": round(seconds, 4),
                "received_bytes": exchange.received,
                "sent_bytes": exchange.sent,
                "client": client_address(scope),
                "model": scope.get("model"),
            },
        )


class Exchange:
    """One request and its response: count and time both, add headers to the response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings):
        self.scope, self.settings, self._receive, self._send = scope, settings, receive, send
        self.start, self.id = time.monotonic(), secrets.token_hex(8)
        self.received = self.sent = self.status = 0
        self.complete = False
        """Whether the whole body was received."""

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        remaining = self.start + self.settings.body_timeout - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.001, remaining))
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self.settings.body_timeout:g} seconds", code="slow_body"
            ) from None
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            check_body_size(self.received, self.settings, self.scope["path"])
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            present = {name.lower() for name, _ in message.get("headers", [])}
            added = [(b"x-request-id", self.id.encode()), *HEADERS]
            if b"cache-control" not in present:
                added.append((b"cache-control", b"no-store"))
            if not self.complete and self.scope["method"] not in ("GET", "HEAD"):
                added.append((b"connection", b"close"))  # an unread body would be parsed as the next request
            message = {**message, "headers": [*message.get("headers", []), *added]}
        else:
            self.sent += len(message.get("body", b""))
        try:
            await asyncio.wait_for(self._send(message), self.settings.send_timeout)
        except TimeoutError:
            raise ApiError(499, "the client does not read the response", code="client_disconnected") from None


def client_address(scope: Scope) -> str:
    return str((scope.get("client") or ["?"])[0])


def origin_host(origin: bytes) -> str | None:
    """Return the host of an Origin header in lower case and without brackets, or None."""
    try:
        return urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None


def check_body_size(size: int, settings: ServerSettings, path: str) -> None:
    limit = settings.max_image_body_bytes if path in IMAGE_ENDPOINTS else settings.max_body_bytes
    if size > limit:
        raise ApiError(413, f"the request is larger than {limit:,} bytes", code="too_large")


class JsonLogFormatter(logging.Formatter):
    """Format each log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        standard = logging.makeLogRecord({}).__dict__
        extra = {name: value for name, value in record.__dict__.items() if name not in standard and value is not None}
        if record.exc_info:
            extra["traceback"] = self.formatException(record.exc_info)
        line = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage(), **extra}
        return json.dumps(line, ensure_ascii=False, default=str)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log our events, and uvicorn's warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    for name, threshold in (("regard.server", level), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(threshold)

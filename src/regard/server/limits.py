"""Middleware around every request: access checks, size and time limits, security headers, metrics and one log line."""

import asyncio
import hmac
import json
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Set
from urllib.parse import urlsplit

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.server.errors import FAILURES, ApiError
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
BODY_COPIES = 3
"""A body is held as bytes, as text, and as what it encodes."""
CHUNK_BYTES = 65_536
"""A response is sent in pieces of this size, each when the client has read most of those before it."""
REQUESTS_PER_ROUND = 2
"""Requests without a token (those of the page, and refused ones) that begin in one round of the event loop."""
FAILURE = ApiError(500, "internal error; see the server's log", code="failure")


class RequestMemory:
    """The memory that all requests together may take."""

    def __init__(self, limit: int):
        self.limit, self.used = limit, 0

    def reserve(self, number: int) -> None:
        """Count bytes that a request is about to take, or refuse it."""
        if self.used + number > self.limit:
            raise ApiError(503, "the requests of all clients take too much memory; try again later", code="busy", retry_after=1)
        self.used += number

    def release(self, number: int) -> None:
        self.used -= number


class Turnstile:
    """Lets a few waiting requests pass in each round of the event loop, so that those which need not wait find it free."""

    def __init__(self, per_round: int):
        self.per_round = per_round
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._rounds: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._let_pass())
        await turn

    async def _let_pass(self) -> None:
        while self.waiting:
            for _ in range(min(self.per_round, len(self.waiting))):
                turn = self.waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
            await asyncio.sleep(0)


class RequestLimits:
    """The outermost middleware: check, limit, time and log every request."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: Metrics,
        rejection: Callable[[str], ApiError | None],
        image_endpoints: Set[str],
    ):
        """`rejection` gives the error for a client whose job no queue would take: its request is then not even read. Only
        `image_endpoints` accept bodies of the size of an image."""
        self.app, self.settings, self.metrics, self.rejection = app, settings, metrics, rejection
        self.image_endpoints = image_endpoints
        self.budget = RequestMemory(settings.max_request_bytes)
        self.turnstile = Turnstile(REQUESTS_PER_ROUND)
        self.trusted_hosts = [f"[{name}]" if ":" in name else name for name in settings.host_names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSockets
        images = scope["path"] in self.image_endpoints
        limit = self.settings.max_image_body_bytes if images else self.settings.max_body_bytes
        exchange = Exchange(scope, receive, send, self.settings, self.budget, limit)
        scope["reserve"] = exchange.reserve
        try:
            if scope["path"] not in ("/health", "/ready") and not self._may_use_models(scope):
                await self.turnstile.wait()
            await self._check_host(scope, receive)
            self._check_headers(scope, limit)
            if scope["method"] == "POST" and (error := self.rejection(client_address(scope))) is not None:
                await exchange.receive()  # read what has arrived, so that the connection can be kept alive
                raise error
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            log.warning("cancelled", extra={"id": exchange.id})  # the server stops, or the client does not read
        except ApiError as error:
            await exchange.send_error(error)
        except FAILURES as error:  # uvicorn would answer with plain text, or end the stream without a word
            if isinstance(error.__cause__, ApiError):  # Starlette wraps what is raised after the head
                await exchange.send_error(error.__cause__)
            else:
                log.exception("failure", extra={"id": exchange.id})
                self.metrics.failures.labels(scope.get("model") or "").inc()
                await exchange.send_error(FAILURE)
        finally:
            self.budget.release(exchange.reserved)
            self._record(scope, exchange)

    async def _check_host(self, scope: Scope, receive: Receive) -> None:
        """Reject other names in the Host header (DNS rebinding) by Starlette's check, with our JSON error instead of its text."""

        async def accept(scope: Scope, receive: Receive, send: Send) -> None:
            pass

        async def reject(message: Message) -> None:
            raise ApiError(421, "this server does not answer to that Host; start it with --allow-host NAME", code="host")

        await TrustedHostMiddleware(accept, self.trusted_hosts, www_redirect=False)(scope, receive, reject)

    def _may_use_models(self, scope: Scope) -> bool:
        """Whether a request is for more than the page and /health, and has the token, if there is one."""
        if not is_private(scope["path"]):
            return False
        given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        return self.settings.token is None or hmac.compare_digest(given, b"Bearer " + self.settings.token.encode())

    def _check_headers(self, scope: Scope, body_limit: int) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        cross_site = headers.get(b"sec-fetch-site", [b"none"])[0] == b"cross-site" and scope["method"] != "GET"
        if cross_site or any(origin_host(origin) not in self.settings.host_names for origin in headers.get(b"origin", [])):
            raise ApiError(403, "pages of other sites may not use this server", code="origin")
        private = is_private(scope["path"])
        if private and not self._may_use_models(scope):
            raise ApiError(401, "send the server's token: Authorization: Bearer TOKEN", code="token")
        if private and "connection" in scope:
            scope["connection"].accept()
        if scope["method"] in ("POST", "PUT", "PATCH"):
            media_type = headers.get(b"content-type", [b""])[0].partition(b";")[0].strip().lower()
            if scope["method"] == "POST" and scope["path"].startswith("/v1/") and media_type != b"application/json":
                raise ApiError(415, "send JSON: Content-Type: application/json", code="content_type")
            length = headers.get(b"content-length", [b""])[0]
            if length.isdigit():
                check_body_size(int(length[:12]), body_limit)

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

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings, budget: RequestMemory, body_limit: int
    ):
        self.scope, self.settings, self._receive, self._send = scope, settings, receive, send
        self.budget, self.body_limit = budget, body_limit
        self.start, self.id = time.monotonic(), secrets.token_hex(8)
        self.received = self.sent = self.status = self.reserved = 0
        self.complete = False
        """Whether the whole body was received."""
        self.head: Message | None = None
        """The head of the response, until its first bytes are there: it can still become an error."""

    def reserve(self, number: int) -> None:
        """Count bytes that this request takes until its response is sent; refuse it where all requests take too much."""
        self.budget.reserve(number)
        self.reserved += number

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        remaining = self.start + self.settings.body_timeout - time.monotonic()
        try:
            async with asyncio.timeout(max(0.001, remaining)):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408, f"the body did not arrive within {self.settings.body_timeout:g} seconds", code="slow_body"
            ) from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.received += size
            self.complete = not message.get("more_body", False)
            check_body_size(self.received, self.body_limit)
            self.reserve(BODY_COPIES * size)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.head = message
            return
        body = message.get("body", b"")
        if len(body) > CHUNK_BYTES:
            self.reserve(len(body))
        deadline = time.monotonic() + self.settings.send_timeout + len(body) / CHUNK_BYTES
        if self.head is not None:
            head, self.head = self._complete_head(self.head), None
            await self._send_until(head, deadline)
        for start in range(0, max(1, len(body)), CHUNK_BYTES):
            last = start + CHUNK_BYTES >= len(body)
            piece = {
                "type": "http.response.body",
                "body": body[start : start + CHUNK_BYTES],
                "more_body": not last or message.get("more_body", False),
            }
            await self._send_until(piece, deadline)
        self.sent += len(body)

    async def send_error(self, error: ApiError) -> None:
        """Answer with an error; if a response has begun, it ends as it is."""
        if self.status == 0:
            await error.response()(self.scope, self._receive, self.send)

    def _complete_head(self, message: Message) -> Message:
        self.status = message["status"]
        present = {name.lower() for name, _ in message.get("headers", [])}
        added = [(b"x-request-id", self.id.encode()), *HEADERS]
        if b"cache-control" not in present:
            added.append((b"cache-control", b"no-store"))
        if not self.complete and self.scope["method"] not in ("GET", "HEAD"):
            added.append((b"connection", b"close"))  # an unread body would be parsed as the next request
        return {**message, "headers": [*message.get("headers", []), *added]}

    async def _send_until(self, message: Message, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                await self._send(message)
        except TimeoutError:
            raise ApiError(499, "the client does not read the response", code="client_disconnected") from None


def is_private(path: str) -> bool:
    """Whether a path needs the token: all but the page, /health and /ready."""
    return path.startswith("/v1") or path in ("/metrics", "/openapi.json")


def client_address(scope: Scope) -> str:
    return str((scope.get("client") or ["?"])[0])


def origin_host(origin: bytes) -> str | None:
    """Return the host of an Origin header in lower case and without brackets, or None."""
    try:
        return urlsplit(origin.decode("latin-1")).hostname
    except ValueError:
        return None


def check_body_size(size: int, limit: int) -> None:
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
    """Log our events, and the warnings of uvicorn and asyncio, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    for name, threshold in (("regard.server", level), ("uvicorn.error", logging.WARNING), ("asyncio", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(threshold)

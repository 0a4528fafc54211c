"""HTTP/1.1 by uvicorn and h11, with limits that they lack: on the size of a head, on pipelined requests, and on the time that a
client takes to send a head or to read a response. What is not HTTP is answered in JSON."""

import asyncio
import re

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from regard.server.errors import ApiError
from regard.server.network.connection_table import ConnectionTable

MAX_HEAD_BYTES = 16_384
MAX_PIPELINED_BYTES = 65_536
"""Bytes that a client may send ahead while a response is under way."""
PROGRESS_BYTES = 65_536
"""A client has to read so much within the time limit, or all there is."""
END_OF_HEAD = re.compile(rb"\n\r?\n")


class LimitedConnection(h11.Connection):
    """An h11 connection that refuses long heads even if they arrive in one piece, and keeps the status for what it refused."""

    error_status = 400

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            buffered = self.trailing_data[0]
            end = END_OF_HEAD.search(buffered, 0, MAX_HEAD_BYTES)
            if end is None and len(buffered) > MAX_HEAD_BYTES:
                self.error_status = 431
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return super().next_event()


class LimitedProtocol(H11Protocol):
    """One connection of a server; its class attribute `table` holds all of them."""

    table: ConnectionTable
    address = "?"
    waiting_since: float | None = None
    """When it began to wait for the head of a request; None while it has one."""
    unread, unread_since = 0, 0.0
    """Bytes that the client has not read, when it last made progress with them; and when that was."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = LimitedConnection(h11.SERVER, MAX_HEAD_BYTES)
        self.app = self.call_app
        self.address = self.client[0] if self.client else "?"
        self.waiting_since = self.loop.time()
        self.table.add(self)

    async def call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and let it accept this connection."""
        scope["connection"] = self
        await self.config.loaded_app(scope, receive, send)

    def accept(self) -> None:
        """Note that a request was accepted; raise an ApiError if too many connections have got that far."""
        self.table.accept(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and self.waiting_since is not None:
            self.waiting_since = None
            self.table.note_progress(self)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > MAX_PIPELINED_BYTES:
            self.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.table.note_progress(self)
        if self.conn.their_state is h11.IDLE:
            self.waiting_since = self.loop.time()

    def resume_writing(self) -> None:
        """Called when the client has read most of what it was sent."""
        super().resume_writing()
        self.table.note_progress(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        self.transport.abort()

    def is_stalled(self) -> bool:
        return self.waiting_since is not None or self.transport.get_write_buffer_size() > 0

    def is_late(self, now: float) -> bool:
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread <= self.unread - PROGRESS_BYTES or self.unread == 0:
            self.unread, self.unread_since = unread, now
        settings = self.table.settings
        head_is_late = self.waiting_since is not None and now - self.waiting_since > settings.head_timeout
        return head_is_late or (unread > 0 and now - self.unread_since > settings.send_timeout)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or too long a head, in the form of all errors."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response is under way
            self.abort()
            return
        too_large = getattr(self.conn, "error_status", 400) == 431
        message = f"the head of the request is larger than {MAX_HEAD_BYTES:,} bytes" if too_large else "this is not HTTP/1.1"
        response = ApiError(431 if too_large else 400, message, code="too_large" if too_large else "http").response()
        headers = [*response.raw_headers, (b"connection", b"close"), (b"cache-control", b"no-store")]
        for event in (
            h11.Response(status_code=response.status_code, headers=headers, reason=STATUS_PHRASES[response.status_code]),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

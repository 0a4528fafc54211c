"""Connections: uvicorn with limits that it lacks. The head of a request has to arrive in time; of too many connections, the
oldest one that waits for a head is closed."""

import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Mapping

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import UserError
from regard.server.app import create_app
from regard.server.limits import log, log_to_stderr
from regard.server.settings import ServerSettings
from regard.tasks.base import Run

MAX_HEAD_BYTES = 16_384
KEEP_ALIVE_SECONDS = 5
SWITCH_INTERVAL = 0.0005
"""Seconds after which a model's thread that holds the GIL lets the event loop run."""
CLOSE_SECONDS = 2
"""Seconds for clients to read that their job was cancelled, when the server stops."""
BACKLOG = 2048


def limited_protocol(settings: ServerSettings) -> type[H11Protocol]:
    """Return a protocol class that closes connections whose request head is late; its instances share the list of those."""
    waiting: dict[H11Protocol, None] = {}
    """Connections without a complete head, oldest first."""

    class LimitedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.wait_for_head()
            if len(self.connections) > settings.max_connections and waiting:
                oldest = next(iter(waiting))
                waiting.pop(oldest)
                oldest.transport.abort()

        def wait_for_head(self) -> None:
            self.stop_waiting()
            waiting[self] = None
            self.timer = self.loop.call_later(settings.head_timeout, self.transport.close)

        def stop_waiting(self) -> None:
            waiting.pop(self, None)
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self.stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
                self.wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

    return LimitedProtocol


def bind_socket(settings: ServerSettings) -> socket.socket:
    """Bind the server's address, before any model is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or "no such address"
        raise UserError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({reason}); choose another"
        ) from None
    return bound


def socket_url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class GracefulServer(uvicorn.Server):
    """A uvicorn server that lets running streams finish for a while, then cancels them and says so."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cancelling = asyncio.create_task(self._cancel_after_grace())
        await super().shutdown(sockets)
        cancelling.cancel()

    async def _cancel_after_grace(self) -> None:
        state = self.config.app.state  # type: ignore[union-attr]
        await asyncio.sleep(state.settings.shutdown_grace)
        for worker in state.models.workers:
            worker.stop()


def create_server(runs: Mapping[str, Run], settings: ServerSettings) -> GracefulServer:
    return GracefulServer(
        uvicorn.Config(
            create_app(runs, settings),
            http=limited_protocol(settings),
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + CLOSE_SECONDS,
            proxy_headers=False,
        )
    )


def serve(runs: Mapping[str, Run], settings: ServerSettings, bound: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then let running streams finish within the grace period and cancel the rest."""
    log_to_stderr()
    server = create_server(runs, settings)
    sys.setswitchinterval(SWITCH_INTERVAL)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again after its shutdown, when all is done
        signal.signal(number, lambda *_: None)
    log.info("serving", extra={"address": socket_url(bound), "models": ", ".join(runs)})
    server.run(sockets=[bound])
    log.info("stopped")
    sys.stderr.flush()
    os._exit(0)  # tearing down torch takes seconds, and a model's thread cannot be interrupted

"""Connections: uvicorn's, with limits that it does not have. A request's head has to come in time; where too many connections
wait without one, the oldest goes."""

import asyncio
import math
import os
import signal
import socket
import sys
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import UserError
from regard.server.app import create_app
from regard.server.limits import log, log_to_stderr
from regard.server.settings import ServerSettings

MAX_HEAD_BYTES = 16_384
KEEP_ALIVE_SECONDS = 5
"""Seconds that a connection is kept between two requests."""
SWITCH_INTERVAL = 0.0005
"""Seconds after which a model's thread, where it holds Python, lets the connections have it."""
CLOSE_SECONDS = 2
"""Seconds for clients to hear that what they asked for was given up."""
BACKLOG = 2048
"""Connections that the system holds until they are taken."""


def limited_protocol(settings: ServerSettings) -> type[H11Protocol]:
    headless: dict[H11Protocol, None] = {}
    """Connections without a whole head, the oldest first."""

    class Limited(H11Protocol):
        clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.wait_for_head()
            if len(self.connections) > settings.connections and headless:
                oldest = next(iter(headless))
                headless.pop(oldest)
                oldest.transport.abort()

        def wait_for_head(self) -> None:
            self.stop_waiting()
            headless[self] = None
            self.clock = self.loop.call_later(settings.head_seconds, self.transport.close)

        def stop_waiting(self) -> None:
            headless.pop(self, None)
            if self.clock is not None:
                self.clock.cancel()
                self.clock = None

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

    return Limited


def bind_socket(settings: ServerSettings) -> socket.socket:
    """The address taken, before anything is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        taken.close()
        reason = getattr(error, "strerror", None) or "no such address"
        raise UserError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({reason}); choose another"
        ) from None
    return taken


def socket_url(taken: socket.socket) -> str:
    host, port = taken.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class GracefulServer(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What is being written may end for a while; then it is told that it will not."""
        giving_up = asyncio.create_task(self.give_up())
        await super().shutdown(sockets)
        giving_up.cancel()

    async def give_up(self) -> None:
        state = self.config.app.state  # type: ignore[union-attr]
        await asyncio.sleep(state.settings.grace)
        for worker in state.models.workers:
            worker.stop()


def create_server(runs: dict[str, Any], settings: ServerSettings) -> GracefulServer:
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
            timeout_graceful_shutdown=math.ceil(settings.grace) + CLOSE_SECONDS,
            proxy_headers=False,
        )
    )


def serve(runs: dict[str, Any], settings: ServerSettings, taken: socket.socket) -> None:
    """Until a signal comes: then what is being written may end, for a while, and the rest is given up."""
    log_to_stderr()
    server = create_server(runs, settings)
    sys.setswitchinterval(SWITCH_INTERVAL)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again when it has stopped; by then all is done
        signal.signal(number, lambda *_: None)
    log.info("serving", extra={"address": socket_url(taken), "models": ", ".join(runs)})
    server.run(sockets=[taken])
    log.info("stopped")
    sys.stderr.flush()
    os._exit(0)  # taking torch apart takes seconds; what cannot be given up may still go on

"""Listen, accept connections, and serve until a signal: uvicorn, but for the way that connections are accepted."""

import asyncio
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import uvicorn

from regard.errors import UserError
from regard.server.app import create_app
from regard.server.limits import log, log_to_stderr
from regard.server.network.connection_table import LOG_SECONDS, ConnectionTable, PendingConnection, close_late_connections
from regard.server.network.http_protocol import LimitedProtocol
from regard.server.settings import ServerSettings
from regard.tasks.base import Run

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

KEEP_ALIVE_SECONDS = 5
SWITCH_INTERVAL = 0.0005
"""Seconds after which a model's thread that holds the GIL lets the event loop run."""
CLOSE_SECONDS = 2
"""Seconds for clients to read that their job was cancelled, when the server stops."""
BACKLOG = 2048
OPENED_PER_ROUND = 8
"""Connections that get a protocol in one round of the event loop; more would make the round long for all others."""
SEND_BUFFER_BYTES = 65_536
"""Of the kernel, for each connection: what a client does not read waits here, or is not made yet."""
RETRY_SECONDS = 0.05
"""Pause after a connection could not be accepted."""
SPARE_DESCRIPTORS = 256
"""Open files besides the connections: models, the log, template processes, and connections about to be closed."""
MIN_CONNECTIONS = 16


def available_connections(settings: ServerSettings) -> int:
    """Return how many connections the process can hold with descriptors to spare; raise its limit of open files if it may."""
    if resource is None:
        return settings.max_connections
    needed = settings.max_connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings.max_connections
    if soft - SPARE_DESCRIPTORS < MIN_CONNECTIONS:
        raise UserError(f"ulimit -n {soft}: too few open files for a server; set at least {SPARE_DESCRIPTORS + MIN_CONNECTIONS}")
    log.warning("few_files", extra={"open_files": soft, "connections": soft - SPARE_DESCRIPTORS})
    return soft - SPARE_DESCRIPTORS


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


def accept_waiting(bound: socket.socket) -> list[PendingConnection]:
    """Return the connections that wait to be accepted."""
    accepted = []
    with suppress(OSError):  # none is left, or no descriptor: the next round finds out
        for _ in range(BACKLOG):
            accepted.append(PendingConnection(*bound.accept()))
    return accepted


class GracefulServer(uvicorn.Server):
    """A uvicorn server that accepts connections itself; when it stops, running streams may finish for a while."""

    def __init__(self, config: uvicorn.Config, table: ConnectionTable):
        super().__init__(config)
        self.table = table
        self.background: list[asyncio.Task[None]] = []
        self.pending: list[PendingConnection] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self.background = [asyncio.create_task(self._accept_connections(bound)) for bound in sockets or []]
        self.background.append(asyncio.create_task(close_late_connections(self.table)))

    async def _accept_connections(self, bound: socket.socket) -> None:
        """Accept all connections that wait, and open the newest few in each round of the event loop: a burst of connections
        delays no one who comes after it (adaptive LIFO, Maurer, ACM Queue 13(8), 2015), and those that are closed because there
        are too many cost little. asyncio opens thousands in turn, and logs a traceback for each that it has no descriptor for."""
        loop, logged = asyncio.get_running_loop(), -math.inf
        bound.setblocking(False)
        bound.listen(BACKLOG)
        while True:
            accepted = []
            try:
                if not self.pending:
                    accepted.append(PendingConnection(*await loop.sock_accept(bound)))
            except OSError as error:  # no descriptors: those in reserve are used up, or the whole machine's are
                self.table.evict_one()
                if loop.time() - logged > LOG_SECONDS:
                    log.warning("cannot_accept", extra={"reason": error.strerror, "open": len(self.server_state.connections)})
                    logged = loop.time()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for connection in [*accepted, *accept_waiting(bound)]:
                self.table.add(connection)
                self.pending.append(connection)
            self.pending = [connection for connection in self.pending if connection.is_open]
            opening = [self._open(self.pending.pop()) for _ in range(min(OPENED_PER_ROUND, len(self.pending)))]
            await asyncio.gather(*opening, return_exceptions=True)  # a client may have left already

    async def _open(self, connection: PendingConnection) -> None:
        """Give a connection its protocol, which takes its place in the table."""
        self.table.remove(connection)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        await asyncio.get_running_loop().connect_accepted_socket(self._create_protocol, connection.socket)

    def _create_protocol(self) -> asyncio.Protocol:
        protocol_class = cast(type[LimitedProtocol], self.config.http_protocol_class)
        return protocol_class(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self.background:
            task.cancel()
        for connection in self.pending:
            connection.abort()
        cancelling = asyncio.create_task(self._cancel_after_grace())
        await super().shutdown(sockets)
        cancelling.cancel()

    async def _cancel_after_grace(self) -> None:
        state = self.config.app.state  # type: ignore[union-attr]
        await asyncio.sleep(state.settings.shutdown_grace)
        for worker in state.models.workers:
            worker.stop()


def create_server(runs: Mapping[str, Run], settings: ServerSettings) -> GracefulServer:
    app = create_app(runs, settings)
    shared_table = ConnectionTable(settings, app.state.metrics, available_connections(settings))

    class ServerProtocol(LimitedProtocol):
        table = shared_table

    config = uvicorn.Config(
        app,
        http=ServerProtocol,
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace) + CLOSE_SECONDS,
        proxy_headers=False,
    )
    return GracefulServer(config, shared_table)


def serve(runs: Mapping[str, Run], settings: ServerSettings, bound: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then let running streams finish within the grace period and cancel the rest."""
    log_to_stderr()
    server = create_server(runs, settings)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # a full collection would go through all modules and models, and stop every thread for 160 ms
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again after its shutdown, when all is done
        signal.signal(number, lambda *_: None)
    log.info("serving", extra={"address": socket_url(bound), "models": ", ".join(runs)})
    server.run(sockets=[bound])
    log.info("stopped")
    sys.stderr.flush()
    os._exit(0)  # tearing down torch takes seconds, and a model's thread cannot be interrupted

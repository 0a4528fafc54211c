"""The open connections of a server: how many there may be, and which are closed first."""

import asyncio
import logging
import socket
from collections import Counter
from itertools import chain
from typing import Protocol

from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.settings import ServerSettings

log = logging.getLogger("regard.server")
LOG_SECONDS = 10.0
"""At most one line about closed connections in this time, however many there are."""


class TrackedConnection(Protocol):
    """What the table asks of a connection."""

    address: str

    def abort(self) -> None:
        """Close it at once, and drop what it has not sent."""

    def is_late(self, now: float) -> bool:
        """Whether its client has let a time limit pass."""

    def is_stalled(self) -> bool:
        """Whether it waits for its client: to send a request, or to read a response."""


class PendingConnection:
    """A connection that is accepted and waits to be opened: its client has shown nothing yet."""

    def __init__(self, accepted: socket.socket, peer: tuple[str, int]):
        accepted.setblocking(False)
        self.socket, self.address = accepted, str(peer[0])

    @property
    def is_open(self) -> bool:
        return self.socket.fileno() >= 0

    def abort(self) -> None:
        self.socket.close()

    def is_late(self, now: float) -> bool:
        return False

    def is_stalled(self) -> bool:
        return True


class ConnectionTable:
    """Connections by what they have shown so far, least recent progress first.

    A connection is new until one of its requests is accepted (with the right token, if there is one). Progress is a complete
    head, or a response that is sent or read. There is always room for a new connection: if there are too many, the new one whose
    last progress is longest ago is closed. Accepted ones leave a share of the room to new ones, and so to /health.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics, limit: int):
        self.settings, self.metrics, self.limit = settings, metrics, limit
        self.new: dict[TrackedConnection, None] = {}
        self.accepted: dict[TrackedConnection, None] = {}
        self.by_address: Counter[str] = Counter()
        self._closed = 0
        self._logged = -LOG_SECONDS

    @property
    def max_accepted(self) -> int:
        return self.limit - max(1, self.limit // 8)

    @property
    def max_per_address(self) -> int:
        return max(1, self.limit // 2)

    def add(self, connection: TrackedConnection) -> None:
        """Add a new connection; close another one if there are too many in all, or from this address."""
        self.new[connection] = None
        self.by_address[connection.address] += 1
        if self.by_address[connection.address] > self.max_per_address:
            self._evict(connection, connection.address)
        elif len(self.new) + len(self.accepted) > self.limit:
            self._evict(connection)

    def remove(self, connection: TrackedConnection) -> None:
        if connection in self.new or connection in self.accepted:
            self.new.pop(connection, None)
            self.accepted.pop(connection, None)
            self.by_address[connection.address] -= 1
            if not self.by_address[connection.address]:
                del self.by_address[connection.address]

    def note_progress(self, connection: TrackedConnection) -> None:
        """Make a connection the last one to be closed among those like it."""
        for group in (self.new, self.accepted):
            if connection in group:
                del group[connection]
                group[connection] = None

    def accept(self, connection: TrackedConnection) -> None:
        """Note that a request of a connection was accepted; refuse it if too many connections have got that far and are busy."""
        if connection not in self.new:
            return
        if len(self.accepted) >= self.max_accepted:
            stalled = next((one for one in self.accepted if one.is_stalled()), None)
            if stalled is None:
                message = f"{len(self.accepted)} clients are connected already; try again later"
                raise ApiError(503, message, code="too_many_connections", retry_after=5)
            self._close(stalled, "limit")
        del self.new[connection]
        self.accepted[connection] = None

    def close_late(self, now: float) -> None:
        """Close the connections whose clients have let a time limit pass."""
        for connection in [one for group in (self.new, self.accepted) for one in group if one.is_late(now)]:
            self._close(connection, "late")
        if self._closed and now - self._logged >= LOG_SECONDS:
            log.warning("connections_closed", extra={"number": self._closed, "open": len(self.new) + len(self.accepted)})
            self._closed, self._logged = 0, now

    def evict_one(self) -> None:
        """Close the connection that matters least: the process has run out of descriptors."""
        self._evict(None)

    def _evict(self, newcomer: TrackedConnection | None, address: str | None = None) -> None:
        """Close the new connection with the least recent progress, or a stalled one, or else the newcomer itself."""
        rest = (one for one in self.new if one is not newcomer and address in (None, one.address))
        stalled = (one for one in self.accepted if address in (None, one.address) and one.is_stalled())
        victim = next(chain(rest, stalled), newcomer)
        if victim is not None:
            self._close(victim, "limit")

    def _close(self, connection: TrackedConnection, reason: str) -> None:
        self.remove(connection)
        self._closed += 1
        self.metrics.closed_connections.labels(reason).inc()
        connection.abort()


async def close_late_connections(table: ConnectionTable) -> None:
    """Look after the time limits of all connections, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(1.0, table.settings.head_timeout / 4))
        table.close_late(loop.time())

"""How a server is run: where it listens, whom it answers, and how much it takes on."""

import ipaddress
import math
from dataclasses import dataclass

from regard.errors import UserError

MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`; needed wherever others can reach the server."""
    allowed_hosts: tuple[str, ...] = ()
    """Names it answers to besides its address and localhost."""
    max_batch_size: int = 64
    """Texts that a model writes at the same time."""
    queue: int = 256
    """Texts that wait for a model; more are refused at once."""
    deadline: float = 60.0
    """Seconds for a request, from its last byte to the last of its answer."""
    body: int = 1_000_000
    """Bytes of a request;"""
    picture_body: int = 8_100_000
    """of one with a picture in it."""
    pixels: int = 16_000_000
    """Of a picture."""
    head_seconds: float = 10.0
    """For the head of a request,"""
    body_seconds: float = 20.0
    """for its body,"""
    send_seconds: float = 30.0
    """and for a client to take what it is sent."""
    connections: int = 1000
    grace: float = 5.0
    """Seconds that streams have to end when the server is told to."""

    def __post_init__(self) -> None:
        if not self.loopback and self.token is None:
            raise UserError(
                f"--host {self.host} can be reached from elsewhere: set a token, which clients must send "
                "(REGARD_TOKEN=…), or leave --host out"
            )
        if self.token is not None and (
            len(self.token) < MIN_TOKEN_LENGTH or not self.token.isascii() or not self.token.isprintable() or " " in self.token
        ):
            raise UserError(
                f"the token should be at least {MIN_TOKEN_LENGTH} printable ASCII characters without a space; one is made "
                "by: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        for name in ("max_batch_size", "queue", "connections", "deadline"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: should be more than 0")
        if not 0 <= self.port < 65536:
            raise UserError(f"--port {self.port}: should be from 0 (any that is free) to 65535")
        for name in self.allowed_hosts:
            if not name or any(letter.isspace() or letter in "/@?#" for letter in name):
                raise UserError(f"--allow-host {name!r}: should be a name such as models.example.org, without a scheme or a path")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_names(self) -> frozenset[str]:
        """The names in Host headers that are meant for it."""
        return frozenset(
            name.lower().strip("[]")
            for name in ("localhost", "127.0.0.1", "::1", self.host, *self.allowed_hosts)
            if name not in ("0.0.0.0", "::")
        )

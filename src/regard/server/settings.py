"""How a server runs: its address, who may use it, and its limits."""

import ipaddress
import math
from dataclasses import dataclass

from regard.errors import UserError

MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server, checked when they are made."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    """Clients send it as `Authorization: Bearer TOKEN`; required unless the server listens on loopback only."""
    allowed_hosts: tuple[str, ...] = ()
    """Names accepted in the Host header besides the server's address and localhost."""
    max_batch_size: int = 64
    """Texts that a model decodes together."""
    max_queue: int = 256
    """Texts that may wait for a model; further ones are rejected at once."""
    timeout: float = 60.0
    """Seconds for a request, from its last byte to the last byte of its response."""
    max_body_bytes: int = 1_000_000
    max_image_body_bytes: int = 8_100_000
    """For endpoints that take an image."""
    max_pixels: int = 16_000_000
    """Of one image."""
    head_timeout: float = 10.0
    """Seconds to receive the head of a request."""
    body_timeout: float = 20.0
    """Seconds to receive the body of a request."""
    send_timeout: float = 30.0
    """Seconds until the client has to read what it is sent."""
    max_connections: int = 1000
    """Half of them from one address; fewer where the process may not open so many files."""
    max_request_bytes: int = 256_000_000
    """Memory for the bodies, images and responses of all requests together."""
    shutdown_grace: float = 5.0
    """Seconds that running streams have to finish when the server stops."""

    def __post_init__(self) -> None:
        if not self.loopback and self.token is None:
            raise UserError(
                f"--host {self.host} can be reached from other machines: set a token that clients must send (REGARD_TOKEN=…), "
                "or leave --host out"
            )
        if self.token is not None and (
            len(self.token) < MIN_TOKEN_LENGTH or not self.token.isascii() or not self.token.isprintable() or " " in self.token
        ):
            raise UserError(
                f"REGARD_TOKEN should be at least {MIN_TOKEN_LENGTH} printable ASCII characters without a space; make one with: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        for name in ("max_batch_size", "max_queue", "max_connections", "timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: should be more than 0")
        if not 0 <= self.port < 65536:
            raise UserError(f"--port {self.port}: should be from 0 (any free port) to 65535")
        for name in self.allowed_hosts:
            if not name or any(letter.isspace() or letter in "/@?#*" for letter in name):
                raise UserError(
                    f"--allow-host {name!r}: should be a name such as models.example.org, without a scheme, path or *"
                )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_names(self) -> frozenset[str]:
        """The names that the server answers to, in lower case and without brackets."""
        names = ("localhost", "127.0.0.1", "::1", self.host, *self.allowed_hosts)
        return frozenset(name.lower().strip("[]") for name in names if name not in ("0.0.0.0", "::"))

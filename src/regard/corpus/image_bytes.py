"""Where a picture's bytes lie."""

from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError

MAX_NAME_LENGTH = 200
MAX_IMAGE_BYTES = 2**28
"""Bytes of one picture."""


@dataclass(frozen=True)
class ImageFile:
    """Where a picture's bytes lie: in a file of its own, or from `offset` on in one with others."""

    path: Path
    name: str = ""
    """What it is called inside the file."""
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.name}" if self.name else str(self.path))

    def read(self) -> bytes:
        try:
            if self.path.is_dir():
                raise UserError(f"{self} is a folder; give a picture")
            if self.path.exists() and not self.path.is_file():
                raise UserError(f"{self} is not a regular file; give a picture")
            with self.path.open("rb") as file:
                file.seek(self.offset)
                found = file.read(MAX_IMAGE_BYTES + 1 if self.length is None else min(self.length, MAX_IMAGE_BYTES + 1))
        except FileNotFoundError:
            raise UserError(f"no picture {self}") from None
        except OSError as error:
            raise UserError(f"cannot read {self}: {error.strerror or error}") from None
        except ValueError:
            raise UserError(f"{self} is not the name of a file") from None
        if len(found) > MAX_IMAGE_BYTES:
            raise UserError(f"{self} has more than {MAX_IMAGE_BYTES:,} bytes; make it smaller, or leave it out")
        if self.length is not None and len(found) < self.length:
            raise UserError(f"{self} should have {self.length:,} bytes and has {len(found):,}; fetch the file again")
        return found


def printable(name: str) -> str:
    """A name that came from anywhere, in one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:MAX_NAME_LENGTH]

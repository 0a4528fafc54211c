"""Where a picture's bytes lie."""

from dataclasses import dataclass
from pathlib import Path

from regard.errors import Mistake

LONGEST_NAME = 200


@dataclass(frozen=True)
class Piece:
    """Where a picture's bytes lie: in a file of its own, or from `offset` on in one with others."""

    path: Path
    name: str = ""
    """What it is called inside the file."""
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        return shown(f"{self.path}: {self.name}" if self.name else str(self.path))

    def read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                found = file.read() if self.length is None else file.read(self.length)
        except IsADirectoryError:
            raise Mistake(f"{self} is a folder; give a picture") from None
        except FileNotFoundError:
            raise Mistake(f"no picture {self}") from None
        except OSError as error:
            raise Mistake(f"cannot read {self}: {error.strerror or error}") from None
        if self.length is not None and len(found) < self.length:
            raise Mistake(f"{self} should have {self.length:,} bytes and has {len(found):,}; fetch the file again")
        return found


def shown(name: str) -> str:
    """A name that came from anywhere, in one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:LONGEST_NAME]

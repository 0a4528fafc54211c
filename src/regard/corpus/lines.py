"""Lines of text from plain, .gz or .xz files.

Lines end at LF; CRLF counts as LF, a BOM is dropped, the last newline may be missing, U+2028 is an ordinary character.
Invalid UTF-8, UTF-16, NUL, a CR inside a line and overlong lines are refused with file and line, without reading on.
"""

import gzip
import lzma
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from regard.errors import UserError

BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
MAX_LINE_BYTES = 4 * 2**20
MAX_JSON_BYTES = 2**30
"""A whole .json file may be one line."""
MAX_EXPANSION = 100
"""Text compresses to a third or a tenth; a file that expands more than this, and beyond the size below, is refused."""
MIN_EXPANSION_BYTES = 8 * 2**20
MAX_NAME_LENGTH = 200


def read_lines(path: Path) -> list[str]:
    """Return all lines of a file; refuse an empty file."""
    lines = list(iterate_lines(path))
    if not lines:
        raise UserError(f"{path} is empty")
    return lines


def iterate_lines(path: Path, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yield the lines of a file, each of at most `max_bytes`."""
    with _open_binary(path) as file:
        try:
            for number, raw in enumerate(_raw_lines(file, path, max_bytes), start=1):
                yield decode_line(raw, path, number)
        except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
            raise UserError(f"{path} is not a whole {path.suffix} file ({error}); fetch or compress it again") from None
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def _raw_lines(file: BinaryIO, path: Path, max_bytes: int) -> Iterator[bytes]:
    """Yield lines, with one of them in memory at a time."""
    limit = max(MIN_EXPANSION_BYTES, MAX_EXPANSION * path.stat().st_size)
    number = read = 0
    while raw := file.readline(max_bytes + 1):
        number, read = number + 1, read + len(raw)
        if len(raw) > max_bytes:
            raise UserError(f"{path}:{number} is longer than {max_bytes:,} bytes; break it into lines, if it is text at all")
        if read > limit:
            raise UserError(
                f"{path} expands to more than {MAX_EXPANSION} times its size, as a decompression bomb does; "
                "decompress it yourself, if you trust it"
            )
        yield raw


def _open_binary(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder; give a text file")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is not a regular file; give a text file")
        match path.suffix:
            case ".gz":
                return cast(BinaryIO, gzip.open(path, "rb"))
            case ".xz":
                return cast(BinaryIO, lzma.open(path, "rb"))
            case _:
                return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(path) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"{str(path)!r} is not the name of a file") from None


def missing_file(path: Path, kind: str = "file") -> UserError:
    """Return the error of a file that does not exist, with the whole path: a relative one starts at the working folder."""
    return UserError(f"no {kind} {path.absolute()}; relative paths start at data.root")


def decode_line(raw: bytes, path: Path, number: int) -> str:
    """Return a line without its end, decoded; refuse anything but UTF-8 text."""
    if number == 1:
        if raw.startswith(UTF16):
            raise UserError(f"{path}:1 is UTF-16; save the file as UTF-8")
        raw = raw.removeprefix(BOM)
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in raw:
        raise UserError(f"{path}:{number} has a NUL byte; the file is not text, or is UTF-16: save it as UTF-8")
    if b"\r" in raw:
        raise UserError(f"{path}:{number} has a carriage return inside the line; save the file with line ends LF or CRLF")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number} is not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None


def printable(name: str) -> str:
    """Return a name of unknown origin on one line, for a message."""
    return "".join(char if char.isprintable() else "?" for char in name)[:MAX_NAME_LENGTH]

"""Lines of text from plain, .gz or .xz files.

Lines end at LF; CRLF counts as LF, a BOM is dropped, the last newline may be missing, U+2028 is an ordinary character.
Invalid UTF-8, UTF-16 and NUL are refused by file and line.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from regard.errors import Mistake

BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: Path) -> list[str]:
    """All lines of a file; an empty file is a mistake."""
    lines = list(iterate_lines(path))
    if not lines:
        raise Mistake(f"{path} is empty")
    return lines


def iterate_lines(path: Path) -> Iterator[str]:
    with open_binary(path) as file:
        try:
            for number, raw in enumerate(file, start=1):
                yield decode_line(raw, path, number)
        except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
            raise Mistake(f"{path} is not a whole {path.suffix} file ({error}); fetch or compress it again") from None
        except OSError as error:
            raise Mistake(f"cannot read {path}: {error.strerror or error}") from None


def open_binary(path: Path) -> BinaryIO:
    if path.is_dir():
        raise Mistake(f"{path} is a folder; give a text file")
    if not path.exists():
        raise Mistake(f"no file {path}; relative paths start at data.root")
    if not path.is_file():
        raise Mistake(f"{path} is not a regular file; give a text file")
    try:
        match path.suffix:
            case ".gz":
                return cast(BinaryIO, gzip.open(path, "rb"))
            case ".xz":
                return cast(BinaryIO, lzma.open(path, "rb"))
            case _:
                return path.open("rb")
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror or error}") from None


def decode_line(raw: bytes, path: Path, number: int) -> str:
    if number == 1:
        if raw.startswith(UTF16):
            raise Mistake(f"{path}:1 is UTF-16; save the file as UTF-8")
        raw = raw.removeprefix(BOM)
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in raw:
        raise Mistake(f"{path}:{number} has a NUL byte; the file is not text, or is UTF-16: save it as UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Mistake(f"{path}:{number} is not UTF-8 (byte {error.start + 1}); save the file as UTF-8") from None

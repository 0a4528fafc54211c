"""Read JSON settings written by others: every value is checked before it is used."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError

MAX_JSON_BYTES = 32 * 2**20
MISSING = object()


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file of unknown origin."""
    try:
        if path.stat().st_size > max_bytes:
            raise UserError(f"{path} is larger than {max_bytes // 2**20} MB; that is not a settings file")
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(values).__name__}")
    return values


@dataclass(frozen=True)
class ConfigFile:
    """Settings and the file that they come from."""

    values: dict[str, Any]
    path: Path

    def get(self, name: str) -> Any:
        """Return the value of a dotted name; MISSING where it is absent or null."""
        value: Any = self.values
        for key in name.split("."):
            value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        return MISSING if value is None else value

    def section(self, name: str) -> "ConfigFile":
        """Return a nested object as settings, empty where there is none; the whole where `name` is empty."""
        value = self.get(name) if name else self.values
        return ConfigFile(value if isinstance(value, dict) else {}, self.path)

    def read(self, name: str, value_type: "ValueType") -> Any:
        """Return the converted value of a name."""
        return self.convert(name, self.get(name), value_type)

    def convert(self, name: str, value: Any, value_type: "ValueType") -> Any:
        try:
            return value_type.read(value)
        except ValueError as error:
            raise self.error(name, value, str(error)) from None

    def error(self, name: str, value: Any, expected: str) -> UserError:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + " …"
        return UserError(f"{self.path}: {name} = {shown}: {expected}")


@dataclass(frozen=True)
class ValueType:
    """How a value of theirs becomes one of ours, and back. `read` raises a ValueError that says what it should be."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def integer(maximum: int = 2**20, minimum: int = 1, offset: int = 0) -> ValueType:
    """An integer; theirs is `offset` larger than ours."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value - offset <= maximum:
            raise ValueError(f"should be an integer from {minimum + offset} to {maximum + offset}")
        return value - offset

    return ValueType(read, lambda value: value + offset)


def int_or_pair(maximum: int = 8192) -> ValueType:
    """One integer, or two: height and width."""
    side = integer(maximum)

    def read(value: Any) -> int | tuple[int, int]:
        if not isinstance(value, list | tuple):
            return side.read(value)
        if len(value) != 2:
            raise ValueError("should be one integer, or two")
        height, width = (side.read(one) for one in value)
        return height if height == width else (height, width)

    return ValueType(read, lambda value: list(value) if isinstance(value, list | tuple) else value)


def positive_float(maximum: float = 1e9) -> ValueType:
    """A positive number."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= maximum:
            raise ValueError(f"should be a number above 0, at most {maximum:g}")
        return float(value)

    return ValueType(read)


def boolean(*, true: Any = True, false: Any = False) -> ValueType:
    """A boolean of theirs; ours may have other values for true and false."""

    def read(value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError("should be true or false")
        return true if value else false

    def write(value: Any) -> bool:
        if value not in (true, false):
            raise ValueError
        return value == true

    return ValueType(read, write)


def choice(theirs_to_ours: dict[str, str]) -> ValueType:
    """One of several strings; where two of theirs mean the same, the first is written."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in theirs_to_ours:
            raise ValueError(f"is not supported; should be {' or '.join(theirs_to_ours)}")
        return theirs_to_ours[value]

    def write(value: Any) -> str:
        for theirs, ours in theirs_to_ours.items():
            if ours == value:
                return theirs
        raise ValueError

    return ValueType(read, write)

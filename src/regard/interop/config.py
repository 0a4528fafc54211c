"""A config.json as somebody else wrote it: nothing in it is believed before it is checked."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError

MAX_JSON_BYTES = 32 * 2**20
MISSING = object()


def read_json(path: Path, largest: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object from a file that may be anything."""
    try:
        if path.stat().st_size > largest:
            raise UserError(f"{path} is larger than {largest // 2**20} MB; that is not a settings file")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be read") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(found).__name__}")
    return found


@dataclass(frozen=True)
class ConfigFile:
    """Settings with the file they come from; `at` follows dots into parts."""

    values: dict[str, Any]
    path: Path

    def get(self, name: str) -> Any:
        """The value of a dotted name; MISSING where there is none, or none is given (null)."""
        found: Any = self.values
        for key in name.split("."):
            found = found.get(key, MISSING) if isinstance(found, dict) else MISSING
        return MISSING if found is None else found

    def section(self, name: str) -> "ConfigFile":
        """The settings of a part as such, empty where there is none."""
        found = self.get(name) if name else self.values
        return ConfigFile(found if isinstance(found, dict) else {}, self.path)

    def error(self, name: str, value: Any, should: str) -> UserError:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + " …"
        return UserError(f"{self.path}: {name} = {shown}: {should}")


@dataclass(frozen=True)
class ValueType:
    """How a value of theirs becomes one of ours, and back. `read` raises a ValueError that says what it should be."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def integer(most: int = 2**20, least: int = 1, plus: int = 0) -> ValueType:
    """A whole number; theirs counts `plus` more than ours."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value - plus <= most:
            raise ValueError(f"should be a whole number from {least + plus} to {most + plus}")
        return value - plus

    return ValueType(read, lambda value: value + plus)


def int_or_pair(most: int = 8192) -> ValueType:
    """One whole number, or two: height and width."""
    one = integer(most)

    def read(value: Any) -> int | tuple[int, int]:
        if not isinstance(value, list | tuple):
            return one.read(value)
        if len(value) != 2:
            raise ValueError("should be one whole number, or two")
        height, width = (one.read(side) for side in value)
        return height if height == width else (height, width)

    return ValueType(read, lambda value: list(value) if isinstance(value, list | tuple) else value)


def positive_float(most: float = 1e9) -> ValueType:
    """A positive number."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= most:
            raise ValueError(f"should be a number above 0, at most {most:g}")
        return float(value)

    return ValueType(read)


def boolean(*, yes: Any = True, no: Any = False) -> ValueType:
    """True or false, which ours may call otherwise."""

    def read(value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError("should be true or false")
        return yes if value else no

    def write(value: Any) -> bool:
        if value not in (yes, no):
            raise ValueError
        return value == yes

    return ValueType(read, write)


def choice(theirs_to_ours: dict[str, str]) -> ValueType:
    """One of some words; where two of theirs mean the same, the first is written."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in theirs_to_ours:
            raise ValueError(f"is not read here; should be {' or '.join(theirs_to_ours)}")
        return theirs_to_ours[value]

    def write(value: Any) -> str:
        for theirs, ours in theirs_to_ours.items():
            if ours == value:
                return theirs
        raise ValueError

    return ValueType(read, write)

"""Read JSON settings written by others: every value is checked before it is used."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from regard.errors import UnsupportedModel, UserError

MAX_JSON_BYTES = 32 * 2**20


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
        """Return the value of a dotted name; None where it is absent."""
        value: Any = self.values
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def section(self, name: str) -> "ConfigFile":
        """Return a nested object as settings, empty where there is none; the whole where `name` is empty."""
        value = self.get(name) if name else self.values
        return ConfigFile(value if isinstance(value, dict) else {}, self.path)

    def read(self, name: str, value_type: "ValueType") -> Any:
        """Return the converted value of a name."""
        return self.convert(name, self.get(name), value_type)

    def convert(self, name: str, value: object, value_type: "ValueType") -> Any:
        try:
            return value_type.read(value)
        except UnsupportedValue as error:
            raise self.unsupported(name, value, str(error)) from None
        except ValueError as error:
            raise self.error(name, value, str(error)) from None

    def error(self, name: str, value: object, expected: str) -> UserError:
        return UserError(self._describe(name, value, expected))

    def unsupported(self, name: str, value: object, expected: str) -> UnsupportedModel:
        """Return the error of a value that others may know what to do with."""
        return UnsupportedModel(self._describe(name, value, expected))

    def _describe(self, name: str, value: object, expected: str) -> str:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + " …"
        return f"{self.path}: {name} = {shown}: {expected}"


class UnsupportedValue(ValueError):
    """A value that is none of ours, and may be one of theirs."""


@dataclass(frozen=True)
class ValueType:
    """How a value of theirs becomes one of ours, and back. `read` raises a ValueError that says what it should be."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


def is_integer(value: object, minimum: int, maximum: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def is_number(value: object, minimum: float, maximum: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= maximum


def integer(maximum: int = 2**20, minimum: int = 1, offset: int = 0) -> ValueType:
    """An integer; theirs is `offset` larger than ours."""
    low, high = minimum + offset, maximum + offset

    def read(value: object) -> int:
        if not is_integer(value, low, high):
            raise ValueError(f"should be an integer from {low} to {high}")
        return value - offset

    return ValueType(read, lambda value: value + offset)


def int_or_pair(maximum: int = 8192) -> ValueType:
    """One integer, or two: height and width."""
    side = integer(maximum)

    def read(value: object) -> object:
        if not isinstance(value, list | tuple):
            return side.read(value)
        if len(value) != 2:
            raise ValueError("should be one integer, or two")
        height, width = (side.read(one) for one in value)
        return height if height == width else (height, width)

    return ValueType(read, lambda value: list(value) if isinstance(value, list | tuple) else value)


def positive_float(maximum: float = 1e9) -> ValueType:
    """A positive number."""

    def read(value: object) -> float:
        if not is_number(value, 0, maximum) or not value:
            raise ValueError(f"should be a number above 0, at most {maximum:g}")
        return float(value)

    return ValueType(read)


def boolean(*, true: object = True, false: object = False) -> ValueType:
    """A boolean of theirs; ours may have other values for true and false."""
    return mapped(bool, {True: true, False: false}, "should be true or false")


def choice(theirs_to_ours: Mapping[str, str]) -> ValueType:
    """One of several strings; where two of theirs mean the same, the first is written."""
    return mapped(str, theirs_to_ours, f"is not supported; should be {' or '.join(theirs_to_ours)}", UnsupportedValue)


def mapped(
    theirs: type, theirs_to_ours: Mapping[Any, object], expected: str, unknown: type[ValueError] = ValueError
) -> ValueType:
    """A value of one of their types, each with its counterpart of ours."""

    def read(value: object) -> object:
        if not isinstance(value, theirs):
            raise ValueError(expected)
        if value not in theirs_to_ours:
            raise unknown(expected)
        return theirs_to_ours[value]

    def write(value: object) -> object:
        if value not in theirs_to_ours.values():
            raise ValueError
        return next(theirs for theirs, ours in theirs_to_ours.items() if ours == value)

    return ValueType(read, write)

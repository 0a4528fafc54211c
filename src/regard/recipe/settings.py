"""The base class of all settings: frozen, checked, without unknown keys."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
MAX_COUNT = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=2**20)]
"""A dimension of a tensor: a width, a number of heads."""
Layers = Annotated[int, Field(ge=1, le=1000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Files = list[str]


class Settings(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every setting."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def allowed_kinds(settings: type[Settings]) -> tuple[str, ...]:
    """Return the values of `kind` that select this class in a union."""
    return get_args(settings.model_fields["kind"].annotation) if "kind" in settings.model_fields else ()


def settings_in(annotation: object) -> list[type[Settings]]:
    """Return the settings classes among the options of a type."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Settings) else []
    return list(dict.fromkeys(found for option in get_args(annotation) for found in settings_in(option)))


def discriminate_by_kind(default: str, choices: str) -> Discriminator:
    """Return a pydantic discriminator that reads `kind`, with a default if it is missing; an error names the choices."""

    def kind(given: object) -> str:
        return str(given.get("kind", default) if isinstance(given, dict) else getattr(given, "kind", default))

    return Discriminator(kind, custom_error_type="kind", custom_error_message=f"should be {choices}")

"""The base class of all settings: frozen, checked, without unknown keys."""

from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Files = list[str]


class Settings(BaseModel):
    """One section of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def allowed_kinds(settings: type[Settings]) -> tuple[str, ...]:
    """Return the values of `kind` that select this class in a union."""
    return get_args(settings.model_fields["kind"].annotation)


def settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes among the options of a type."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Settings) else []
    return list(dict.fromkeys(found for option in get_args(annotation) for found in settings_in(option)))


def kind_discriminator(default: str) -> Callable[[Any], str]:
    """Return a pydantic discriminator that reads `kind`, with a default if it is missing."""

    def kind(given: Any) -> str:
        return given.get("kind", default) if isinstance(given, dict) else getattr(given, "kind", default)

    return kind

"""What every part of a recipe is: frozen, checked, and without settings of its own invention."""

from collections.abc import Callable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Files = list[str]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def allowed_kinds(part: type[Settings]) -> tuple[str, ...]:
    return get_args(part.model_fields["kind"].annotation)


def settings_in(annotation: Any) -> list[type[Settings]]:
    """The parts among the options of a type."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Settings) else []
    return list(dict.fromkeys(part for option in get_args(annotation) for part in settings_in(option)))


def kind_discriminator(default: str) -> Callable[[Any], str]:
    """How a part that may be of several kinds says which it is, and which it is when it does not say."""

    def kind(given: Any) -> str:
        return given.get("kind", default) if isinstance(given, dict) else getattr(given, "kind", default)

    return kind

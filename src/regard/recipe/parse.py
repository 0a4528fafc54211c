"""A recipe's TOML file, read and checked. What is wrong is a `Mistake` naming the setting, the value and the cure."""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import ValidationError

from regard.errors import Mistake
from regard.recipe.recipes import OF_KIND, RECIPES, Recipe
from regard.recipe.settings import Part, kinds_of, parts_in

LARGEST = 2**20
"""Bytes of a recipe."""
LONGEST_VALUE = 200


def read(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """The recipe in a TOML file, with `a.b=c` overrides applied."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise Mistake(f"{path} is {'a folder' if path.is_dir() else 'no file'}, not a recipe; give the .toml file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise Mistake(f"{path} has more than {LARGEST:,} bytes; that is not a recipe")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise Mistake(f"no recipe at {path}; write one with: regard new translate --source F --target F > {path.name}") from None
    except UnicodeDecodeError as error:
        raise Mistake(f"{path} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise Mistake(f"cannot read the recipe {path}: {error}") from None
    return parse(text, overrides, name=str(path))


def parse(text: str, overrides: list[str] | None = None, *, name: str = "recipe") -> Recipe:
    try:
        settings = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{name} is not valid TOML: {error}") from None
    for override in overrides or []:
        apply_override(settings, override)
    return build(settings, name=name)


def build(settings: dict[str, Any], *, name: str = "recipe") -> Recipe:
    task = settings.get("task", "translate")
    if not isinstance(task, str) or task not in RECIPES:
        raise Mistake(f"{name}: task = {task!r}: should be {' or '.join(RECIPES)}")
    model = settings.get("model")
    kind = str(model.get("kind")) if isinstance(model, dict) else ""
    recipe = OF_KIND.get((task, kind), RECIPES[task])
    try:
        return recipe.model_validate(settings)
    except ValidationError as error:
        raise Mistake(f"{name}: {explain(error, recipe)}") from None


def apply_override(settings: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in nested settings; c is read as TOML, or as a plain string where it is none."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise Mistake(f"--set {override!r} is not of the form part.setting=value, such as train.steps=2000")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
        if not isinstance(settings, dict):
            raise Mistake(f"--set {override!r}: {key} is a value, not a part with settings")
    settings[keys[-1]] = parsed


def explain(error: ValidationError, recipe: type[Recipe]) -> str:
    """The first problem of a validation error in one line, with the nearest setting where a name is unknown."""
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    place, part = settings_place(problem["loc"], recipe)
    dotted = ".".join(place)
    if problem["type"] == "extra_forbidden":
        known = list(part.model_fields)
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        where = f" in {'.'.join(place[:-1])}" if place[:-1] else ""
        return f"no setting {shown(place[-1])}{where}; {cure}"
    if problem["type"] == "missing":
        return f"setting {dotted} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{dotted}: {message}" if len(place) > 2 and place[:2] == ["data", "tasks"] else message
    if problem["type"] == "kind":
        return f"{dotted}.kind = {problem['input'].get('kind')!r}: {message}"
    return f"{dotted} = {shown(problem['input'])}: {message[0].lower()}{message[1:]}"


def shown(value: Any) -> str:
    """A value that may be anything, in a few words."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def settings_place(location: Sequence[int | str], recipe: type[Recipe]) -> tuple[list[str], type[Part]]:
    """The setting that an error's location names, and the part it is in.

    Kinds of a union, and the types of a setting that has several, stand in the location but not in a recipe; the names of
    entries stand in both and are no settings.
    """
    place: list[str] = []
    part: type[Part] = recipe
    options: list[type[Part]] = [recipe]
    named = several = False
    for key in location:
        if named:
            place.append(str(key))
            named, options = False, []
            continue
        if several and isinstance(key, str):
            continue
        if tagged := [option for option in options if option.model_fields.get("kind") and key in kinds_of(option)]:
            part = tagged[0]
            continue
        place.append(str(key))
        field = part.model_fields.get(str(key))
        options = parts_in(field.annotation) if field else []
        several = field is not None and not options and get_origin(field.annotation) in (Union, UnionType)
        named = field is not None and get_origin(field.annotation) is dict
        part = options[0] if options else part
    return place, part

"""A recipe's TOML file, read and checked. What is wrong is a `UserError` naming the setting, the value and the cure."""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import ValidationError

from regard.errors import UserError
from regard.recipe.recipes import RECIPES, RECIPES_BY_KIND, Recipe
from regard.recipe.settings import Settings, allowed_kinds, settings_in

LARGEST = 2**20
"""Bytes of a recipe."""
LONGEST_VALUE = 200


def read_recipe(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """The recipe in a TOML file, with `a.b=c` overrides applied."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is {'a folder' if path.is_dir() else 'no file'}, not a recipe; give the .toml file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise UserError(f"{path} has more than {LARGEST:,} bytes; that is not a recipe")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            f"no recipe at {path}; write one with: regard new translate --source F --target F > {path.name}"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the recipe {path}: {error}") from None
    return parse_recipe(text, overrides, name=str(path))


def parse_recipe(text: str, overrides: list[str] | None = None, *, name: str = "recipe") -> Recipe:
    try:
        settings = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid TOML: {error}") from None
    for override in overrides or []:
        apply_override(settings, override)
    return build_recipe(settings, name=name)


def build_recipe(settings: dict[str, Any], *, name: str = "recipe") -> Recipe:
    task = settings.get("task", "translate")
    if not isinstance(task, str) or task not in RECIPES:
        raise UserError(f"{name}: task = {task!r}: should be {' or '.join(RECIPES)}")
    model = settings.get("model")
    kind = str(model.get("kind")) if isinstance(model, dict) else ""
    recipe = RECIPES_BY_KIND.get((task, kind), RECIPES[task])
    try:
        return recipe.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{name}: {describe_error(error, recipe)}") from None


def apply_override(settings: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in nested settings; c is read as TOML, or as a plain string where it is none."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {override!r} is not of the form part.setting=value, such as train.steps=2000")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
        if not isinstance(settings, dict):
            raise UserError(f"--set {override!r}: {key} is a value, not a part with settings")
    settings[keys[-1]] = parsed


def describe_error(error: ValidationError, recipe: type[Recipe]) -> str:
    """The first problem of a validation error in one line, with the nearest setting where a name is unknown."""
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    place, part = locate_setting(problem["loc"], recipe)
    dotted = ".".join(place)
    if problem["type"] == "extra_forbidden":
        known = list(part.model_fields)
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        where = f" in {'.'.join(place[:-1])}" if place[:-1] else ""
        return f"no setting {shorten(place[-1])}{where}; {cure}"
    if problem["type"] == "missing":
        return f"setting {dotted} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{dotted}: {message}" if len(place) > 2 and place[:2] == ["data", "tasks"] else message
    if problem["type"] == "kind":
        return f"{dotted}.kind = {problem['input'].get('kind')!r}: {message}"
    return f"{dotted} = {shorten(problem['input'])}: {message[0].lower()}{message[1:]}"


def shorten(value: Any) -> str:
    """A value that may be anything, in a few words."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def locate_setting(location: Sequence[int | str], recipe: type[Recipe]) -> tuple[list[str], type[Settings]]:
    """The setting that an error's location names, and the part it is in.

    Kinds of a union, and the types of a setting that has several, stand in the location but not in a recipe; the names of
    entries stand in both and are no settings.
    """
    place: list[str] = []
    part: type[Settings] = recipe
    options: list[type[Settings]] = [recipe]
    named = several = False
    for key in location:
        if named:
            place.append(str(key))
            named, options = False, []
            continue
        if several and isinstance(key, str):
            continue
        if tagged := [option for option in options if option.model_fields.get("kind") and key in allowed_kinds(option)]:
            part = tagged[0]
            continue
        place.append(str(key))
        field = part.model_fields.get(str(key))
        options = settings_in(field.annotation) if field else []
        several = field is not None and not options and get_origin(field.annotation) in (Union, UnionType)
        named = field is not None and get_origin(field.annotation) is dict
        part = options[0] if options else part
    return place, part

"""Recipes in TOML, read and checked. An error names the setting, the value and the cure."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Union, get_origin

from pydantic import ValidationError

from regard.errors import UserError
from regard.recipe.base import Recipe
from regard.recipe.settings import Settings, allowed_kinds, settings_in

MAX_BYTES = 2**20
MAX_SHOWN = 200
MAX_KEY_PARTS = 64
KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
TOO_MANY_PARTS = re.compile(rf"(?<![\w-]){KEY_PART}(?:\.[ \t]*+{KEY_PART}){{{MAX_KEY_PARTS}}}")
"""A dotted key, for which `tomllib` needs memory as the square of its parts."""
FORMER_NAMES = {
    "begin": "init_from",
    "codes": "codebook_size",
    "crop": "crop_padding",
    "down": "downsampling",
    "of": "candidates",
    "graphs": "cuda_graphs",
    "parts": "modules",
    "rank": "reranker",
    "second": "text_pair",
    "share": "fraction",
    "kept": "unchanged_fraction",
    "space": "projection_width",
    "deviation": "std",
    "fit": "resize_mode",
    "halves": "sines_first",
    "word_switch": "switchout",
}
"""Settings that difflib would not match to their present name, for "did you mean" alone."""


def read_settings(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, object]:
    """Return the nested settings of a TOML file, with `a.b=c` overrides applied."""
    path = Path(path)
    try:
        if (path / "recipe.toml").is_file():
            raise UserError(f"{path} is a run folder, not a recipe; continue its training with: regard train {path} --resume")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is {'a folder' if path.is_dir() else 'no file'}, not a recipe; give the .toml file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UserError(f"{path} has more than {MAX_BYTES:,} bytes; that is not a recipe")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            f"no recipe at {path}; write one with: regard new translate --source F --target F > {path.name}"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the recipe {path}: {error}") from None
    return parse_settings(text, overrides, name=str(path))


def parse_settings(text: str, overrides: Sequence[str] = (), *, name: str = "recipe") -> dict[str, object]:
    """Return the nested settings of a TOML text, with `a.b=c` overrides applied."""
    if TOO_MANY_PARTS.search(text):
        raise UserError(f"{name} has a key of more than {MAX_KEY_PARTS} parts; that is not a recipe")
    try:
        settings = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not valid TOML: {error}") from None
    for override in overrides:
        apply_override(settings, override)
    return settings


def validate_recipe(recipe: type[Recipe], settings: Mapping[str, object], *, name: str = "recipe") -> Recipe:
    """Return the recipe of this type with these settings, or raise the first problem in one line."""
    try:
        return recipe.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{name}: {describe_error(error, recipe)}") from None


def apply_override(settings: dict[str, object], override: str) -> None:
    """Set `a.b=c` in nested settings; c is read as TOML, or as a plain string if it is none."""
    path, equals, value = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) > MAX_KEY_PARTS:
        raise UserError(f"--set {shorten(override)} is not of the form section.setting=value, such as train.steps=2000")
    try:
        parsed = parse_settings(f"value = {value.strip()}")["value"]
    except UserError:
        parsed = value.strip()
    for key in keys[:-1]:
        section = settings.setdefault(key, {})
        if not isinstance(section, dict):
            raise UserError(f"--set {override!r}: {key} is a value, not a section with settings")
        settings = section
    settings[keys[-1]] = parsed


def describe_error(error: ValidationError, recipe: type[Recipe]) -> str:
    """Return the first problem of a validation error in one line, with the nearest setting if a name is unknown."""
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    path, section = locate_setting(problem["loc"], recipe)
    dotted = ".".join(path)
    if problem["type"] == "extra_forbidden":
        where = f" in {'.'.join(path[:-1])}" if path[:-1] else ""
        return f"no setting {shorten(path[-1])}{where}; {suggest(path[-1], list(section.model_fields))}"
    if problem["type"] == "missing":
        return f"setting {dotted} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{dotted}: {message}" if len(path) > 2 and path[:2] == ["data", "tasks"] else message
    if problem["type"] == "kind":
        return f"{dotted}.kind = {shorten(problem['input'].get('kind'))}: {message}"
    return f"{dotted} = {shorten(problem['input'])}: {message[0].lower()}{message[1:]}"


def suggest(name: str, known: list[str]) -> str:
    """Return "did you mean" with the nearest of the known settings, or else all of them."""
    former = FORMER_NAMES.get(name)
    near = [former] if former in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"


def shorten(value: object) -> str:
    """Return the repr of any value, at most MAX_SHOWN characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def locate_setting(location: Sequence[int | str], recipe: type[Recipe]) -> tuple[list[str], type[Settings]]:
    """Return the path of the setting that an error's location names, and the settings class it is in.

    The kinds of a union, the types of a setting that has several, and numbers of a list of sections are in the location but not
    in a recipe; the names of dictionary entries are in both, and are no settings.
    """
    path: list[str] = []
    section: type[Settings] = recipe
    options: list[type[Settings]] = [recipe]
    is_entry = is_union = False
    for key in location:
        if is_entry:
            path.append(str(key))
            is_entry, options = False, []
            continue
        if (is_union and isinstance(key, str)) or (options and isinstance(key, int)):
            continue
        if tagged := [option for option in options if option.model_fields.get("kind") and key in allowed_kinds(option)]:
            section = tagged[0]
            continue
        path.append(str(key))
        field = section.model_fields.get(str(key))
        options = settings_in(field.annotation) if field else []
        is_union = field is not None and not options and get_origin(field.annotation) in (Union, UnionType)
        is_entry = field is not None and get_origin(field.annotation) is dict
        section = options[0] if options else section
    return path, section

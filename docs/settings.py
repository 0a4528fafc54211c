"""Write docs/settings.md from the recipe's types: `python docs/settings.py`. A test checks that it is not stale."""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.recipe import DECODERS, ENCODERS, PRESETS, RECIPES, RECIPES_BY_KIND, VITS, Settings, allowed_kinds, settings_in

PAGE = Path(__file__).with_name("settings.md")
ORDER = ("", "data", "tokens", "masking", "corruption", "answering", "model", "train", "decode", "sample")
UNIONS = ("model", "model.encoder", "model.decoder", "data.world")  # parts of several kinds


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting of a recipe, generated from its types by `python docs/settings.py`.",
        "Override any of them on the command line: `regard train recipe.toml --set train.steps=2000`.",
    ]
    for (path, kind), tasks in places().items():
        lines += ["", *part(path, kind, tasks)]
    for title, presets in (
        ("of a translator", PRESETS),
        ("of an encoder", ENCODERS),
        ("of a decoder", DECODERS),
        ("that reads pictures", VITS),
    ):
        lines += ["", f"## Presets of `model` {title}", "", *preset_table(presets)]
    return "\n".join(lines) + "\n"


def preset_table(presets: dict[str, dict[str, Any]]) -> list[str]:
    names = list(next(iter(presets.values())))
    return [
        "| preset | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
        *(f"| `{preset}` | " + " | ".join(str(fields[name]) for name in names) + " |" for preset, fields in presets.items()),
    ]


def places() -> dict[tuple[str, type[Settings]], list[str]]:
    """Every part of every task's recipe, by where it stands, with the tasks that have it."""
    found: dict[tuple[str, type[Settings]], list[str]] = {}

    def walk(path: str, kind: type[Settings], task: str) -> None:
        found.setdefault((path, kind), []).append(task)
        for name, field in kind.model_fields.items():
            place = f"{path}.{name}.NAME" if get_origin(field.annotation) is dict else f"{path}.{name}"
            place = place.replace(".tasks.NAME.world", ".world")  # a task's is as any
            for inner in settings_in(field.annotation):
                walk(place.lstrip("."), inner, task)

    for task, recipe in recipes():
        walk("", recipe, task)
    return dict(sorted(found.items(), key=lambda entry: list(ORDER).index(entry[0][0].split(".")[0])))


def recipes() -> list[tuple[str, type[Settings]]]:
    """By task; a task of pictures is said to be one."""
    return [*RECIPES.items(), *((f"{task} (pictures)", recipe) for (task, _), recipe in RECIPES_BY_KIND.items())]


def part(path: str, kind: type[Settings], tasks: list[str]) -> list[str]:
    tasks = list(dict.fromkeys(tasks))
    heading = f"## `[{path}]`" if path else f'## The recipe with `task = "{tasks[0].partition(" ")[0]}"`'
    heading += "" if path or " " not in tasks[0] else ", pictures"
    if path and len(tasks) < len(recipes()):
        heading += f" of the task{'s' if len(tasks) > 1 else ''} {', '.join(tasks)}"
    if path in UNIONS and "kind" in kind.model_fields:
        heading += f", `kind = {' or '.join(shown(name) for name in allowed_kinds(kind))}`"
    lines = [heading, ""]
    lines += [" ".join(kind.__doc__.split()), ""] if kind.__doc__ else []
    lines += ["| setting | kind | default | |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        if not settings_in(field.annotation):
            default = "required" if field.is_required() else f"`{shown(field.default)}`"
            words = " ".join((field.description or "").split())
            lines.append(f"| `{name}` | {kind_of(field.annotation)} | {default} | {words} |")
    return lines


def kind_of(annotation: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(kind_of(option) for option in inside)
    if origin is Annotated:
        return kind_of(inside[0])
    if origin is list or (origin is tuple and inside[-1] is Ellipsis):
        return f"list of {kind_of(inside[0])}"
    if origin is tuple:
        return f"{'two' if len(inside) == 2 else 'three'} of {kind_of(inside[0])}"
    if origin is dict:
        return f"names, each with a {kind_of(inside[1])}"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", NoneType: "not set"}[annotation]


def shown(default: Any) -> str:
    if default is None:
        return "not set"
    return str(default).lower() if isinstance(default, bool) else repr(default).replace("'", '"')


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")

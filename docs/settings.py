"""Write docs/settings.md from the recipe's types: `python docs/settings.py`. A test checks that it is current."""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.recipe import DECODERS, ENCODERS, PRESETS, VITS, Settings, allowed_kinds, settings_in
from regard.tasks import all_tasks

PAGE = Path(__file__).with_name("settings.md")
SECTIONS = ["", "data", "tokens", "masking", "corruption", "answering", "model", "train", "decode", "ladder", "sample", "score"]
UNIONS = ("model", "model.encoder", "model.decoder", "data.world")  # tables of several kinds


def settings_page() -> str:
    """Return the page: one table for each part of a recipe, then the presets."""
    lines = [
        "# Settings",
        "",
        "Every setting of a recipe, generated from its types by `python docs/settings.py`.",
        "Override any of them on the command line: `regard train recipe.toml --set train.steps=2000`.",
    ]
    for (path, kind), tasks in collect_parts().items():
        lines += ["", *part_table(path, kind, tasks)]
    for title, presets in (
        ("of a translator", PRESETS),
        ("of an encoder", ENCODERS),
        ("of a decoder", DECODERS),
        ("of an image classifier", VITS),
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


def collect_parts() -> dict[tuple[str, type[Settings]], list[str]]:
    """Return the parts of all recipes by path and type, with the tasks that have them."""
    parts: dict[tuple[str, type[Settings]], list[str]] = {}

    def visit(path: str, kind: type[Settings], task: str) -> None:
        parts.setdefault((path, kind), []).append(task)
        for name, field in kind.model_fields.items():
            inner_path = f"{path}.{name}{'.NAME' * dict_depth(field.annotation)}"
            inner_path = inner_path.replace(".tasks.NAME.world", ".world")  # the same type as data.world
            for inner in settings_in(field.annotation):
                visit(inner_path.lstrip("."), inner, task)

    for task, recipe in recipes():
        visit("", recipe, task)
    return dict(sorted(parts.items(), key=lambda part: SECTIONS.index(part[0][0].split(".")[0])))


def dict_depth(annotation: object) -> int:
    """Return how many names lead to a value of this type: 1 for a dictionary, 2 for a dictionary of dictionaries."""
    return 1 + dict_depth(get_args(annotation)[1]) if get_origin(annotation) is dict else 0


def recipes() -> list[tuple[str, type[Settings]]]:
    """Return the recipe types by task; a second type of a task is for images."""
    found: dict[type[Settings], str] = {}
    for task in all_tasks():
        if task.recipe is not None and task.recipe not in found:
            found[task.recipe] = f"{task.name} (images)" if task.name in found.values() else task.name
    return [(name, recipe) for recipe, name in found.items()]


def part_table(path: str, kind: type[Settings], tasks: list[str]) -> list[str]:
    """Return the section of one part: its heading, its docstring, a row for each setting."""
    tasks = list(dict.fromkeys(tasks))
    heading = f"## `[{path}]`" if path else f'## The recipe with `task = "{tasks[0].partition(" ")[0]}"`'
    heading += "" if path or " " not in tasks[0] else ", images"
    if path and len(tasks) < len(recipes()):
        heading += f" of the task{'s' if len(tasks) > 1 else ''} {', '.join(tasks)}"
    if path in UNIONS and "kind" in kind.model_fields:
        heading += f", `kind = {' or '.join(format_default(name) for name in allowed_kinds(kind))}`"
    lines = [heading, ""]
    lines += [" ".join(kind.__doc__.split()), ""] if kind.__doc__ else []
    lines += ["| setting | type | default | |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        if not settings_in(field.annotation):
            default = "required" if field.is_required() else f"`{format_default(field.default)}`"
            description = " ".join(setting_description(kind, name).split())
            lines.append(f"| `{name}` | {describe_type(field.annotation)} | {default} | {description} |")
    return lines


def setting_description(kind: type[Settings], name: str) -> str:
    """Return a setting's docstring; where a class only changes the default, that of the class it inherits the setting from."""
    fields = (base.model_fields.get(name) for base in kind.__mro__ if issubclass(base, Settings))
    return next((field.description for field in fields if field is not None and field.description), "")


def describe_type(annotation: Any) -> str:
    """Return a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(option) for option in arguments)
    if origin is Annotated:
        return describe_type(arguments[0])
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {describe_type(arguments[0])}"
    if origin is tuple:
        return f"{'two' if len(arguments) == 2 else 'three'} of {describe_type(arguments[0])}"
    if origin is dict:
        return f"table of {describe_type(arguments[1])}"
    return {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "not set", Any: "settings"}[annotation]


def format_default(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")

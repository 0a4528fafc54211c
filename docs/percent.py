"""Percent format: a Python file whose cells begin with `# %%`, those of words with `# %% [markdown]`. Read, and run."""

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = re.compile(r"# %%(?P<words>.*\[(markdown|md)\])?")


class Failed(Exception):
    """A page that cannot be built, in one line that names it."""


@dataclass(frozen=True)
class Cell:
    """Words or code, and the line of the file it begins at, counted from 1."""

    words: bool
    text: str
    line: int


@dataclass(frozen=True)
class Ran:
    """What a cell printed, and the value of the expression it ends with."""

    printed: str
    value: Any = None


def cells(text: str, name: str = "page") -> list[Cell]:
    """The cells of a file that are not empty; what stands before the first mark is code."""
    found, words, begin, taken = [], False, 1, []
    for number, line in enumerate([*text.split("\n"), "# %%"], start=1):
        mark = MARK.match(line)
        if mark is None:
            taken.append(line)
            continue
        first = next((at for at, one in enumerate(taken) if one.strip()), None)
        if first is not None:
            said = [spoken(one, f"{name}:{begin + at}") for at, one in enumerate(taken)] if words else taken
            found.append(Cell(words, "\n".join(said[first:]).rstrip(), begin + first))
        words, begin, taken = mark["words"] is not None, number + 1, []
    return found


def spoken(line: str, where: str) -> str:
    """A line of words without its `#`."""
    if line.strip() and not line.startswith("#"):
        raise Failed(f"{where}: every line of a markdown cell begins with #; begin code with # %%")
    return line[1:].removeprefix(" ")


def run(path: Path, name: str) -> Iterator[tuple[Cell, Ran | None]]:
    """The cells of a page, one after another, in one new namespace; words are not run."""
    space = {"__name__": "__main__", "__file__": str(path)}
    for number, cell in enumerate(cells(path.read_text(encoding="utf-8"), name), start=1):
        if cell.words:
            yield cell, None
            continue
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                value = execute(cell, space, str(path))
        except (Exception, SystemExit) as error:  # whatever a page does: the build fails, and says where
            raise Failed(f"{name}, cell {number} (line {cell.line}): {type(error).__name__}: {error}") from error
        yield cell, Ran(printed.getvalue(), value)


def execute(cell: Cell, space: dict[str, Any], path: str) -> Any:
    """Run the code; the value of its last expression, where it ends with one."""
    tree = ast.increment_lineno(ast.parse(cell.text, path), cell.line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, path, "exec"), space)
    return None if last is None else eval(compile(ast.Expression(last.value), path, "eval"), space)

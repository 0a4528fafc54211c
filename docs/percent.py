"""Parse and run notebooks in percent format: Python files with cells that start with `# %%` or `# %% [markdown]`."""

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELL_MARKER = re.compile(r"# %%(?P<markdown>.*\[(markdown|md)\])?")


class PageError(Exception):
    """A page that cannot be built; the message names the page and the cell in one line."""


@dataclass(frozen=True)
class Cell:
    """A markdown or code cell, and the line of the file at which it starts, counted from 1."""

    is_markdown: bool
    text: str
    line: int


@dataclass(frozen=True)
class CellOutput:
    """What a code cell printed, and the value of its last expression."""

    stdout: str
    value: Any = None


def parse_cells(text: str, name: str = "page") -> list[Cell]:
    """Return the non-empty cells of a file; text before the first marker is code."""
    cells, is_markdown, start, lines = [], False, 1, []
    for number, line in enumerate([*text.split("\n"), "# %%"], start=1):
        marker = CELL_MARKER.match(line)
        if marker is None:
            lines.append(line)
            continue
        first = next((index for index, inner in enumerate(lines) if inner.strip()), None)
        if first is not None:
            if is_markdown:
                lines = [uncomment(inner, f"{name}:{start + index}") for index, inner in enumerate(lines)]
            cells.append(Cell(is_markdown, "\n".join(lines[first:]).rstrip(), start + first))
        is_markdown, start, lines = marker["markdown"] is not None, number + 1, []
    return cells


def uncomment(line: str, location: str) -> str:
    """Return a line of a markdown cell without its `#`."""
    if line.strip() and not line.startswith("#"):
        raise PageError(f"{location}: every line of a markdown cell must start with #; start code with # %%")
    return line[1:].removeprefix(" ")


def run_page(path: Path, name: str) -> Iterator[tuple[Cell, CellOutput | None]]:
    """Run the code cells of a page in order, in one new namespace; yield every cell with its output (None for markdown)."""
    namespace = {"__name__": "__main__", "__file__": str(path)}
    for number, cell in enumerate(parse_cells(path.read_text(encoding="utf-8"), name), start=1):
        if cell.is_markdown:
            yield cell, None
            continue
        stdout = io.StringIO()
        try:
            with redirect_stdout(stdout):
                value = run_cell(cell, namespace, str(path))
        except (Exception, SystemExit) as error:  # a page may fail in any way; the build must name the cell
            raise PageError(f"{name}, cell {number} (line {cell.line}): {type(error).__name__}: {error}") from error
        yield cell, CellOutput(stdout.getvalue(), value)


def run_cell(cell: Cell, namespace: dict[str, Any], path: str) -> Any:
    """Run a code cell; return the value of its last expression, or None if it ends with a statement."""
    tree = ast.increment_lineno(ast.parse(cell.text, path), cell.line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, path, "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), path, "eval"), namespace)

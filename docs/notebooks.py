"""Write the pages of the tour as Jupyter notebooks, docs/tour/*.ipynb, beside the Python files they are generated from."""

import json
from pathlib import Path
from typing import Any

from percent import Cell, parse_cells

TOUR = Path(__file__).resolve().parent / "tour"


def notebook(path: Path) -> str:
    """Return a page in percent format as a notebook without outputs (nbformat 4.5)."""
    cells = [
        notebook_cell(cell, number) for number, cell in enumerate(parse_cells(path.read_text(encoding="utf-8"), path.name), 1)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def notebook_cell(cell: Cell, number: int) -> dict[str, Any]:
    source = cell.text.splitlines(keepends=True)
    common = {"id": f"cell-{number}", "metadata": {}, "source": source}
    if cell.is_markdown:
        return {"cell_type": "markdown", **common}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common}


def write_notebooks() -> None:
    for path in sorted(TOUR.glob("[0-9]*.py")):
        path.with_suffix(".ipynb").write_text(notebook(path), encoding="utf-8")


if __name__ == "__main__":
    write_notebooks()

"""Write the file tree of docs/architecture.md from docstrings: `python docs/tree.py`. A test checks that it is current."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "regard"
PAGE = ROOT / "docs" / "architecture.md"
START = "<!-- The rest of this page is written by docs/tree.py. -->\n"
FOLDERS = ["cli", "recipe", "worlds", "corpus", "tokens", "batches", "attention", "layers", "models", "training", "distributed"]
FOLDERS += ["decoding", "scoring", "tasks", "run", "explain", "show", "studies", "plan", "interop", "server"]


def summary(path: Path) -> str:
    """Return the first sentence or line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r": `|(?<!\bal)\. (?=[A-Z`])", first)[0].rstrip(".").replace("|", "\\|")


def tree() -> str:
    """Return one table per folder, in the order of the data flow: every module with its summary."""
    folders = [*(SOURCE / name for name in FOLDERS), SOURCE]
    others = {path.parent for path in SOURCE.rglob("*.py")} - set(folders)
    lines = []
    for folder in folders:
        start = summary(folder / "__init__.py") if folder != SOURCE else "The package itself"
        lines += [
            f"### `{folder.relative_to(ROOT).as_posix()}/`",
            "",
            *([f"{start}.", ""] if start else []),
            "| file | |",
            "|---|---|",
        ]
        for inner in [folder, *sorted(other for other in others if other.is_relative_to(folder) and folder != SOURCE)]:
            for path in sorted(inner.glob("*.py")):
                if path.name != "__init__.py" or folder == SOURCE or inner != folder:
                    lines.append(f"| `{path.relative_to(SOURCE).as_posix()}` | {summary(path)} |")
        lines.append("")
    return "\n".join(lines)


def architecture_page() -> str:
    """Return the page with a current tree."""
    return PAGE.read_text(encoding="utf-8").split(START)[0] + START + "\n" + tree()


if __name__ == "__main__":
    PAGE.write_text(architecture_page(), encoding="utf-8")

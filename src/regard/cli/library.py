"""recipes, docs, push: the recipes and reference pages that come with the package, and the Hugging Face hub."""

import difflib
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.options import AsJson, RunFolder, app
from regard.cli.output import print_json, print_table
from regard.errors import UserError


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this recipe.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes behind the reported results, or print one.

    regard recipes multi30k-en-de > mine.toml
    """
    found = {path.stem: path for path in sorted(packaged("recipes").glob("*.toml"))}
    if name is not None:
        print(choose("recipe", name.removesuffix(".toml"), found).read_text(encoding="utf-8"), end="")
        return
    summaries = {stem: first_comment(path) for stem, path in found.items()}
    if as_json:
        print_json(**summaries)
        return
    print_table("recipes", ["name", ""], [[stem, summary] for stem, summary in summaries.items()])


@app.command()
def docs(name: Annotated[str, typer.Argument(metavar="NAME", help="settings or errors.")] = "settings") -> None:
    """Print a reference page: every setting of a recipe, or every error message."""
    found = {path.stem: path for path in packaged("docs").glob("*.md") if path.stem in ("settings", "errors")}
    print(choose("page", name, found).read_text(encoding="utf-8"), end="")


@app.command()
def push(
    run: RunFolder,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; it is created if it does not exist.")],
    to: Annotated[
        str,
        typer.Option(metavar="hf|run", help="Upload as a folder that transformers opens, or the run folder without checkpoints."),
    ] = "hf",
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
) -> None:
    """Upload a run with its card to the Hugging Face hub.

    Log in with `hf auth login`, or set HF_TOKEN.
    """
    from regard.run.convert import push_run

    print(push_run(run, name, to=to, private=private))


def packaged(folder: str) -> Path:
    """Return a folder that the wheel holds in assets/, and a clone in its root."""
    package = Path(regard.__file__).parent
    inside = package / "assets" / folder
    return inside if inside.is_dir() else package.parent.parent / folder


def choose(kind: str, name: str, found: dict[str, Path]) -> Path:
    """Return the file of a name, or raise an error with the nearest one."""
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        raise UserError(f"no {kind} {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(found)}"))
    return found[name]


def first_comment(path: Path) -> str:
    """Return the first line of a recipe's header."""
    return next((line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")), "")

"""Write docs/recipes.md from the headers of the recipes: `python docs/recipes.py`. A test checks that it is current."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPES, PAGE = ROOT / "recipes", ROOT / "docs" / "recipes.md"
FIELD = re.compile(r"# (?:([A-Z]\w+):|([a-z]+)(?=  )) +(.*)")  # "# Data:     the …", or in a table "# data       the …"
TASKS = {
    "translate": "Translation",
    "language": "Language models",
    "masked": "Masked words",
    "classify": "Classification of texts and images",
    "tag": "Tagging",
    "caption": "Captions",
    "contrastive": "Images and texts (CLIP)",
    "image-codes": "Images as codes",
    "text-to-image": "Images from texts (DALL·E)",
}
START = """# Recipes

Every result of this project has a recipe in `recipes/`, whose header says where the data come from, which command trains it, on
which hardware, and what it reached. A score with a deviation is the mean ± standard deviation over the seeds, whose number is in
brackets; `regard reproduce RECIPE` trains them again and compares. The others are of one seed, or described.
[RESULTS.md](../RESULTS.md) has the intervals, the targets that were missed, and what was tried; `regard new TASK` writes a recipe
for data of your own.
"""


def read_header(path: Path) -> dict[str, str]:
    """Return the fields of a recipe's first comment, in lower case; what precedes them is "about"."""
    fields, name = {"about": ""}, "about"
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if field := FIELD.match(line):
            name = (field[1] or field[2]).lower()
            fields[name] = field[3]
        elif name == "about" or line.startswith("#   "):
            fields[name] += " " + line.removeprefix("#").strip()
        else:
            name = "notes"
            fields[name] = line.removeprefix("#").strip()
    return {name: " ".join(text.split()) for name, text in fields.items()}


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its reference to the results."""
    sentence = re.split(r"(?<! al)\. (?=[A-Z`])|\.$", text)[0]
    return re.sub(r",? \((?:see |spread in )?RESULTS\.md\)", "", sentence).replace("|", "\\|")


def describe_score(recipe: dict[str, Any], header: dict[str, str]) -> str:
    """Return the scores that a recipe reports, and the sentence of its header where that has more, or they are of one seed."""
    found = [
        f"`{test_set}.{metric}` {score['mean']} ± {score['spread']} ({len(score['seeds'])})"
        for test_set, metrics in recipe.get("score", {}).items()
        for metric, score in metrics.items()
    ]
    described = first_sentence(header.get("score", header.get("published", "")))
    return "<br>".join(found if found and "±" not in described else [*found, described])


def recipes_page() -> str:
    """Return one table per task: every recipe with its subject, scores and hardware."""
    rows: dict[str, list[str]] = {task: [] for task in TASKS}
    for path in sorted(RECIPES.glob("*.toml")):
        recipe, header = tomllib.loads(path.read_text(encoding="utf-8")), read_header(path)
        cells = [
            f"[{path.stem}](../recipes/{path.name})",
            first_sentence(header["about"]),
            describe_score(recipe, header),
            first_sentence(header.get("hardware", "")),
        ]
        rows[recipe["task"]].append(f"| {' | '.join(cells)} |")
    tables = [
        "\n".join([f"## {TASKS[task]}", "", "| recipe | | score | hardware and time |", "|---|---|---|---|", *lines, ""])
        for task, lines in rows.items()
        if lines
    ]
    return "\n".join([START, *tables])


if __name__ == "__main__":
    PAGE.write_text(recipes_page(), encoding="utf-8")

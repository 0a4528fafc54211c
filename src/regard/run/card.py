"""The card of a run: README.md in its folder, made from what the folder holds."""

import json
from typing import Any

from regard.run.opened import Run

USES = """Translation of short texts like those it was trained on. Research and teaching."""
MISUSES = """Text that matters to somebody's health, rights or safety without a person who reads both languages; passing its
output off as a person's words."""
LIMITS = """It knows only what its training text says, repeats its biases and mistakes, and can translate fluently and wrongly.
Text unlike its training data, sentences longer than `model.max_length` tokens and unknown characters come out badly."""


def write_card(run: Run) -> None:
    aside = run.folder / ".README.md.writing"
    aside.write_text(card(run), encoding="utf-8")
    aside.replace(run.folder / "README.md")


def card(run: Run) -> str:
    recipe = run.recipe
    facts = read_json(run, "environment.json")
    parameters = sum(p.numel() for p in run.model.parameters())
    version = facts.get("packages", {}).get("regard", "")
    world = recipe.data.world
    data = recipe.data.origin or (f"the embedded {world.kind} world, level {world.level}, {world.number:,} pairs" if world else
                                  f"{', '.join(recipe.data.train)}; origin and licence not stated in the recipe (data.origin)")
    return f"""# {run.folder.name}

A {type(run.model).__name__} of {parameters:,} parameters for the task *{recipe.task}*, trained by regard {version}.

| | |
|---|---|
| data | {data} |
| recipe | `recipe.toml`, {recipe.digest()} |
| model | {recipe.model.kind}, {recipe.model.encoder_layers}+{recipe.model.decoder_layers} layers of {recipe.model.width} |
| trained on | {facts.get("hardware", "unknown")} |

## Scores

{score_table(read_json(run, "scores.json"))}

## Intended use

{USES}

## Misuse

{MISUSES}

## Limits

{LIMITS}

## Use

```
regard translate {run.folder} "…"
regard show {run.folder} "…" --out attention.svg
```
"""


def score_table(scores: dict[str, Any]) -> str:
    if not scores:
        return "Not scored yet: `regard evaluate` does it."
    rows = [f"| {name} | {metric.replace('_', ' ')} | {score['score']:.2f} | {score['low']:.2f} – {score['high']:.2f} "
            f"| `{score['signature']}` |"
            for name, metrics in scores.items() for metric, score in metrics.items()]
    return "\n".join(["| set | metric | score | 95% interval | signature |", "|---|---|---|---|---|", *rows])


def read_json(run: Run, name: str) -> dict[str, Any]:
    path = run.folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

"""The card of a run: README.md in its folder, made from what the folder holds."""

from typing import Any

from regard.run.base import Run

READER = "Text that matters to somebody's health, rights or safety without a person who checks"
LIMITS = """It knows only what its training text says, and repeats its biases and mistakes. Text unlike its training data, texts
longer than `model.max_length` tokens and unknown characters come out badly."""

WORDS: dict[str, dict[str, Any]] = {
    "translate": {
        "uses": "Translation of short texts like those it was trained on. Research and teaching.",
        "misuses": f"{READER} and reads both languages; passing its output off as a person's words.",
        "limits": f"{LIMITS} It can translate fluently and wrongly.",
        "verbs": ['translate {} "…"', 'show {} "…" --out attention.svg']},
    "language": {
        "uses": "Text like its training text, its perplexity, contextual vectors of words. Research and teaching.",
        "misuses": "Misleading news, impersonation, spam, and any text passed off as a person's.",
        "limits": f"{LIMITS} What it writes is likely, not true.",
        "verbs": ['generate {} "…"', 'embed {} "…" --pool words']},
    "classify": {
        "uses": "Labels of texts like those it was trained on. Research and teaching.",
        "misuses": f"{READER} every decision; judging people by what they write.",
        "limits": f"{LIMITS} Its probabilities are not calibrated.",
        "verbs": ['classify {} "…"', 'embed {} "…"']},
    "tag": {
        "uses": "Labels of the words of texts like those it was trained on. Research and teaching.",
        "misuses": f"{READER} every decision.",
        "limits": LIMITS,
        "verbs": ['tag {} "…"', 'embed {} "…" --pool words']},
}


def write_card(run: Run) -> None:
    aside = run.folder / ".README.md.writing"
    aside.write_text(card(run), encoding="utf-8")
    aside.replace(run.folder / "README.md")


def card(run: Run) -> str:
    recipe = run.recipe
    facts = run.read_json("environment.json")
    parameters = sum(p.numel() for p in run.model.parameters())
    version = facts.get("packages", {}).get("regard", "")
    world = recipe.data.world
    data = recipe.data.origin or (f"the embedded {world.kind} world, level {world.level}, {world.number:,} examples" if world else
                                  f"{', '.join(recipe.data.train)}; origin and licence not stated in the recipe (data.origin)")
    words, model = WORDS[recipe.task], recipe.model
    layers = f"{model.encoder_layers}+{model.decoder_layers}" if recipe.task == "translate" else str(model.layers)
    verbs = "\n".join(f"regard {verb.format(run.folder)}" for verb in words["verbs"])
    return f"""# {run.folder.name}

A {type(run.model).__name__} of {parameters:,} parameters for the task *{recipe.task}*, trained by regard {version}.

| | |
|---|---|
| data | {data} |
| recipe | `recipe.toml`, {recipe.digest()} |
| model | {model.kind}, {layers} layers of {model.width} |
| trained on | {facts.get("hardware", "unknown")} |

## Scores

{score_table(run.read_json("scores.json"))}

## Intended use

{words["uses"]}

## Misuse

{words["misuses"]}

## Limits

{words["limits"]}

## Use

```
{verbs}
```
"""


def score_table(scores: dict[str, Any]) -> str:
    if not scores:
        return "Not scored yet: `regard evaluate` does it."
    rows = [f"| {name} | {metric.replace('_', ' ')} | {score['score']:.2f} | {score['low']:.2f} – {score['high']:.2f} "
            f"| `{score['signature']}` |"
            for name, metrics in scores.items() for metric, score in metrics.items()]
    return "\n".join(["| set | metric | score | 95% interval | signature |", "|---|---|---|---|---|", *rows])

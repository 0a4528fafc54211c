"""The model card: README.md in a run folder, written from what the folder holds."""

import re
from pathlib import Path
from typing import Any

from regard import distributed
from regard.files import atomic_write
from regard.recipe import AlgorithmWorld, BaseData, Data, ShapesWorld, TasksData
from regard.tasks.base import Run
from regard.tasks.shared.data_record import DATA_FILE
from regard.training.log import read_events

MARKUP = re.compile(r"[\\`*_{}\[\]()#|~]")
"""What Markdown would read as markup within a line."""
FORMAT_NAMES = {"hf": "as a Hugging Face folder", "ctranslate2": "for CTranslate2", "onnx": "as ONNX", "peft": "for PEFT"}


def write_card(run: Run) -> None:
    """Write the card into the run folder; a Hugging Face folder keeps its own."""
    if run._huggingface is not None or not distributed.is_main():
        return
    atomic_write(run.folder / "README.md", card(run))


def card(run: Run, folder: Path | None = None, conversion: dict[str, Any] | None = None) -> str:
    """Return the card of a run, or of the folder it was converted into."""
    recipe, folder = run.recipe, folder or run.folder
    facts = run._read_json("environment.json")
    parameters = sum(p.numel() for p in run.model.parameters())
    version = facts.get("packages", {}).get("regard", "")
    about, model = run.task.card, recipe.model
    layers = f"{model.encoder_layers}+{model.decoder_layers}" if hasattr(model, "encoder_layers") else str(model.layers)
    commands = "\n".join(f"regard {command.format(folder)}" for command in about.commands)
    made = f"trained by regard {version}" if run._huggingface is None else f"from a {run._huggingface.family.model_type} folder"
    known = (
        [("data", escape(data_origin(recipe.data))), ("recipe", f"`recipe.toml`, {recipe.digest()}")]
        if run._huggingface is None
        else []
    )
    if training := run._read_json(DATA_FILE).get("sets", {}).get("training"):
        known += [("training data", f"{training['examples']:,} examples, SHA-256 `{training['sha256'][:16]}…` (`{DATA_FILE}`)")]
    known += [("model", f"{model.kind}, {layers} layers of {model.width}")]
    known += [("trained on", facts.get("hardware", "unknown"))] if run._huggingface is None else []
    if isinstance(recipe.data, TasksData):
        known += [
            (f"task {escape(name)}", f"{task.kind}: {code(' … '.join(task.prefixes) + '…')}")
            for name, task in recipe.data.tasks.items()
        ]
    known += [
        ("changed while training", f"from step {step:,} on: {escape(change)}") for step, change in accepted_changes(run.folder)
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in known)
    return f"""# {escape(folder.name)}

A {type(run.model).__name__} of {parameters:,} parameters for the task *{recipe.task}*, {made}.

| | |
|---|---|
{table}

## Scores

{score_table(run._read_json("scores.json"))}
{conversion_section(conversion or run._read_json("conversion.json"))}
## Intended use

{about.uses}

## Misuse

{about.misuses}

## Limits

{about.limits}

## Use

```
{commands}
```
"""


def accepted_changes(folder: Path) -> list[tuple[int, str]]:
    """Return the step and description of each change of data or settings that was accepted on resume."""
    records = read_events(folder / "log.jsonl", "accepted_change")
    return list(dict.fromkeys((int(record["step"]), str(record["change"])) for record in records))


def escape(text: str) -> str:
    """Return a text of unknown origin (a label, a file name) for a cell of a Markdown table: one line, no markup."""
    return MARKUP.sub(r"\\\g<0>", one_line(text)).replace("&", "&amp;").replace("<", "&lt;")


def code(text: str) -> str:
    """Return a text of unknown origin as code in a cell of a Markdown table."""
    return f"`{one_line(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def conversion_section(note: dict[str, Any]) -> str:
    """Return the section on a conversion: what it was compared with, and the largest differences."""
    if not note:
        return ""
    title = f"\n## Conversion\n\nWritten from {code(note['from'])} {FORMAT_NAMES[note['to']]}. "
    if "against" not in note:
        return f"{title}Not compared yet: `regard convert … --{'to hf --' * (note['to'] == 'peft')}verify` does it.\n"
    named = {"logits": note.get("measured", "logits"), "states": "states", "attention": "attention"}
    rows = "\n".join(f"| {shown} | {note[name]:.1e} |" for name, shown in named.items() if note[name] is not None)
    texts = "".join(
        f"| {kind} text, the same | {note[kind]} of {note['texts']} |\n"
        for kind in ("greedy", "beam")
        if note["texts"] and note[kind] is not None
    )
    return f"{title}Largest differences to {note['against']}, float32:\n\n| | |\n|---|---|\n{rows}\n{texts}"


def data_origin(data: BaseData) -> str:
    """Return where the data comes from."""
    if isinstance(data, TasksData):
        return data.origin or "; ".join(f"{name}: {data_origin(task)}" for name, task in data.tasks.items())
    assert isinstance(data, Data)
    world = data.world
    if data.origin or world is None:
        return data.origin or f"{', '.join(data.train)}; origin and licence not stated in the recipe (data.origin)"
    match world:
        case AlgorithmWorld():
            which = f"lengths {world.shortest} to {world.longest}"
        case ShapesWorld():
            which = f"{world.shapes[0]} to {world.shapes[1]} shapes per image"
        case _:
            which = f"level {world.level}"
    return f"the embedded {world.kind} world, {which}, {world.number:,} examples"


def score_table(scores: dict[str, Any]) -> str:
    """Return the scores as a Markdown table."""
    if not scores:
        return "Not scored yet: `regard evaluate` does it."
    rows = [
        f"| {escape(name)} | {escape(metric.replace('_', ' '))} | {score['score']:.2f} "
        f"| {score['low']:.2f} – {score['high']:.2f} | {code(score['signature'])} |"
        for name, metrics in scores.items()
        for metric, score in metrics.items()
    ]
    return "\n".join(["| set | metric | score | 95% interval | signature |", "|---|---|---|---|---|", *rows])

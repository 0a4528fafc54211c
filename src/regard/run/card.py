"""The card of a run: README.md in its folder, made from what the folder holds."""

from pathlib import Path
from typing import Any

from regard import distributed
from regard.files import atomic_write
from regard.recipe import AlgorithmWorld, BaseData, Data, ShapesWorld, TasksData
from regard.tasks.base import Run
from regard.tasks.images import ImageRun

FORMAT_NAMES = {"hf": "as a Hugging Face folder", "ctranslate2": "for CTranslate2", "onnx": "as ONNX"}
HUMAN_CHECK = "Text that matters to somebody's health, rights or safety without a person who checks"
LIMITS = """It knows only what its training text says, and repeats its biases and mistakes. Text unlike its training data, texts
longer than `model.max_length` tokens and unknown characters come out badly."""

TASK_TEXTS: dict[str, dict[str, Any]] = {
    "translate": {
        "uses": "Translation of short texts like those it was trained on. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} and reads both languages; passing its output off as a person's words.",
        "limits": f"{LIMITS} It can translate fluently and wrongly.",
        "verbs": ['translate {} "…"', 'show {} "…" --out attention.svg'],
    },
    "language": {
        "uses": "Text like its training text, its perplexity, contextual vectors of words. Research and teaching.",
        "misuses": "Misleading news, impersonation, spam, and any text passed off as a person's.",
        "limits": f"{LIMITS} What it writes is likely, not true.",
        "verbs": ['generate {} "…"', 'embed {} "…" --pool words'],
    },
    "masked": {
        "uses": "Filling in words of texts like those it was trained on, contextual vectors, fine-tuning. Research and teaching.",
        "misuses": "Deciding what somebody meant to write; any use of the associations it has learned about people.",
        "limits": LIMITS,
        "verbs": ['fill {} "a <mask> ran"', 'embed {} "…" --pool words'],
    },
    "span-corruption": {
        "uses": "Filling in missing passages of texts like those it was trained on, fine-tuning. Research and teaching.",
        "misuses": "Misleading news, impersonation, spam, and any text passed off as a person's.",
        "limits": f"{LIMITS} What it fills in is likely, not true.",
        "verbs": ['fill {} "the [MASK] ran"'],
    },
    "text-to-text": {
        "uses": "Its tasks, on texts like those it was trained on. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} every answer; passing its output off as a person's words.",
        "limits": f"{LIMITS} It can answer fluently and wrongly.",
        "verbs": ['translate {} "…" --task NAME', 'classify {} "…" --task NAME'],
    },
    "encode": {
        "uses": "Vectors of texts and of words in their sentences, to compare and to search by. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} what is found; judging people by what is near to what.",
        "limits": LIMITS,
        "verbs": ['embed {} "…"', 'embed {} "…" --pool words'],
    },
    "classify": {
        "uses": "Labels of texts like those it was trained on. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} every decision; judging people by what they write.",
        "limits": f"{LIMITS} Its probabilities are not calibrated.",
        "verbs": ['classify {} "…"', 'embed {} "…"'],
    },
    "regress": {
        "uses": "Numbers of texts like those it was trained on. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} every decision; judging people by what they write.",
        "limits": LIMITS,
        "verbs": ['classify {} "…"', 'embed {} "…"'],
    },
    "tag": {
        "uses": "Labels of the words of texts like those it was trained on. Research and teaching.",
        "misuses": f"{HUMAN_CHECK} every decision.",
        "limits": LIMITS,
        "verbs": ['tag {} "…"', 'embed {} "…" --pool words'],
    },
    "answer": {
        "uses": "Answers that stand word for word in a text given with the question, like those it was trained on. Research and "
        "teaching.",
        "misuses": f"{HUMAN_CHECK} the answer against its text; passing its answers off as what a text means.",
        "limits": f"{LIMITS} It knows nothing but the text it is given, points at something in texts that do not answer, and "
        "never at more than `answering.max_answer_tokens` tokens. Its probabilities are not calibrated.",
        "verbs": ['answer {} --question "…" --context "…"', 'embed {} "…" --pool words'],
    },
}


IMAGE_TASK_TEXTS = {
    "classify": {
        "uses": "Labels of pictures like those it was trained on. Research and teaching.",
        "misuses": "Recognising or judging people; anything that matters to somebody's health, rights or safety without a person "
        "who checks every decision.",
        "limits": "It knows only its own labels, and says one of them of any picture. It repeats the biases of its training "
        "pictures; pictures unlike them, and details smaller than its `data.size` shows, come out badly. Its "
        "probabilities are not calibrated.",
        "verbs": ["classify {} a.jpg", "embed {} a.jpg"],
    },
    "caption": {
        "uses": "Captions of pictures like those it was trained on, and where it looked for each word. Research and teaching.",
        "misuses": "Recognising or judging people; telling somebody who cannot see a picture what is in it, without a person who "
        "checks; passing its captions off as a person's words.",
        "limits": "It says fluently what is not there, and says something of any picture. It repeats the biases of its training "
        "captions; pictures unlike its own, and details smaller than its `data.size` shows, come out badly. Where it "
        "looked is not why it said a word.",
        "verbs": ["caption {} a.jpg", "caption {} a.jpg --out look.png", "caption {} --gallery wrong.html"],
    },
    "contrastive": {
        "uses": "Which of some texts fits a picture, and which picture a text; search among pictures like those it was trained "
        "on. Research and teaching.",
        "misuses": "Recognising, sorting or judging people; watching over them; any label that was not tried on pictures like "
        "those at hand.",
        "limits": "It compares the texts it is given, and finds one the best even where none fits. How a label is worded changes "
        "what comes out. It repeats the biases of its training pictures and captions; it counts badly and confuses who "
        "is where. Its probabilities are over the labels given, and not calibrated.",
        "verbs": ['match {} a.jpg --labels "a cat,a dog"', 'embed {} a.jpg "a cat"'],
    },
    "encode": {
        "uses": "Vectors of pictures, to compare and to search by. Research and teaching.",
        "misuses": "Recognising or judging people by what is near to what.",
        "limits": "It repeats the biases of its training pictures; pictures unlike them come out badly.",
        "verbs": ["embed {} a.jpg"],
    },
    "image-codes": {
        "uses": "Pictures like those it was trained on in few numbers, for models that draw. Research and teaching.",
        "misuses": "Keeping pictures whose details matter; showing what it makes of a person's picture as that person.",
        "limits": "What it gives back is like the picture and not the same; pictures unlike those it was trained on come out "
        "badly.",
        "verbs": ["evaluate {}"],
    },
    "text-to-image": {
        "uses": "Pictures like those it was trained on, from captions like theirs. Research and teaching.",
        "misuses": "Misleading pictures: of people, of events, of anything passed off as seen or as made by a person; imitating "
        "somebody's work without leave.",
        "limits": "It repeats the biases of its training pictures and captions, draws something for any caption, and often not "
        "what was asked. Captions unlike its own, and longer than `model.text_length` tokens, come out badly.",
        "verbs": ['draw {} "…" --out a.png --number 8'],
    },
}


def write_card(run: Run) -> None:
    """Into the run's folder; somebody else's folder keeps the card it has."""
    if run.huggingface is not None or not distributed.is_main():
        return
    atomic_write(run.folder / "README.md", card(run))


def card(run: Run, folder: Path | None = None, conversion: dict[str, Any] | None = None) -> str:
    """The card of a run, or of the folder it was converted into."""
    recipe, folder = run.recipe, folder or run.folder
    facts = run.read_json("environment.json")
    parameters = sum(p.numel() for p in run.model.parameters())
    version = facts.get("packages", {}).get("regard", "")
    words, model = (IMAGE_TASK_TEXTS if isinstance(run, ImageRun) else TASK_TEXTS)[recipe.task], recipe.model
    layers = f"{model.encoder_layers}+{model.decoder_layers}" if hasattr(model, "encoder_layers") else str(model.layers)
    verbs = "\n".join(f"regard {verb.format(folder)}" for verb in words["verbs"])
    made = f"trained by regard {version}" if run.huggingface is None else f"from a {run.huggingface.family.model_type} folder"
    known = (
        [("data", data_origin(recipe.data)), ("recipe", f"`recipe.toml`, {recipe.digest()}")] if run.huggingface is None else []
    )
    known += [("model", f"{model.kind}, {layers} layers of {model.width}")]
    known += [("trained on", facts.get("hardware", "unknown"))] if run.huggingface is None else []
    if isinstance(recipe.data, TasksData):
        known += [(f"task {name}", f"{task.kind}: `{' … '.join(task.prefixes)}…`") for name, task in recipe.data.tasks.items()]
    table = "\n".join(f"| {name} | {value} |" for name, value in known)
    return f"""# {folder.name}

A {type(run.model).__name__} of {parameters:,} parameters for the task *{recipe.task}*, {made}.

| | |
|---|---|
{table}

## Scores

{score_table(run.read_json("scores.json"))}
{conversion_section(conversion or run.read_json("conversion.json"))}
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


def conversion_section(note: dict[str, Any]) -> str:
    """What a conversion was compared with, and how far apart the two are."""
    if not note:
        return ""
    title = f"\n## Conversion\n\nWritten from `{note['from']}` {FORMAT_NAMES[note['to']]}. "
    if "against" not in note:
        return f"{title}Not compared yet: `regard convert … --verify` does it.\n"
    named = {"logits": note.get("measured", "logits"), "states": "states", "attention": "attention"}
    rows = "\n".join(f"| {shown} | {note[name]:.1e} |" for name, shown in named.items() if note[name] is not None)
    texts = "".join(
        f"| {kind} text, the same | {note[kind]} of {note['texts']} |\n"
        for kind in ("greedy", "beam")
        if note["texts"] and note[kind] is not None
    )
    return f"{title}Largest differences to {note['against']}, float32:\n\n| | |\n|---|---|\n{rows}\n{texts}"


def data_origin(data: BaseData) -> str:
    """Where the data come from."""
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
            which = f"{world.shapes[0]} to {world.shapes[1]} shapes a picture"
        case _:
            which = f"level {world.level}"
    return f"the embedded {world.kind} world, {which}, {world.number:,} examples"


def score_table(scores: dict[str, Any]) -> str:
    if not scores:
        return "Not scored yet: `regard evaluate` does it."
    rows = [
        f"| {name} | {metric.replace('_', ' ')} | {score['score']:.2f} | {score['low']:.2f} – {score['high']:.2f} "
        f"| `{score['signature']}` |"
        for name, metrics in scores.items()
        for metric, score in metrics.items()
    ]
    return "\n".join(["| set | metric | score | 95% interval | signature |", "|---|---|---|---|---|", *rows])

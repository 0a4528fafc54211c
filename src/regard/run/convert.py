"""Write a run as a Hugging Face folder, for CTranslate2 or as ONNX, and prove that it says the same there."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.watch import watch
from regard.batches.ragged import Ragged
from regard.batches.rows import read, read_two
from regard.decoding.beam import beam_search
from regard.decoding.greedy import walk
from regard.errors import Mistake
from regard.interop.convert import write_folder
from regard.interop.efficientnet import PACKAGE, packaged_weights
from regard.interop.verify import Asked, Proof, Said, by_transformers, compare, is_installed
from regard.layers.stack import Stack
from regard.run.card import card, converted
from regard.run.export import export
from regard.run.load import load
from regard.tasks.base import Run
from regard.tasks.contrastive import ContrastRun
from regard.tasks.images import PictureRun
from regard.tokens.special import NO_MARK
from regard.training.checkpoint import write_weights

TEXTS = ["The dog sleeps.", "A small cat looks at the old house, and it is happy.", "Yes", "We sold 12 books in 1999!"]
LARGEST_CARD = 2**20
TWO_TEXTS = ("translate", "corrupted", "text-to-text")
FORMS = ("hf", "ctranslate2", "onnx")


def convert(
    source: str | Path, out: str | Path, *, to: str = "hf", verify: bool = False, allow_pickle: bool = False, device: str = "auto"
) -> Proof | None:
    """Write a run, a Hugging Face folder or one of the hub into `out`; the proof, where one is asked for."""
    if to not in FORMS:
        raise Mistake(f"--to {to}: should be {', '.join(FORMS)}")
    if str(source) == PACKAGE and not Path(source).exists():
        write_packaged(Path(out), verify)
        return None
    run = load(source, device=device, allow_pickle=allow_pickle)
    if to == "hf":
        folder = write_folder(run, out)
        proof = prove(run, folder) if verify else None
    else:
        asked = ask(run)
        mine = said(run, asked, writes(run)) if verify and to == "ctranslate2" else None
        folder, proof = export(run, out, to, asked, inputs_of(run, asked), mine, verify=verify)
    note = {"to": to, "from": Path(source).name, **(proof.to_json() if proof else {})}
    (folder / "README.md").write_text(card_of(run, folder, note), encoding="utf-8")
    if run.foreign is None and proof is not None:
        (run.folder / "conversion.json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        (run.folder / "README.md").write_text(card(run), encoding="utf-8")
    return proof


def write_packaged(folder: Path, verify: bool) -> None:
    """The weights of EfficientNet-Lite0, for a captioner's `train.begin`."""
    if verify:
        raise Mistake(f"--verify: {PACKAGE} has weights without a program to compare with; leave it out")
    weights = packaged_weights()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"cannot write {folder}: {error.strerror}") from None
    write_weights(folder / "model.safetensors", weights)


def card_of(run: Run, folder: Path, note: dict[str, Any]) -> str:
    """Ours; somebody else's card is kept, and told of the conversion."""
    theirs = run.folder / "README.md"
    if run.foreign is None or not theirs.is_file() or theirs.stat().st_size > LARGEST_CARD:
        return card(run, folder, note)
    return f"{theirs.read_text(encoding='utf-8', errors='replace').rstrip()}\n{converted(note)}"


def prove(run: Run, folder: Path) -> Proof:
    """Compare a run with its folder: read by `transformers` where that is installed, else read again by us."""
    asked = ask(run)
    mine = said(run, asked, writes(run))
    theirs = (
        by_transformers(folder, asked, writes=writes(run))
        if is_installed()
        else said(load(folder, device="cpu"), asked, writes(run))
    )
    theirs.logits = run.learned(theirs.logits)
    return compare(mine, theirs, asked, "transformers" if is_installed() else "the folder read again")


def writes(run: Run) -> bool:
    """Whether texts are written by it."""
    return run.recipe.task in ("language", *TWO_TEXTS) and not is_bare(run)


def is_bare(run: Run) -> bool:
    """Whether it came without a head; its last states are then what it says."""
    return run.foreign is not None and run.foreign.architecture.bare


def reads_pairs(run: Run) -> bool:
    """Whether it is asked about two texts at once; a model from elsewhere does not say, and is."""
    return run.recipe.task == "answer" or (
        run.recipe.task in ("classify", "regress") and (run.foreign is not None or run.recipe.data.second is not None)
    )


def ask(run: Run) -> Asked:
    """A few texts, of different lengths, as the run reads them; or pictures of noise, or both."""
    pixels, positions = None, 0
    if isinstance(run, PictureRun):
        pixels = torch.randn(len(TEXTS), 3, *run.frame.size, generator=torch.Generator().manual_seed(run.recipe.seed))
    if isinstance(run, ContrastRun):
        positions = run.recipe.model.image.length(run.frame.size)
    elif pixels is not None:
        places = torch.zeros(len(TEXTS), run.longest, dtype=torch.long)
        return Asked(places, torch.full((len(TEXTS),), run.longest), pixels=pixels)
    most = run.recipe.model.max_length // 2
    texts = [ids[: max(1, most - run.marks.around)] or [0] for ids in run.tokenizers[0].encode(TEXTS)]
    inputs = read(Ragged.of(texts), run.marks)
    if reads_pairs(run):
        room = max(1, most - run.marks.around_two)
        inputs = read_two(Ragged.of(texts).truncated(room), Ragged.of(texts[::-1]).truncated(room), run.marks)
    asked = Asked(
        inputs["source"],
        inputs["lengths"],
        inputs.get("segments"),
        marks=run.marks,
        max_tokens=min(24, most - 1),
        pixels=pixels,
        positions=positions,
    )
    if run.recipe.task in TWO_TEXTS:
        asked.target = torch.cat([torch.full((len(texts), 1), run.marks.begin), asked.source[:, :5].flip(0)], dim=1)
        asked.prompts = [row[:length].tolist() for row, length in zip(asked.source, asked.lengths)]
    elif run.recipe.task == "language":
        opening = [] if run.marks.begin == NO_MARK else [run.marks.begin]
        asked.prompts = [[*opening, *ids] for ids in texts]
    return asked


def inputs_of(run: Run, asked: Asked) -> dict[str, Tensor]:
    """What was asked, as our model reads it."""
    inputs: dict[str, Tensor] = (
        {"target": asked.source} if run.recipe.task == "language" else {"source": asked.source, "lengths": asked.lengths}
    )
    if asked.target is not None:
        inputs["target"] = asked.target
    if asked.segments is not None:
        inputs["segments"] = asked.segments
    if asked.pixels is not None:
        inputs = {"pixels": asked.pixels, **(inputs if asked.positions else {})}
    return inputs


@torch.no_grad()
def said(run: Run, asked: Asked, writes: bool) -> Said:
    """What a run of ours says, on the CPU in float32."""
    model = run.model.to("cpu").float()
    inputs = inputs_of(run, asked)
    with watch(model) as seen, States(model, normed=asked.pixels is None) as states:
        logits = model(**inputs)
    if asked.positions:
        images, texts, scale = logits
        return Said(
            scale * images @ texts.T,
            {"features": [images, texts], "image": states.found["image.stack"], "text": states.found["text.stack"]},
            {name: list(seen.stack(rf"^{name}.*self")) for name in ("image", "text")},
        )
    kinds = {"text": r"self", "encoder": r"^encoder.*self", "decoder": r"^decoder.*self", "cross": r"cross"}
    wanted = ["encoder", "decoder", "cross"] if asked.target is not None else ["text"]
    layers = states.by_stack(asked.target is not None)
    if is_bare(run) and asked.pixels is None:
        logits = layers[list(layers)[-1]][-1]
    elif run.recipe.task == "answer":
        logits = logits.transpose(1, 2)
    found = Said(logits, layers, {kind: list(seen.stack(kinds[kind])) for kind in wanted})
    if writes:
        found.greedy = [write(model, prompt, asked, 1) for prompt in asked.prompts]
        found.beam = [write(model, prompt, asked, asked.beam) for prompt in asked.prompts]
    model.to(run.device)
    return found


def write(model: nn.Module, prompt: list[int], asked: Asked, beam: int) -> list[int]:
    ids, limits = torch.tensor([prompt]), torch.tensor([asked.max_tokens + 1])
    two = asked.target is not None
    inputs: Any = (ids, torch.tensor([len(prompt)])) if two else None
    options: dict[str, Any] = {"prefix": None if two else ids, "marks": asked.marks}
    if beam == 1:
        return walk(model, inputs, limits, **options)[0].tokens  # type: ignore[arg-type]
    return beam_search(model, inputs, limits, beam=beam, **options)[0][0].tokens  # type: ignore[arg-type]


class States:
    """What goes into the first layer of every stack and comes out of each, the last one normalised where theirs are."""

    def __init__(self, model: nn.Module, normed: bool = True):
        self.normed = normed
        self.stacks = {name: module for name, module in model.named_modules() if isinstance(module, Stack)}
        self.found: dict[str, list[Tensor]] = {name: [] for name in self.stacks}

    def __enter__(self) -> "States":
        self.handles = []
        for name, stack in self.stacks.items():
            for module in (stack.dropout, *list(stack.blocks)[:-1], stack.norm if self.normed else stack.blocks[-1]):
                self.handles.append(
                    module.register_forward_hook(lambda _, __, output, name=name: self.found[name].append(output))
                )
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def by_stack(self, two: bool) -> dict[str, list[Tensor]]:
        return self.found if two else {"text": next(iter(self.found.values()))}

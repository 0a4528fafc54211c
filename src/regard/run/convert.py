"""Write a run as a Hugging Face folder, for CTranslate2 or as ONNX, and prove that it says the same there."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.watch import watch
from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_inputs, encoder_pair_inputs
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_or_sample
from regard.errors import UserError
from regard.interop.convert import write_huggingface_folder
from regard.interop.efficientnet import PACKAGE, load_packaged_weights
from regard.interop.verify import (
    ConversionProof,
    ParityInputs,
    ParityOutputs,
    compare_outputs,
    is_transformers_installed,
    run_transformers,
)
from regard.layers.stack import Stack
from regard.run.card import card, conversion_section
from regard.run.export import export
from regard.run.load import load
from regard.tasks.base import Run
from regard.tasks.contrastive import ContrastiveRun
from regard.tasks.images import ImageRun
from regard.tokens.special_tokens import NO_TOKEN
from regard.training.checkpoint import write_weights

TEXTS = ["The dog sleeps.", "A small cat looks at the old house, and it is happy.", "Yes", "We sold 12 books in 1999!"]
LARGEST_CARD = 2**20
TWO_TEXTS = ("translate", "span-corruption", "text-to-text")
FORMS = ("hf", "ctranslate2", "onnx")


def convert(
    source: str | Path, out: str | Path, *, to: str = "hf", verify: bool = False, allow_pickle: bool = False, device: str = "auto"
) -> ConversionProof | None:
    """Write a run, a Hugging Face folder or one of the hub into `out`; the proof, where one is asked for."""
    if to not in FORMS:
        raise UserError(f"--to {to}: should be {', '.join(FORMS)}")
    if str(source) == PACKAGE and not Path(source).exists():
        write_packaged_weights(Path(out), verify)
        return None
    run = load(source, device=device, allow_pickle=allow_pickle)
    if to == "hf":
        folder = write_huggingface_folder(run, out)
        proof = verify_conversion(run, folder) if verify else None
    else:
        asked = verification_inputs(run)
        mine = model_outputs(run, asked, generates_text(run)) if verify and to == "ctranslate2" else None
        folder, proof = export(run, out, to, asked, model_inputs(run, asked), mine, verify=verify)
    note = {"to": to, "from": Path(source).name, **(proof.to_json() if proof else {})}
    (folder / "README.md").write_text(converted_card(run, folder, note), encoding="utf-8")
    if run.huggingface is None and proof is not None:
        (run.folder / "conversion.json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        (run.folder / "README.md").write_text(card(run), encoding="utf-8")
    return proof


def write_packaged_weights(folder: Path, verify: bool) -> None:
    """The weights of EfficientNet-Lite0, for a captioner's `train.init_from`."""
    if verify:
        raise UserError(f"--verify: {PACKAGE} has weights without a program to compare with; leave it out")
    weights = load_packaged_weights()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from None
    write_weights(folder / "model.safetensors", weights)


def converted_card(run: Run, folder: Path, note: dict[str, Any]) -> str:
    """Ours; somebody else's card is kept, and told of the conversion."""
    theirs = run.folder / "README.md"
    if run.huggingface is None or not theirs.is_file() or theirs.stat().st_size > LARGEST_CARD:
        return card(run, folder, note)
    return f"{theirs.read_text(encoding='utf-8', errors='replace').rstrip()}\n{conversion_section(note)}"


def verify_conversion(run: Run, folder: Path) -> ConversionProof:
    """Compare a run with its folder: read by `transformers` where that is installed, else read again by us."""
    asked = verification_inputs(run)
    mine = model_outputs(run, asked, generates_text(run))
    theirs = (
        run_transformers(folder, asked, generates=generates_text(run))
        if is_transformers_installed()
        else model_outputs(load(folder, device="cpu"), asked, generates_text(run))
    )
    theirs.logits = run.learned(theirs.logits)
    return compare_outputs(mine, theirs, asked, "transformers" if is_transformers_installed() else "the folder read again")


def generates_text(run: Run) -> bool:
    """Whether texts are written by it."""
    return run.recipe.task in ("language", *TWO_TEXTS) and not is_bare(run)


def is_bare(run: Run) -> bool:
    """Whether it came without a head; its last states are then what it says."""
    return run.huggingface is not None and run.huggingface.architecture.bare


def reads_pairs(run: Run) -> bool:
    """Whether it is asked about two texts at once; a model from elsewhere does not say, and is."""
    return run.recipe.task == "answer" or (
        run.recipe.task in ("classify", "regress") and (run.huggingface is not None or run.recipe.data.text_pair is not None)
    )


def verification_inputs(run: Run) -> ParityInputs:
    """A few texts, of different lengths, as the run reads them; or pictures of noise, or both."""
    pixels, positions = None, 0
    if isinstance(run, ImageRun):
        pixels = torch.randn(len(TEXTS), 3, *run.frame.size, generator=torch.Generator().manual_seed(run.recipe.seed))
    if isinstance(run, ContrastiveRun):
        positions = run.recipe.model.image.length(run.frame.size)
    elif pixels is not None:
        places = torch.zeros(len(TEXTS), run.longest, dtype=torch.long)
        return ParityInputs(places, torch.full((len(TEXTS),), run.longest), pixels=pixels)
    most = run.recipe.model.max_length // 2
    texts = [ids[: max(1, most - run.special_tokens.num_added)] or [0] for ids in run.tokenizers[0].encode(TEXTS)]
    inputs = encoder_inputs(Ragged.from_rows(texts), run.special_tokens)
    if reads_pairs(run):
        room = max(1, most - run.special_tokens.num_added_to_pair)
        inputs = encoder_pair_inputs(
            Ragged.from_rows(texts).truncate(room), Ragged.from_rows(texts[::-1]).truncate(room), run.special_tokens
        )
    asked = ParityInputs(
        inputs["source"],
        inputs["lengths"],
        inputs.get("segments"),
        special_tokens=run.special_tokens,
        max_tokens=min(24, most - 1),
        pixels=pixels,
        positions=positions,
    )
    if run.recipe.task in TWO_TEXTS:
        asked.target = torch.cat([torch.full((len(texts), 1), run.special_tokens.bos), asked.source[:, :5].flip(0)], dim=1)
        asked.prompts = [row[:length].tolist() for row, length in zip(asked.source, asked.lengths)]
    elif run.recipe.task == "language":
        opening = [] if run.special_tokens.bos == NO_TOKEN else [run.special_tokens.bos]
        asked.prompts = [[*opening, *ids] for ids in texts]
    return asked


def model_inputs(run: Run, asked: ParityInputs) -> dict[str, Tensor]:
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
def model_outputs(run: Run, asked: ParityInputs, writes: bool) -> ParityOutputs:
    """What a run of ours says, on the CPU in float32."""
    model = run.model.to("cpu").float()
    inputs = model_inputs(run, asked)
    with watch(model) as seen, States(model, normed=asked.pixels is None) as states:
        logits = model(**inputs)
    if asked.positions:
        images, texts, scale = logits
        return ParityOutputs(
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
    found = ParityOutputs(logits, layers, {kind: list(seen.stack(kinds[kind])) for kind in wanted})
    if writes:
        found.greedy = [generate_tokens(model, prompt, asked, 1) for prompt in asked.prompts]
        found.beam = [generate_tokens(model, prompt, asked, asked.beam) for prompt in asked.prompts]
    model.to(run.device)
    return found


def generate_tokens(model: nn.Module, prompt: list[int], asked: ParityInputs, beam: int) -> list[int]:
    ids, limits = torch.tensor([prompt]), torch.tensor([asked.max_tokens + 1])
    two = asked.target is not None
    inputs: Any = (ids, torch.tensor([len(prompt)])) if two else None
    options: dict[str, Any] = {"prefix": None if two else ids, "special_tokens": asked.special_tokens}
    if beam == 1:
        return greedy_or_sample(model, inputs, limits, **options)[0].tokens  # type: ignore[arg-type]
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

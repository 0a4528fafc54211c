"""Write a run as a Hugging Face folder, for CTranslate2 or as ONNX, and verify that its outputs stay the same."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from regard.files import atomic_write, writing_into
from regard.interop.convert import has_family, is_huggingface_folder, open_huggingface_folder, write_huggingface_folder
from regard.interop.efficientnet import PACKAGES, load_packaged_weights
from regard.interop.equivalent import sines_first_order
from regard.interop.peft import adapted_run, write_peft_adapter
from regard.interop.verify import (
    ConversionProof,
    ParityInputs,
    ParityOutputs,
    compare_outputs,
    is_transformers_installed,
    run_transformers,
)
from regard.layers.stack import Stack
from regard.progress import track
from regard.run.card import card, conversion_section, write_card
from regard.run.load import HUB_NAME, RUN_FILES, load_native
from regard.tasks.base import Run
from regard.tasks.shared.export import export
from regard.tasks.shared.remote_code import MODELING_FILE, verify_remote_code, write_remote_code_folder
from regard.tokens.special_tokens import NO_TOKEN
from regard.training.checkpoint import write_weights
from regard.training.log import note

TEXTS = ["The dog sleeps.", "A small cat looks at the old house, and it is happy.", "Yes", "We sold 12 books in 1999!"]
VERIFIED_TOKENS = 24
"""Length of the texts that a verification generates."""
MAX_CARD_BYTES = 2**20
FORMATS = ("hf", "ctranslate2", "onnx", "peft")


def convert(
    source: str | Path, out: str | Path, *, to: str = "hf", verify: bool = False, allow_pickle: bool = False, device: str = "auto"
) -> ConversionProof | None:
    """Write a run, a Hugging Face folder or one of the hub into `out`; if `verify`, return the proof of equal outputs."""
    if to not in FORMATS:
        raise UserError(f"--to {to}: should be {', '.join(FORMATS)}")
    if str(source) in PACKAGES and not Path(source).exists():
        write_packaged_weights(str(source), Path(out), verify)
        return None
    run = load_native(source, device=device, allow_pickle=allow_pickle)
    if to == "hf" and not has_family(run):
        note(f"no family of transformers has this model: it is written with our own code, {MODELING_FILE}; where regard is")
        note("installed, it opens with AutoModel.from_pretrained(folder, trust_remote_code=True)")
        folder = write_remote_code_folder(run, out)
        proof = verify_remote_code(run, folder) if verify else None
    elif to == "hf":
        folder = write_huggingface_folder(run, out)
        proof = verify_conversion(run, folder) if verify else None
    elif to == "peft":
        if verify:
            raise UserError("--verify compares whole models; convert --to hf --verify, which has the adapter merged")
        base = Path(adapted_run(run))
        ours = None if is_huggingface_folder(base) else load_native(base, device=device)
        folder, proof = write_peft_adapter(run, out, ours), None
    else:
        samples = verification_inputs(run)
        outputs = model_outputs(run, samples, generates_text(run)) if verify and to == "ctranslate2" else None
        folder, proof = export(run, out, to, samples, model_inputs(run, samples), outputs, verify=verify)
    conversion = {"to": to, "from": Path(source).name, **(proof.to_json() if proof else {})}
    atomic_write(folder / "README.md", converted_card(run, folder, conversion))
    if run._huggingface is None and proof is not None:
        atomic_write(run.folder / "conversion.json", json.dumps(conversion, indent=1) + "\n")
        atomic_write(run.folder / "README.md", card(run))
    return proof


def push_run(run: str | Path, name: str, *, to: str = "hf", private: bool = False) -> str:
    """Upload a run or folder as `owner/name`; return the address of the commit."""
    if to not in ("hf", "run"):
        raise UserError(f"--to {to}: should be hf or run")
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name on the hub; give owner/name")
    if to == "run" and not (Path(run) / "model.safetensors").is_file():
        raise UserError(f"{run} has no model.safetensors; finish its training with: regard train {run} --resume")
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise UserError("uploading needs the hub's client: pip install 'regard[hub]'") from None
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(run)
        if to == "hf":
            folder = Path(aside, "model")
            convert(run, folder, device="cpu")
        elif not (folder / "README.md").is_file():
            write_card(load_native(folder, device="cpu"))
        try:
            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                allow_patterns=RUN_FILES if to == "run" else None,
                ignore_patterns="checkpoints/*",
                commit_message=f"Upload {Path(run).name}",
            )
        except (HfHubHTTPError, OSError) as error:
            reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            raise UserError(f"the hub refuses {name}: {reason}; log in with `hf auth login`, or set HF_TOKEN") from None
    return str(commit.commit_url)


def write_packaged_weights(package: str, folder: Path, verify: bool) -> None:
    """Write the weights of an EfficientNet, for `train.init_from` of a captioner."""
    if verify:
        raise UserError(f"--verify: {package} has weights without a program to compare with; leave it out")
    weights = load_packaged_weights(package)
    with writing_into(folder):
        write_weights(folder / "model.safetensors", weights)


def converted_card(run: Run, folder: Path, note: dict[str, Any]) -> str:
    """Return the card of the converted folder: ours, or the Hugging Face folder's own card with a section on the conversion."""
    theirs = run.folder / "README.md"
    if run._huggingface is None or not theirs.is_file() or theirs.stat().st_size > MAX_CARD_BYTES:
        return card(run, folder, note)
    return f"{theirs.read_text(encoding='utf-8', errors='replace').rstrip()}\n{conversion_section(note)}"


def verify_conversion(run: Run, folder: Path) -> ConversionProof:
    """Compare a run with its converted folder, read by `transformers` if that is installed, else by us."""
    samples = verification_inputs(run)
    ours = model_outputs(run, samples, generates_text(run))
    theirs = (
        run_transformers(folder, samples, generates=generates_text(run), encodes=run.recipe.task == "encode")
        if is_transformers_installed()
        else model_outputs(load_native(folder, device="cpu"), samples, generates_text(run))
    )
    theirs.logits = run._to_training_scale(theirs.logits)
    if run._huggingface is None and has_permuted_width(run, folder):
        order = sines_first_order(run.recipe.model.width)
        ours.states = {name: [state[..., order] for state in states] for name, states in ours.states.items()}
    return compare_outputs(ours, theirs, samples, "transformers" if is_transformers_installed() else "the folder read again")


def has_permuted_width(run: Run, folder: Path) -> bool:
    """Whether the folder has the run's hidden states in another order (interop/equivalent.py)."""
    theirs = open_huggingface_folder(folder).settings.get("positions.sines_first")
    return bool(theirs) and not run.recipe.model.positions.sines_first


def generates_text(run: Run) -> bool:
    """Whether the model writes texts."""
    return (run.task.encoder_decoder or run.task.decoder_only) and not is_bare(run)


def is_bare(run: Run) -> bool:
    """Whether it is a Hugging Face model without a head, whose outputs are its last hidden states."""
    return run._huggingface is not None and run._huggingface.architecture.bare


def reads_pairs(run: Run) -> bool:
    """Whether the inputs are pairs of texts; a Hugging Face classifier does not say, and gets pairs."""
    data = run.recipe.data
    labelled = "text_pair" in type(data).model_fields
    return "answer" in run.task.verbs or (labelled and (run._huggingface is not None or data.text_pair is not None))


def verification_inputs(run: Run) -> ParityInputs:
    """Return a few texts of different lengths as model inputs, or images of noise, or both."""
    pixels, positions = None, 0
    if "image" in run.task.reads:
        size, generator = run._images.size, torch.Generator().manual_seed(run.recipe.seed)
        pixels = torch.randn(len(TEXTS), 3, *size, generator=generator)
        if "text" in run.task.reads:
            positions = run.recipe.model.image.length(size)
        else:
            length = run._max_positions
            return ParityInputs(
                torch.zeros(len(TEXTS), length, dtype=torch.long), torch.full((len(TEXTS),), length), pixels=pixels
            )
    max_length, special_tokens = run.recipe.model.max_length // 2, run._special_tokens
    texts = [ids[: max(1, max_length - special_tokens.num_added)] or [0] for ids in run.tokenizers[0].encode(TEXTS)]
    inputs = encoder_inputs(Ragged.from_rows(texts), special_tokens)
    if reads_pairs(run):
        length = max(1, max_length - special_tokens.num_added_to_pair)
        first, second = Ragged.from_rows(texts).truncate(length), Ragged.from_rows(texts[::-1]).truncate(length)
        inputs = encoder_pair_inputs(first, second, special_tokens)
    samples = ParityInputs(
        inputs["source"],
        inputs["lengths"],
        inputs.get("segments"),
        special_tokens=special_tokens,
        max_tokens=min(VERIFIED_TOKENS, max_length - 1),
        pixels=pixels,
        positions=positions,
    )
    if run.task.encoder_decoder:
        start = torch.tensor(special_tokens.output_start).expand(len(texts), -1)
        samples.target = torch.cat([start, samples.source[:, :5].flip(0)], dim=1)
        samples.prompts = [row[:length].tolist() for row, length in zip(samples.source, samples.lengths)]
    elif run.task.decoder_only:
        bos = [] if special_tokens.bos == NO_TOKEN else [special_tokens.bos]
        samples.prompts = [[*bos, *ids] for ids in texts]
    return samples


def model_inputs(run: Run, samples: ParityInputs) -> dict[str, Tensor]:
    """Return the verification inputs as our model takes them."""
    inputs: dict[str, Tensor] = (
        {"target": samples.source} if run.task.decoder_only else {"source": samples.source, "lengths": samples.lengths}
    )
    if samples.target is not None:
        inputs["target"] = samples.target
    if samples.segments is not None:
        inputs["segments"] = samples.segments
    if samples.pixels is not None:
        inputs = {"pixels": samples.pixels, **(inputs if samples.positions else {})}
    return inputs


@torch.no_grad()
def model_outputs(run: Run, samples: ParityInputs, writes: bool) -> ParityOutputs:
    """Return the outputs, hidden states and attention of our model, on the CPU in float32; if `writes`, generated tokens too."""
    model = run.model.to("cpu").float()
    with watch(model) as seen, record_states(model, normed=samples.pixels is None) as states:
        logits = model(**model_inputs(run, samples))
    if samples.positions:
        images, texts, scale = logits
        return ParityOutputs(
            scale * images @ texts.T,
            {"features": [images, texts], "image": states["image.stack"], "text": states["text.stack"]},
            {name: list(seen.stack(rf"^{name}.*self")) for name in ("image", "text")},
        )
    patterns = {"text": r"self", "encoder": r"^encoder.*self", "decoder": r"^decoder.*self", "cross": r"cross"}
    kinds = ["encoder", "decoder", "cross"] if samples.target is not None else ["text"]
    layers = states if samples.target is not None else {"text": next(iter(states.values()))}
    if is_bare(run) and samples.pixels is None:
        logits = layers[list(layers)[-1]][-1]
    elif "answer" in run.task.verbs:
        logits = logits.transpose(1, 2)
    found = ParityOutputs(logits, layers, {kind: list(seen.stack(patterns[kind])) for kind in kinds})
    if writes:
        for prompt in track(samples.prompts, len(samples.prompts)):
            found.greedy.append(generate_tokens(model, prompt, samples, 1))
            found.beam.append(generate_tokens(model, prompt, samples, samples.beam))
    model.to(run.device)
    return found


def generate_tokens(model: nn.Module, prompt: list[int], samples: ParityInputs, beam: int) -> list[int]:
    """Return the tokens that our search generates from one source or prompt."""
    ids, limits = torch.tensor([prompt]), torch.tensor([samples.max_tokens + 1])
    has_source = samples.target is not None
    inputs: Any = (ids, torch.tensor([len(prompt)])) if has_source else None
    options: dict[str, Any] = {"prefix": None if has_source else ids, "special_tokens": samples.special_tokens}
    if beam == 1:
        return greedy_or_sample(model, inputs, limits, **options)[0].tokens  # type: ignore[arg-type]
    return beam_search(model, inputs, limits, beam=beam, **options)[0][0].tokens  # type: ignore[arg-type]


@contextmanager
def record_states(model: nn.Module, *, normed: bool) -> Iterator[dict[str, list[Tensor]]]:
    """Record, by the name of each stack, the input of its first layer and the output of each layer, the last one normalised if
    `normed`."""
    found: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks:
        for name, stack in model.named_modules():
            if not isinstance(stack, Stack):
                continue
            found[name] = []
            for module in (stack.projection, *list(stack.blocks)[:-1], stack.norm if normed else stack.blocks[-1]):
                hooks.enter_context(module.register_forward_hook(lambda _, __, output, to=found[name]: to.append(output)))
        yield found

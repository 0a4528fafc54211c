"""Write the adapter of a LoRA run as a folder of PEFT: adapter_config.json and adapter_model.safetensors."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import UserError
from regard.files import atomic_folder, require_new_folder
from regard.interop.convert import run_family, write_huggingface_folder
from regard.interop.family_rules import TensorRule
from regard.layers.lora import is_adapter
from regard.recipe import LoraSettings

if TYPE_CHECKING:
    from regard.tasks.base import Run

ADAPTER_FILE = "adapter.safetensors"
"""The file of a run folder with everything that was trained: the adapters, and the weights that the base model does not have."""
BASE_FOLDER = "base"
TASK_TYPES = {
    "classify": "SEQ_CLS",
    "regress": "SEQ_CLS",
    "tag": "TOKEN_CLS",
    "answer": "QUESTION_ANS",
    "language": "CAUSAL_LM",
    "translate": "SEQ_2_SEQ_LM",
    "span-corruption": "SEQ_2_SEQ_LM",
    "text-to-text": "SEQ_2_SEQ_LM",
}
Chunks = list[tuple[TensorRule, Tensor, Tensor]]
"""The chunks of one of their layers that are adapted: the rule of our weight, A (r, inputs) and B (outputs, r)."""


def adapted_run(run: "Run") -> str:
    """Return the path of the run or Hugging Face folder that a LoRA run adapts."""
    if run.recipe.train.lora is None or not (run.folder / ADAPTER_FILE).is_file():
        raise UserError(f"{run.folder} was not trained with train.lora, so it has no adapter; use --to hf for the whole model")
    return run.recipe.train.init_from[0].run


def write_peft_adapter(run: "Run", path: str | Path, base: "Run | None" = None) -> Path:
    """Write a folder that `PeftModel.from_pretrained(base_model, path)` opens. If the run adapts another run, `base`, this is
    written too, as the Hugging Face folder `path/base`."""
    source, lora = adapted_run(run), cast(LoraSettings, run.recipe.train.lora)
    folder = require_new_folder(path)
    try:
        family, name, settings = run_family(run)
    except UserError as error:
        raise UserError(
            f"PEFT adapts models of transformers, and {run.folder} is not built like one ({error}); "
            "use --to hf, which has the adapter merged"
        ) from None
    architecture = family.architectures[name]
    layers: dict[str, Chunks] = defaultdict(list)
    tensors: dict[str, Tensor] = {}
    trained = load_file(run.folder / ADAPTER_FILE)
    prefix = "" if architecture.bare else family.prefix
    for ours, tensor in trained.items():
        if ours.endswith(".lora_B"):
            continue
        weight = f"{ours.removesuffix('.lora_A')}.weight" if is_adapter(ours) else ours
        rule, theirs = family.find_rule(weight, settings, architecture)
        theirs = theirs if rule.head else prefix + theirs
        if is_adapter(ours):
            layers[theirs].append((rule, tensor, trained[ours.removesuffix("A") + "B"]))
        else:
            tensors[theirs] = tensor.T.contiguous() if rule.transposed else tensor
    saved = sorted({name.rpartition(".")[0] for name in tensors})
    ranks: dict[str, int] = {}
    for theirs, chunks in layers.items():
        module = theirs.removesuffix(".weight")
        A, B = join_chunks(chunks)
        ranks[module] = len(A)
        tensors |= {f"{module}.lora_A.weight": A, f"{module}.lora_B.weight": B}
    transposed = any(rule.transposed for chunks in layers.values() for rule, *_ in chunks)
    config = {
        "task_type": TASK_TYPES.get(run.recipe.task),
        "base_model_name_or_path": source if base is None else str(folder.resolve() / BASE_FOLDER),
        "fan_in_fan_out": transposed,
        "modules_to_save": saved or None,
        **adapter_config(lora, ranks),
    }
    with atomic_folder(folder) as aside:
        if base is not None:
            write_huggingface_folder(base, aside / BASE_FOLDER)
        (aside / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        save_file({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, aside / "adapter_model.safetensors")
    return folder


def join_chunks(chunks: Chunks) -> tuple[Tensor, Tensor]:
    """Return A and B of a layer that holds several of ours, such as GPT-2's queries, keys and values: the rows of the A's one
    after another, and the B's as blocks, each at the outputs of its chunk."""
    if len(chunks) == 1 and chunks[0][0].chunk == (0, 1):
        return chunks[0][1], chunks[0][2]
    count, (outputs, rank) = chunks[0][0].chunk[1], chunks[0][2].shape
    joined = chunks[0][2].new_zeros(count * outputs, rank * len(chunks))
    for column, (rule, _, B) in enumerate(chunks):
        row = rule.chunk[0]
        joined[row * outputs : (row + 1) * outputs, column * rank : (column + 1) * rank] = B
    return torch.cat([A for _, A, _ in chunks]), joined


def adapter_config(lora: LoraSettings, ranks: dict[str, int]) -> dict[str, Any]:
    """Return the adapter's part of adapter_config.json, given the rank of each layer. A layer that holds several of ours has
    their ranks together, at the same scale alpha / rank."""
    larger = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    return {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(ranks),
        "rank_pattern": larger,
        "alpha_pattern": {module: lora.alpha * rank / lora.rank for module, rank in larger.items()},
        "bias": "none",
        "inference_mode": True,
    }

"""Write a run for another engine, CTranslate2 or ONNX, and verify that its outputs stay the same."""

import importlib.metadata
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files import atomic_write
from regard.interop import ctranslate2 as ct2
from regard.interop.onnx import run_onnx, write_onnx
from regard.interop.verify import ConversionProof, ParityInputs, ParityOutputs
from regard.tasks.base import Run
from regard.tokens.special_tokens import NO_TOKEN

Pairs = list[tuple[Tensor, Tensor]]


def export(
    run: Run,
    out: str | Path,
    to: str,
    samples: ParityInputs,
    inputs: dict[str, Tensor],
    ours: ParityOutputs | None,
    *,
    verify: bool,
) -> tuple[Path, ConversionProof | None]:
    """Write the folder; return it, and how far the engine's outputs are from ours. `ours` has the tokens that we generate."""
    run.model.to("cpu").float()
    if to == "onnx":
        if samples.positions:
            raise UserError(f"{run.folder} reads images and texts at once, which is not written as ONNX; use --to hf")
        folder = write_onnx(run.model, inputs, out)
        return folder, verify_onnx(run, folder, samples, inputs) if verify else None
    folder = ct2.write_ctranslate2(run.model, run.tokenizers, out)
    for name, tokenizer in zip(("tokenizer.json", "tokenizer.target.json"), dict.fromkeys(run.tokenizers)):
        atomic_write(folder / name, tokenizer.to_json())
    return folder, None if ours is None else verify_ctranslate2(run, folder, samples, inputs, ours)


@torch.no_grad()
def verify_onnx(run: Run, folder: Path, samples: ParityInputs, inputs: dict[str, Tensor]) -> ConversionProof:
    """Return the largest difference between the logits of onnxruntime and ours."""
    ours, theirs = run.model(**inputs), run_onnx(folder, inputs)
    if ours.dim() == 3 and samples.target is None and samples.pixels is None and ours.shape[:2] == samples.attention_mask.shape:
        ours, theirs = ours[samples.attention_mask], theirs[samples.attention_mask]
    difference = (ours - theirs)[ours.isfinite()].abs().max()
    return ConversionProof(f"onnxruntime {importlib.metadata.version('onnxruntime')}", float(difference), None, None)


@torch.no_grad()
def verify_ctranslate2(
    run: Run, folder: Path, samples: ParityInputs, inputs: dict[str, Tensor], ours: ParityOutputs
) -> ConversionProof:
    """Compare log-probabilities of given texts, and greedy outputs; CTranslate2's beam search ends by another rule than ours."""
    log_p = run.model(**inputs).log_softmax(-1)
    target = ct2.vocabulary_tokens(run.tokenizers[-1])
    pairs, texts = (score_translator if run.task.encoder_decoder else score_generator)(run, folder, samples, log_p)
    difference = max((float((one - other).abs().max()) for one, other in pairs if len(one)), default=0.0)
    outputs = [[target.index(token) for token in text] for text in texts]
    same = sum(a == b for a, b in zip(ours.greedy, outputs, strict=True))
    name = f"CTranslate2 {ct2.ctranslate2_version()}"
    return ConversionProof(name, difference, None, None, len(outputs), same, None, measured="log-probabilities")


def score_translator(run: Run, folder: Path, samples: ParityInputs, log_p: Tensor) -> tuple[Pairs, list[list[str]]]:
    """Return our and CTranslate2's log-probabilities of the targets, and its greedy translations."""
    assert samples.target is not None
    source, target = (ct2.vocabulary_tokens(tokenizer) for tokenizer in (run.tokenizers[0], run.tokenizers[-1]))
    engine = ct2.import_ctranslate2().Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    prompts = [[source[i] for i in prompt] for prompt in samples.prompts]
    found = engine.score_batch(prompts, [[target[i] for i in row[1:].tolist()] for row in samples.target])
    expected = log_p[:, :-1].gather(-1, samples.target[:, 1:, None])[..., 0]
    pairs = [(row, torch.tensor(one.log_probs[: len(row)])) for row, one in zip(expected, found)]
    outputs = engine.translate_batch(
        prompts,
        beam_size=1,
        max_decoding_length=samples.max_tokens,
        suppress_sequences=suppressed_sequences(samples, target),
        max_batch_size=1,
    )
    return pairs, [one.hypotheses[0] for one in outputs]


def score_generator(run: Run, folder: Path, samples: ParityInputs, log_p: Tensor) -> tuple[Pairs, list[list[str]]]:
    """Return our and CTranslate2's log-probabilities of the texts, and its greedy continuations."""
    tokens = ct2.vocabulary_tokens(run.tokenizers[0])
    engine = ct2.import_ctranslate2().Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    rows = [row[:length] for row, length in zip(samples.source, samples.lengths.tolist()) if length > 1]
    found = engine.score_batch([[tokens[i] for i in row.tolist()] for row in rows])
    pairs = [
        (log_p[number, : len(row) - 1].gather(-1, row[1:, None])[:, 0], torch.tensor(one.log_probs[-(len(row) - 1) :]))
        for number, (row, one) in enumerate(zip(rows, found))
    ]
    outputs = engine.generate_batch(
        [[tokens[i] for i in prompt] for prompt in samples.prompts],
        beam_size=1,
        sampling_topk=1,
        max_length=samples.max_tokens,
        end_token=[] if samples.special_tokens.eos == NO_TOKEN else tokens[samples.special_tokens.eos],
        include_prompt_in_result=False,
        suppress_sequences=suppressed_sequences(samples, tokens),
        max_batch_size=1,
    )
    return pairs, [one.sequences[0] for one in outputs]


def suppressed_sequences(samples: ParityInputs, tokens: list[str]) -> list[list[str]] | None:
    """Return the tokens that are never generated, as CTranslate2 takes them."""
    return [[tokens[token]] for token in samples.special_tokens.suppressed] or None

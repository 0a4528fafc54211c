"""A run written for another engine, CTranslate2 or ONNX, and the proof that it says the same there."""

import importlib.metadata
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop import ctranslate2 as ct2
from regard.interop.onnx import run_onnx, write_onnx
from regard.interop.verify import ConversionProof, ParityInputs, ParityOutputs
from regard.models.gpt import Gpt
from regard.models.transformer import Transformer
from regard.tasks.base import Run
from regard.tokens.special_tokens import NO_TOKEN


def export(
    run: Run,
    out: str | Path,
    to: str,
    asked: ParityInputs,
    inputs: dict[str, Tensor],
    mine: ParityOutputs | None,
    *,
    verify: bool,
) -> tuple[Path, ConversionProof | None]:
    """The folder, and how far the engine is from what our model says of what was asked; `mine` has the texts it writes."""
    run.model.to("cpu").float()
    if to == "onnx":
        if asked.positions:
            raise UserError(f"{run.folder} reads pictures and texts at once, which is not written as ONNX; use --to hf")
        folder = write_onnx(run.model, inputs, out)
        return folder, verify_onnx(run, folder, asked, inputs) if verify else None
    folder = ct2.write_ctranslate2(run.model, run.tokenizers, out)
    for name, tokenizer in zip(("tokenizer.json", "tokenizer.target.json"), dict.fromkeys(run.tokenizers)):
        (folder / name).write_text(tokenizer.to_json(), encoding="utf-8")
    return folder, None if mine is None else verify_ctranslate2(run, folder, asked, inputs, mine)


@torch.no_grad()
def verify_onnx(run: Run, folder: Path, asked: ParityInputs, inputs: dict[str, Tensor]) -> ConversionProof:
    ours, theirs = run.model(**inputs), run_onnx(folder, inputs)
    if ours.dim() == 3 and asked.target is None and asked.pixels is None and ours.shape[:2] == asked.attention_mask.shape:
        ours, theirs = ours[asked.attention_mask], theirs[asked.attention_mask]
    apart = (ours - theirs)[ours.isfinite()].abs().max()
    return ConversionProof(f"onnxruntime {importlib.metadata.version('onnxruntime')}", float(apart), None, None)


@torch.no_grad()
def verify_ctranslate2(
    run: Run, folder: Path, asked: ParityInputs, inputs: dict[str, Tensor], mine: ParityOutputs
) -> ConversionProof:
    """Log-probabilities of given texts, and the texts that both write, greedily: its beam search ends otherwise than ours."""
    library, name = ct2.import_ctranslate2(), f"CTranslate2 {ct2.ctranslate2_version()}"
    source, target = (ct2.vocabulary_tokens(tokenizer) for tokenizer in (run.tokenizers[0], run.tokenizers[-1]))
    log_p = run.model(**inputs).log_softmax(-1)
    never = [[target[token]] for token in asked.special_tokens.suppressed] or None
    if isinstance(run.model, Transformer):
        assert asked.target is not None
        engine = library.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        read = [[source[i] for i in prompt] for prompt in asked.prompts]
        found = engine.score_batch(read, [[target[i] for i in row[1:].tolist()] for row in asked.target])
        expected = log_p[:, :-1].gather(-1, asked.target[:, 1:, None])[..., 0]
        pairs = [(row, torch.tensor(one.log_probs[: len(row)])) for row, one in zip(expected, found)]
        texts = [
            one.hypotheses[0]
            for one in engine.translate_batch(
                read, beam_size=1, max_decoding_length=asked.max_tokens, suppress_sequences=never, max_batch_size=1
            )
        ]
    else:
        assert isinstance(run.model, Gpt)
        engine = library.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        rows = [row[:length] for row, length in zip(asked.source, asked.lengths.tolist()) if length > 1]
        found = engine.score_batch([[source[i] for i in row.tolist()] for row in rows])
        pairs = [
            (log_p[number, : len(row) - 1].gather(-1, row[1:, None])[:, 0], torch.tensor(one.log_probs[-(len(row) - 1) :]))
            for number, (row, one) in enumerate(zip(rows, found))
        ]
        end = [] if asked.special_tokens.eos == NO_TOKEN else target[asked.special_tokens.eos]
        texts = [
            one.sequences[0]
            for one in engine.generate_batch(
                [[source[i] for i in prompt] for prompt in asked.prompts],
                beam_size=1,
                sampling_topk=1,
                max_length=asked.max_tokens,
                end_token=end,
                include_prompt_in_result=False,
                suppress_sequences=never,
                max_batch_size=1,
            )
        ]
    apart = max((float((one - other).abs().max()) for one, other in pairs if len(one)), default=0.0)
    said = [[target.index(token) for token in text] for text in texts]
    same = sum(a == b for a, b in zip(mine.greedy, said, strict=True))
    return ConversionProof(name, apart, None, None, len(said), same, None, measured="log-probabilities")

"""The engine that decodes a run (ours, or CTranslate2 where it supports the model) and its precision.

The choice is announced once, with its cost in BLEU on the validation set, which is measured once and kept in the run folder.
"""

import atexit
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch

from regard import __version__
from regard.corpus.examples import SentencePairs
from regard.decoding.batching import SearchParams, output_limit
from regard.decoding.protocol import Hypothesis, length_penalty, require_output
from regard.errors import UserError
from regard.files import atomic_write, remove_folder
from regard.hardware import hardware
from regard.interop import ctranslate2 as ct2
from regard.layers.quantized import LARGE_BATCH_ENGINE, PRECISIONS, SMALL_BATCH_ENGINE, convert_precision
from regard.scoring import translation_scores
from regard.tasks.base import Run
from regard.tasks.translate import TranslateRun
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.log import note
from regard.training.precision import cpu_has_bf16

ENGINES = ("auto", "regard", "ctranslate2")
FOLDER, FILE = "ctranslate2", "engines.json"
MAX_BLEU_LOSS = 0.3
"""BLEU that a faster engine may cost."""
SENTENCES = 200
"""Validation sentences that the cost is measured on."""
COMPUTE_TYPES = {"int8": "int8", "bf16": "bfloat16", "fp32": "float32"}


class CTranslate2Engine:
    """A translator's model in CTranslate2: one worker per core, each of one thread, which is faster than one of all threads."""

    def __init__(self, folder: Path, tokenizers: Sequence[Tokenizer], precision: str = "int8"):
        self.name = f"ctranslate2-{ct2.ctranslate2_version()}"
        self.source, self.target = (ct2.vocabulary_tokens(tokenizer) for tokenizer in (tokenizers[0], tokenizers[-1]))
        self.ids = {token: number for number, token in enumerate(self.target)}
        self.special_tokens: SpecialTokens = tokenizers[0].special_tokens
        self.workers = torch.get_num_threads()
        self.translator = ct2.import_ctranslate2().Translator(
            str(folder), device="cpu", compute_type=COMPUTE_TYPES[precision], inter_threads=self.workers, intra_threads=1
        )

    def decode(self, sources: Sequence[Sequence[int]], params: SearchParams, max_length: int) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, best first, ranked by our length penalty: theirs differs."""
        special_tokens = self.special_tokens
        tokens = [[self.source[i] for i in (*special_tokens.prefix, *ids, *special_tokens.suffix)] for ids in sources]
        limits = [output_limit(len(row), max_length, params.max_tokens) for row in tokens]
        budget = params.batch_tokens // params.beam // max(map(len, tokens), default=1)
        found = self.translator.translate_batch(
            tokens,
            beam_size=params.beam,
            num_hypotheses=params.beam,
            length_penalty=0.0,
            return_scores=True,
            max_batch_size=max(1, min(-(-len(tokens) // self.workers), budget)),
            max_decoding_length=max(limits, default=1),
            max_input_length=0,
            suppress_sequences=[[self.target[token]] for token in special_tokens.suppressed] or None,
        )
        return [
            require_output(self.rank(one.hypotheses, one.scores, params.length_penalty, limit)[: params.num_hypotheses])
            for one, limit in zip(found, limits)
        ]

    def rank(self, texts: Sequence[Sequence[str]], log_p: Sequence[float], alpha: float, limit: int) -> list[Hypothesis]:
        """Return hypotheses by our score, best first."""
        ids = [[self.ids[token] for token in tokens][: limit - 1] for tokens in texts]
        found = [
            Hypothesis(tokens, total, total / float(length_penalty(len(tokens) + 1, alpha))) for tokens, total in zip(ids, log_p)
        ]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def use_engine(run: Run, engine: str = "regard", precision: str | None = None) -> None:
    """Set the engine and the precision of a run; announce the choice and its cost."""
    if engine not in ENGINES:
        raise UserError(f"--engine {engine}: should be {', '.join(ENGINES)}")
    if precision is not None and precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: should be {', '.join(PRECISIONS)}")
    if engine != "regard" and (why := why_unsupported(run)):
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {why}")
        note(f"engine: regard, because {why}")
        engine = "regard"
    if precision is not None and precision != "fp32":
        reduce_precision(run, precision, announce=engine == "regard")
    if engine != "regard":
        use_ctranslate2(cast(TranslateRun, run), engine, precision or "int8")


def why_unsupported(run: Run) -> str | None:
    """Return why CTranslate2 cannot decode this run, None if it can."""
    if "translate" not in run.task.verbs:
        return f"{run.folder} {run.task.does}; CTranslate2 is for translating"
    if not ct2.is_ctranslate2_installed():
        return f"CTranslate2 is not installed: {ct2.INSTALL_EXPORT}"
    if run.device.type != "cpu":
        return f"it runs on {run.device}; add --device cpu"
    wrong = ct2.unsupported_settings(run._trained_model, run.tokenizers)
    return f"CTranslate2 has no counterpart of {', '.join(wrong[:3])}; use --engine regard" if wrong else None


BATCH_MATES = "an unusual text may change the outputs of others beside it"


def reduce_precision(run: Run, precision: str, *, announce: bool) -> None:
    """Decode with a copy of the model in a lower precision."""
    run.model, run._precision = convert_precision(run._trained_model, precision, run.device), precision
    if not announce:
        return
    cost = ""
    if "translate" in run.task.verbs:
        found = measure_cost(cast(TranslateRun, run), f"regard-{__version__} {precision}")
        cost = (
            "; its cost in BLEU is unknown without a validation set"
            if found is None
            else f"; BLEU {found['bleu']:.1f} on {found['sentences']} validation sentences, {found['exact']:.1f} in fp32; "
            f"{found['times']:.1f} times as fast"
        )
        if found is not None and found["exact"] - found["bleu"] > MAX_BLEU_LOSS:
            cost += f": more than {MAX_BLEU_LOSS} lost, use --precision fp32"
    engines = " and ".join(dict.fromkeys((SMALL_BATCH_ENGINE, LARGE_BATCH_ENGINE)))
    how = f", linear layers quantized for {engines}, with one scale per batch: {BATCH_MATES}"
    if precision == "bf16":
        emulated = run.device.type == "cpu" and not cpu_has_bf16()
        how = ", which this processor emulates: fp32 may be faster" if emulated else ""
    note(f"precision: {precision}{how}{cost}")


def use_ctranslate2(run: TranslateRun, engine: str, precision: str) -> None:
    """Decode a run with CTranslate2; with `auto`, only if that costs no BLEU and is faster."""
    try:
        run._engine = found_engine = CTranslate2Engine(ctranslate2_folder(run), run.tokenizers, precision)
    except (RuntimeError, ValueError) as error:
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {str(error).splitlines()[0]}") from None
        note(f"engine: regard, because CTranslate2 does not run here: {str(error).splitlines()[0]}")
        return
    found = measure_cost(run, f"{found_engine.name} {precision}")
    name = f"{found_engine.name}, {precision}, {found_engine.workers} workers of one thread"
    if found is None:
        note(f"engine: {name}; its cost in BLEU is unknown without a validation set")
        return
    lost, times = found["exact"] - found["bleu"], found["times"]
    figures = (
        f"BLEU {found['bleu']:.1f} on {found['sentences']} validation sentences, {found['exact']:.1f} by regard in fp32; "
        f"{times:.1f} times as fast"
    )
    if engine == "auto" and (lost > MAX_BLEU_LOSS or times < 1):
        run._engine = None
        why = f"costs {lost:.1f} BLEU" if lost > MAX_BLEU_LOSS else "is slower"
        note(f"engine: regard, because CTranslate2 {why} here ({figures})")
        return
    note(f"engine: {name}; {figures}" + (f": more than {MAX_BLEU_LOSS} lost" if lost > MAX_BLEU_LOSS else ""))


def ctranslate2_folder(run: TranslateRun) -> Path:
    """Return the run's model in CTranslate2's format, written into the run folder unless it is there for these weights."""
    folder, weights = run.folder / FOLDER, weights_identity(run)
    if (folder / "weights").is_file() and (folder / "weights").read_text(encoding="utf-8") == weights:
        return folder
    try:
        if folder.exists():
            remove_folder(folder)
        ct2.write_ctranslate2(run._trained_model, run.tokenizers, folder)
        atomic_write(folder / "weights", weights)
    except (OSError, UserError) as error:
        folder = temporary_folder() / FOLDER
        note(f"the model in CTranslate2's format is not kept in {run.folder} ({error}); using {folder.parent} for now")
        ct2.write_ctranslate2(run._trained_model, run.tokenizers, folder)
    return folder


def temporary_folder() -> Path:
    """Return a new folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="regard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def weights_identity(run: Run) -> str:
    """Return what identifies a file of weights without reading it."""
    stat = (run.folder / "model.safetensors").stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def measure_cost(run: TranslateRun, name: str) -> dict[str, Any] | None:
    """Return BLEU and speed of the run as it is and of our engine in fp32, with the same search; cached in the run folder."""
    if run._huggingface is not None or not isinstance(run.data.valid, SentencePairs):
        return None
    known: dict[str, dict[str, Any]] = run._read_json(FILE)
    key = f"{name}, {hardware(run.device)}"
    if known.get(key, {}).get("weights") == weights_identity(run):
        return known[key]
    examples = run.data.valid
    some = examples.select(range(0, len(examples), -(-len(examples) // SENTENCES)))
    note(f"measuring the cost of {name}, once: {len(some)} validation sentences")
    bleu, seconds = time_translation(run, some)
    fast, run.model, run._engine = (run.model, run._engine), run._trained_model, None
    exact, exact_seconds = time_translation(run, some)
    run.model, run._engine = fast
    times = exact_seconds / seconds
    found = {"bleu": bleu, "exact": exact, "sentences": len(some), "times": times, "weights": weights_identity(run)}
    with suppress(UserError):  # a read-only folder is measured each time
        atomic_write(run.folder / FILE, json.dumps({**known, key: found}, indent=1) + "\n")
    return found


def time_translation(run: TranslateRun, examples: SentencePairs) -> tuple[float, float]:
    """Return the BLEU of translating these examples, and the seconds it takes."""
    run._best(examples.source[:2])  # warm-up
    start = time.perf_counter()
    outputs = [found.text for found in run._best(examples.source)]
    seconds = time.perf_counter() - start
    return translation_scores(outputs, examples.target, metrics=("bleu",), samples=2)["bleu"].score, seconds

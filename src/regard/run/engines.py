"""Whose program says a translation: ours, or CTranslate2's where it can and where its BLEU is as good; and in which precision.

What is chosen is announced once, with the BLEU it costs on the validation set, which is measured once and kept in the run folder.
"""

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.corpus.examples import SentencePairs
from regard.decoding.batching import SearchParams, output_limit
from regard.decoding.protocol import Hypothesis, length_penalty
from regard.errors import UserError
from regard.interop import ctranslate2 as written
from regard.layers.quantized import LARGE_BATCH_ENGINE, PRECISIONS, SMALL_BATCH_ENGINE, convert_precision
from regard.run import environment
from regard.scoring import translation_scores
from regard.tasks.base import Run
from regard.tasks.translate import TranslateRun
from regard.tokens.special_tokens import SpecialTokens
from regard.training.log import note
from regard.training.precision import cpu_has_bf16

ENGINES = ("auto", "regard", "ctranslate2")
FOLDER, FILE = "ctranslate2", "engines.json"
MAX_BLEU_LOSS = 0.3
"""BLEU that a faster way may cost."""
SENTENCES = 200
"""Of the validation set, that it is measured on."""
COMPUTE = {"int8": "int8", "bf16": "bfloat16", "fp32": "float32"}


class CTranslate2Engine:
    """A translator's model read by CTranslate2: a worker a core, each of one thread, which is faster than one of all."""

    def __init__(self, folder: Path, tokenizers: Sequence[Any], precision: str = "int8"):
        library = written.import_ctranslate2()
        self.name = f"ctranslate2-{written.ctranslate2_version()}"
        self.source, self.target = (written.vocabulary_tokens(tokenizer) for tokenizer in (tokenizers[0], tokenizers[-1]))
        self.numbers = {token: number for number, token in enumerate(self.target)}
        self.special_tokens: SpecialTokens = tokenizers[0].special_tokens
        self.workers = torch.get_num_threads()
        self.translator = library.Translator(
            str(folder), device="cpu", compute_type=COMPUTE[precision], inter_threads=self.workers, intra_threads=1
        )

    def decode(self, sources: Sequence[Sequence[int]], params: SearchParams, max_length: int) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, best first, ranked by our length penalty: theirs differs."""
        marks = self.special_tokens
        read = [[self.source[i] for i in (*marks.prefix, *ids, *marks.suffix)] for ids in sources]
        limits = [output_limit(len(tokens), max_length, params.max_tokens) for tokens in read]
        budget = params.batch_tokens // params.beam // max(map(len, read), default=1)
        at_once = max(1, min(-(-len(read) // self.workers), budget))
        found = self.translator.translate_batch(
            read,
            beam_size=params.beam,
            num_hypotheses=params.beam,
            length_penalty=0.0,
            return_scores=True,
            max_batch_size=at_once,
            max_decoding_length=max(limits, default=1),
            max_input_length=0,
            suppress_sequences=[[self.target[token]] for token in marks.suppressed] or None,
        )
        return [
            self.ranked(one.hypotheses, one.scores, params.length_penalty, limit)[: params.num_hypotheses]
            for one, limit in zip(found, limits)
        ]

    def ranked(self, texts: Sequence[Sequence[str]], log_p: Sequence[float], alpha: float, limit: int) -> list[Hypothesis]:
        said = [[self.numbers[token] for token in tokens][: limit - 1] for tokens in texts]
        found = [
            Hypothesis(tokens, total, total / float(length_penalty(len(tokens) + 1, alpha))) for tokens, total in zip(said, log_p)
        ]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def use_engine(run: Run, engine: str = "regard", precision: str | None = None) -> None:
    """Have a run say what it says by this engine in this precision; announce what was chosen and what it costs."""
    if engine not in ENGINES:
        raise UserError(f"--engine {engine}: should be {', '.join(ENGINES)}")
    if precision is not None and precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: should be {', '.join(PRECISIONS)}")
    if engine != "regard" and (why := why_unsupported(run)):
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {why}")
        note(f"engine: regard, for {why}")
        engine = "regard"
    if precision is not None and precision != "fp32":
        reduce_precision(run, precision, told=engine == "regard")
    if engine != "regard":
        assert isinstance(run, TranslateRun)
        use_ctranslate2(run, engine, precision or "int8")


def why_unsupported(run: Run) -> str | None:
    """Why CTranslate2 cannot say what this run says."""
    if not isinstance(run, TranslateRun):
        return f"{run.folder} {run.does}; CTranslate2 is for translating"
    if not written.is_ctranslate2_installed():
        return f"CTranslate2 is not installed: {written.INSTALL_EXPORT}"
    if run.device.type != "cpu":
        return f"it runs on {run.device}; add --device cpu"
    wrong = written.unsupported_settings(run.exact)
    return f"CTranslate2 has no counterpart of {', '.join(wrong[:3])}; use --engine regard" if wrong else None


def reduce_precision(run: Run, precision: str, *, told: bool) -> None:
    """Our own model in a lower precision, beside the exact one."""
    run.model, run.precision = convert_precision(run.exact, precision, run.device), precision
    if not told:
        return
    cost = ""
    if isinstance(run, TranslateRun):
        found = measure_cost(run, f"regard-{__version__} {precision}")
        cost = (
            "; what it costs in BLEU is not known, for there is no validation set"
            if found is None
            else f"; BLEU {found['bleu']:.1f} on {found['sentences']} validation sentences, {found['exact']:.1f} in fp32; "
            f"{found['times']:.1f} times as fast"
        )
        if found is not None and found["exact"] - found["bleu"] > MAX_BLEU_LOSS:
            cost += f": more than {MAX_BLEU_LOSS} lost, use --precision fp32"
    note(f"precision: {describe_precision(precision, run.device)}{cost}")


def describe_precision(precision: str, device: torch.device) -> str:
    """What a precision means here, in words."""
    if precision == "int8":
        return f"int8, linear layers packed for {' and '.join(dict.fromkeys((SMALL_BATCH_ENGINE, LARGE_BATCH_ENGINE)))}"
    slow = "" if device.type != "cpu" or cpu_has_bf16() else ", which this processor has to emulate: fp32 may be faster"
    return f"bf16{slow}"


def use_ctranslate2(run: TranslateRun, engine: str, precision: str) -> None:
    """CTranslate2 for a run; of `auto`, where it costs no BLEU and is faster."""
    try:
        run.engine = CTranslate2Engine(ctranslate2_folder(run), run.tokenizers, precision)
    except (RuntimeError, ValueError) as error:
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {str(error).splitlines()[0]}") from None
        note(f"engine: regard, for CTranslate2 does not run here: {str(error).splitlines()[0]}")
        return
    found = measure_cost(run, f"{run.engine.name} {precision}")
    name = f"{run.engine.name}, {precision}, {run.engine.workers} workers of one thread"
    if found is None:
        note(f"engine: {name}; what it costs in BLEU is not known, for there is no validation set")
        return
    lost, times = found["exact"] - found["bleu"], found["times"]
    figures = (
        f"BLEU {found['bleu']:.1f} on {found['sentences']} validation sentences, {found['exact']:.1f} by regard in fp32; "
        f"{times:.1f} times as fast"
    )
    if engine == "auto" and (lost > MAX_BLEU_LOSS or times < 1):
        run.engine = None
        why = f"costs {lost:.1f} BLEU" if lost > MAX_BLEU_LOSS else "is slower"
        note(f"engine: regard, for CTranslate2 {why} here ({figures})")
        return
    note(f"engine: {name}; {figures}" + (f": more than {MAX_BLEU_LOSS} lost" if lost > MAX_BLEU_LOSS else ""))


def ctranslate2_folder(run: TranslateRun) -> Path:
    """The run's model as CTranslate2 reads it, written once into its folder; again where the weights are others."""
    folder, weights = run.folder / FOLDER, weights_identity(run)
    if (folder / "weights").is_file() and (folder / "weights").read_text(encoding="utf-8") == weights:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    written.write_ctranslate2(run.exact, run.tokenizers, folder)
    (folder / "weights").write_text(weights, encoding="utf-8")
    return folder


def weights_identity(run: Run) -> str:
    """What tells one file of weights from another without reading it."""
    stat = (run.folder / "model.safetensors").stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def measure_cost(run: TranslateRun, name: str) -> dict[str, Any] | None:
    """BLEU and speed as the run is, beside our own in fp32 with the same search; kept in the run folder."""
    if run.huggingface is not None or not isinstance(run.data.valid, SentencePairs):
        return None
    known = run.read_json(FILE)
    key = f"{name}, {environment.hardware(run.device)}"
    if known.get(key, {}).get("weights") == weights_identity(run):
        return known[key]
    examples = run.data.valid
    some = examples.select(range(0, len(examples), -(-len(examples) // SENTENCES)))
    note(f"measuring what {name} costs, once: {len(some)} validation sentences")
    bleu, seconds = time_translation(run, some)
    fast, run.model, run.engine = (run.model, run.engine), run.exact, None
    exact, longer = time_translation(run, some)
    run.model, run.engine = fast
    found = {"bleu": bleu, "exact": exact, "sentences": len(some), "times": longer / seconds, "weights": weights_identity(run)}
    with suppress(OSError):  # a folder that may only be read is measured each time
        (run.folder / FILE).write_text(json.dumps({**known, key: found}, indent=1) + "\n", encoding="utf-8")
    return found


def time_translation(run: TranslateRun, examples: Any) -> tuple[float, float]:
    run.best(examples.source[:2])
    begun = time.perf_counter()
    said = [found.text for found in run.best(examples.source)]
    seconds = time.perf_counter() - begun
    return translation_scores(said, examples.target, metrics=("bleu",), samples=2)["bleu"].score, seconds

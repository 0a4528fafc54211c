"""The engine that decodes a run (ours, or CTranslate2 where it supports the model) and its precision.

The choice is announced once, with its cost in BLEU on the validation set, which is measured once per machine and kept in the run
folder, or in the user's cache if that is read-only.
"""

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch

from regard import __version__, distributed
from regard.corpus.examples import SentencePairs
from regard.decoding.batching import SearchParams, output_limit
from regard.decoding.protocol import Hypothesis, length_penalty, require_output
from regard.errors import UserError
from regard.files import atomic_write, cache_root, cached_folder, remove_folder
from regard.hardware import hardware
from regard.interop import ctranslate2 as ct2
from regard.layers.quantized import LARGE_BATCH_ENGINE, PRECISIONS, SMALL_BATCH_ENGINE, convert_precision
from regard.scoring import translation_scores
from regard.tasks.base import Run
from regard.tasks.shared.run_folder import read_json
from regard.tasks.translate import TranslateRun
from regard.tokens.special_tokens import SpecialTokens
from regard.tokens.tokenizer import Tokenizer
from regard.training.log import note
from regard.training.precision import cpu_has_bf16

ENGINES = ("auto", "regard", "ctranslate2")
FOLDER, FILE = "ctranslate2", "engines.json"
MAX_BLEU_LOSS = 0.3
"""BLEU that a faster engine may cost."""
SENTENCES, CHUNK = 200, 40
"""Validation sentences that the cost is measured on, and how many are translated at a time, by both engines in turn."""
MEASURE_SECONDS = 8.0
"""After this time, the measurement ends with fewer sentences."""
MIN_CHARACTERS = 20_000
"""Less text, some three hundred sentences, is translated before the measurement would end."""
LIMIT_MULTIPLE = 16
"""Output limits of CTranslate2 are rounded up to this, so that sources of similar lengths share a batch."""
COST_FIELDS = {"bleu", "exact", "sentences", "times", "weights"}
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
        torch.set_num_threads(self.workers)  # CTranslate2 sets OpenMP's number, which is torch's too, to one

    def decode(self, sources: Sequence[Sequence[int]], params: SearchParams, max_length: int) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source, best first, ranked by our length penalty: theirs differs."""
        special_tokens = self.special_tokens
        tokens = [[self.source[i] for i in (*special_tokens.prefix, *ids, *special_tokens.suffix)] for ids in sources]
        limits = [output_limit(len(row), max_length, params.max_tokens) for row in tokens]
        groups: dict[int, list[int]] = defaultdict(list)  # by a limit that follows from each source alone: batched = one by one
        for i in sorted(range(len(tokens)), key=lambda i: -len(tokens[i])):
            groups[min(max_length, -(-limits[i] // LIMIT_MULTIPLE) * LIMIT_MULTIPLE)].append(i)
        pending: dict[int, Any] = {}
        for limit, rows in groups.items():
            budget = params.batch_tokens // params.beam // len(tokens[rows[0]])
            results = self.translator.translate_batch(
                [tokens[i] for i in rows],
                beam_size=params.beam,
                num_hypotheses=params.beam,
                length_penalty=0.0,
                return_scores=True,
                max_batch_size=max(1, min(-(-len(rows) // self.workers), budget)),
                max_decoding_length=limit,
                max_input_length=0,
                suppress_sequences=[[self.target[token]] for token in special_tokens.suppressed] or None,
                asynchronous=True,
            )
            pending.update(zip(rows, results))
        found = [pending[i].result() for i in range(len(tokens))]
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


def use_engine(run: Run, engine: str = "regard", precision: str | None = None, *, characters: int | None = None) -> None:
    """Set the engine and the precision of a run; announce the choice and its cost.

    `characters` is how much text is waiting, if known: for little of it, `auto` uses what is known and measures nothing.
    """
    require_names(engine, precision)
    if engine != "regard" and (why := why_unsupported(run)):
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {why}")
        if run.device.type == "cpu" and not is_little(characters):
            note(f"engine: regard, because {why}")
        engine = "regard"
    if precision is not None and precision != "fp32":
        for member in run._ensemble:
            reduce_precision(member, precision, announce=False)
        reduce_precision(run, precision, announce=engine == "regard")
    if engine != "regard":
        use_ctranslate2(cast(TranslateRun, run), engine, precision or "int8", characters)


def is_little(characters: int | None) -> bool:
    return characters is not None and characters < MIN_CHARACTERS


def require_names(engine: str, precision: str | None) -> None:
    """Refuse an engine or a precision that does not exist."""
    if engine not in ENGINES:
        raise UserError(f"--engine {engine}: should be {', '.join(ENGINES)}")
    if precision is not None and precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: should be {', '.join(PRECISIONS)}")


def why_unsupported(run: Run) -> str | None:
    """Return why CTranslate2 cannot decode this run, None if it can."""
    if "translate" not in run.task.verbs:
        return f"{run.folder} {run.task.does}; CTranslate2 is for translating"
    if run._ensemble:
        return "CTranslate2 decodes with one model, not with an ensemble"
    if not ct2.is_ctranslate2_installed():
        return f"CTranslate2 is not installed: {ct2.INSTALL_EXPORT}"
    if run.device.type != "cpu":
        return f"it runs on {run.device}; add --device cpu"
    if distributed.world_size() > 1:
        return "it runs in several processes"
    wrong = ct2.unsupported_settings(run._trained_model, run.tokenizers)
    return f"CTranslate2 has no counterpart of {', '.join(wrong[:3])}; use --engine regard" if wrong else None


BATCH_MATES = "an unusual text may change the outputs of others beside it"


def reduce_precision(run: Run, precision: str, *, announce: bool) -> None:
    """Decode with a copy of the model in a lower precision."""
    run.model, run._precision = convert_precision(run._trained_model, precision, run.device), precision
    if not announce:
        return
    cost = ""
    if "translate" in run.task.verbs and not run._ensemble:
        found = measure_cost(cast(TranslateRun, run), f"regard-{__version__} {precision}", run._trained_model)
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


def use_ctranslate2(run: TranslateRun, engine: str, precision: str, characters: int | None = None) -> None:
    """Decode a run with CTranslate2; with `auto`, only if it costs no BLEU and is faster, as known or measured now."""
    name = f"ctranslate2-{ct2.ctranslate2_version()} {precision}"
    if engine == "auto" and known_cost(run, name, run.model) is None:
        if is_little(characters):
            return
        if validation_pairs(run) is None:
            note("engine: regard, because without a validation set the cost of CTranslate2 is unknown")
            return
    try:
        run._engine = found_engine = CTranslate2Engine(ctranslate2_folder(run), run.tokenizers, precision)
    except (RuntimeError, ValueError, UserError) as error:
        if engine == "ctranslate2":
            raise UserError(f"--engine ctranslate2: {str(error).splitlines()[0]}") from None
        note(f"engine: regard, because CTranslate2 does not run here: {str(error).splitlines()[0]}")
        return
    found = measure_cost(run, name, run.model)
    name = f"{found_engine.name}, {precision}, {found_engine.workers} × one thread"
    if found is None:
        note(f"engine: {name}; its cost in BLEU is unknown without a validation set")
        return
    lost, times = found["exact"] - found["bleu"], found["times"]
    figures = (
        f"BLEU {found['bleu']:.1f} on {found['sentences']} validation sentences, {found['exact']:.1f} by regard in "
        f"{run._precision}; {times:.1f} times as fast"
    )
    if engine == "auto" and (lost > MAX_BLEU_LOSS or times < 1):
        run._engine = None
        why = f"costs {lost:.1f} BLEU" if lost > MAX_BLEU_LOSS else "is slower"
        note(f"engine: regard, because CTranslate2 {why} here ({figures})")
        return
    note(f"engine: {name}; {figures}" + (f": more than {MAX_BLEU_LOSS} lost" if lost > MAX_BLEU_LOSS else ""))


def is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def weights_identity(run: Run) -> str:
    """Return what identifies a file of weights without reading it."""
    files = sorted(path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in run.folder.glob(pattern))
    return " ".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)


def ctranslate2_folder(run: TranslateRun) -> Path:
    """Return the run's model in CTranslate2's format, written unless it is there for these weights."""

    def build(folder: Path) -> dict[str, int]:
        ct2.write_ctranslate2(run._trained_model, run.tokenizers, folder)
        return {}

    identity = f"{run.folder.resolve()} {weights_identity(run)} {ct2.ctranslate2_version()}"
    root, digest = run.folder / FOLDER, hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not is_writable(run.folder):
        return cached_folder(f"{FOLDER}-{digest}", build)
    found = cached_folder(digest, build, root)
    for stale in root.iterdir():
        if stale.name != digest and not stale.name.startswith("."):
            with suppress(OSError):  # another process may remove it too
                remove_folder(stale)
    return found


def costs_file(run: TranslateRun) -> Path:
    """Return the file that keeps what was measured."""
    if is_writable(run.folder):
        return run.folder / FILE
    digest = hashlib.sha256(str(run.folder.resolve()).encode()).hexdigest()[:16]
    return cache_root() / f"{digest}-{FILE}"


def cost_key(name: str, run: TranslateRun, baseline: torch.nn.Module) -> str:
    precision = "fp32" if baseline is run._trained_model else run._precision
    return f"{name}, against {precision}, {hardware(run.device)}"


def read_costs(run: TranslateRun) -> dict[str, dict[str, Any]]:
    """Return all that was measured; nothing if the file is missing or damaged."""
    with suppress(UserError):
        found = read_json(costs_file(run), dict)
        return {key: cost for key, cost in found.items() if isinstance(cost, dict) and cost.keys() >= COST_FIELDS}
    return {}


def known_cost(run: TranslateRun, name: str, baseline: torch.nn.Module) -> dict[str, Any] | None:
    """Return what was measured for these weights on this machine."""
    known = read_costs(run).get(cost_key(name, run, baseline))
    return known if known is not None and known["weights"] == weights_identity(run) else None


def validation_pairs(run: TranslateRun) -> SentencePairs | None:
    """Return some sentences of the validation set, None if the run has none or its files are elsewhere."""
    if run._huggingface is not None:
        return None
    with suppress(UserError):
        if isinstance(examples := run.data.valid, SentencePairs) and len(examples):
            return examples.select(range(0, len(examples), -(-len(examples) // SENTENCES)))
    return None


def measure_cost(run: TranslateRun, name: str, baseline: torch.nn.Module) -> dict[str, Any] | None:
    """Return BLEU and speed of the run as it is and of our engine with the `baseline` model, with the same search; measured once.

    Both translate the same sentences in turn, a chunk at a time, until the time is over.
    """
    if (known := known_cost(run, name, baseline)) is not None:
        return known
    if (examples := validation_pairs(run)) is None:
        return None
    note(f"measuring the cost of {name}, once: up to {len(examples)} validation sentences, at most {MEASURE_SECONDS:.0f} seconds")
    fast = run.model, run._engine
    setups = (fast, (baseline, None))
    outputs: list[list[str]] = [[], []]
    seconds = [0.0, 0.0]
    for run.model, run._engine in setups:
        run._best(examples.source[:2])  # warm-up
    for start in range(0, len(examples), CHUNK):
        for i, (run.model, run._engine) in enumerate(setups):
            begin = time.perf_counter()
            outputs[i] += [found.text for found in run._best(examples.source[start : start + CHUNK])]
            seconds[i] += time.perf_counter() - begin
        if sum(seconds) > MEASURE_SECONDS:
            break
    run.model, run._engine = fast
    references = examples.target[: len(outputs[0])]
    bleu, exact = (translation_scores(found, references, metrics=("bleu",), samples=2)["bleu"].score for found in outputs)
    found = {
        "bleu": bleu,
        "exact": exact,
        "sentences": len(references),
        "times": seconds[1] / seconds[0],
        "weights": weights_identity(run),
    }
    path = costs_file(run)
    with suppress(UserError, OSError):  # where nothing can be written, it is measured each time
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps({**read_costs(run), cost_key(name, run, baseline): found}, indent=1) + "\n")
    return found

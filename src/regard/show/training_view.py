"""The training view: a page in the run folder that shows how a model learns, rewritten while it trains.

It only looks: outputs are decoded greedily, attention is that of a validation example, and every step seeds the random generators
anew, so that the weights are the same with and without it. The page is rewritten at evaluations, and between them as rarely as
keeps the cost below a hundredth of the time.
"""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from regard.corpus.examples import Examples, LabelledTexts, SentencePairs, TaggedSentences, TextLines
from regard.errors import UserError
from regard.files import atomic_write
from regard.show.figures.labels import label
from regard.show.figures.training_page import MAX_SNAPSHOTS, thin_out, training_page
from regard.show.recording import attention_maps, record_attention
from regard.tasks.base import Run
from regard.tasks.language import LanguageRun
from regard.tasks.masked import MaskedRun
from regard.tasks.translate import TranslateRun
from regard.training.callbacks import Callback, LogValue
from regard.training.log import note, read_records

PAGE, SNAPSHOTS = "training.html", "training.jsonl"
NUM_SAMPLES, MAX_WORDS, MAX_NEW_TOKENS = 3, 24, 12
MIN_SECONDS, MAX_COST = 10.0, 0.01
"""Between two pages that no evaluation asked for; and the fraction of the time that writing them may take."""


@dataclass(frozen=True)
class Sample:
    """What the model is given, what it should return, and what it returns."""

    given: str
    target: str
    output: str = ""


@dataclass(frozen=True)
class AttentionSnapshot:
    """The attention of one example: bytes (L, H, T, S) in base64, 0 to 255 for 0 to 1."""

    name: str
    queries: list[str]
    keys: list[str]
    shape: list[int]
    weights: str


class TrainingView(Callback):
    """Look on while a model is trained, and write a page of it: `training.html` in the run folder."""

    runs_model = True

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._records: list[dict[str, Any]] = []
        self._snapshots: list[dict[str, Any]] = []
        self._written = self._cost = 0.0
        self._about: dict[str, Any] = {}
        self._samples: list[Sample] = []
        self._run: Run | None = None

    def on_begin(self, run: Run, step: int) -> None:
        """Choose what to look at; after a resume, go on from what was seen up to this step."""
        self.folder, self._run = run.folder, run
        self._samples = choose_samples(run, run.data.valid)
        self._about = {
            "name": run.folder.name,
            "task": run.task.does,
            "steps": run.recipe.train.steps,
            "metrics": list(run.task.best_metrics(run.recipe.train)),
        }
        self._records = [one for one in read_records(self.folder / "log.jsonl") if 0 < one.get("step", 0) <= step]
        self._snapshots = [one for one in read_records(self.folder / SNAPSHOTS) if one.get("step", 0) <= step]
        self._write()
        note(f"watch it learn: open {self.folder / PAGE} in a browser")

    def on_step(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Take the values of the curves; rewrite the page now and then."""
        self._records.append({"step": step, **values})
        if time.perf_counter() - self._written > max(MIN_SECONDS, self._cost / MAX_COST):
            self._write()

    def on_evaluate(self, step: int, scores: Mapping[str, float], best: bool) -> None:
        """Look at the outputs and the attention of the model that was just evaluated."""
        run, folder = self._run, self.folder
        assert run is not None and folder is not None
        self._records.append({"step": step, **scores, "best": best})
        snapshot = {"step": step, "samples": [asdict(one) for one in sample_outputs(run, self._samples)]}
        with suppress(UserError):  # a model without attention, or an example too long for it
            if (attention := attention_of_example(run, run.data.valid)) is not None:
                snapshot["attention"] = asdict(attention)
        before = [one for one in self._snapshots if one["step"] < step]  # a resumed run repeats an interrupted evaluation
        self._snapshots = thin_out([*before, snapshot], MAX_SNAPSHOTS)
        with suppress(OSError):  # a full disk is reported elsewhere
            atomic_write(folder / SNAPSHOTS, "".join(json.dumps(one) + "\n" for one in self._snapshots))
        self._write()

    def on_end(self, finished: bool) -> None:
        """Write the page for the last time: it no longer reloads itself."""
        if finished:
            self._write(finished=True)

    def _write(self, finished: bool = False) -> None:
        assert self.folder is not None
        start = time.perf_counter()
        page = training_page(self._about, self._records, self._snapshots, finished=finished)
        with suppress(OSError):
            atomic_write(self.folder / PAGE, page)
        self._written = time.perf_counter()
        self._cost = self._written - start


def choose_samples(run: Run, examples: Examples) -> list[Sample]:
    """Return the inputs and targets of the first validation examples, of the tasks whose outputs are words."""
    verbs, number = run.task.verbs, range(min(NUM_SAMPLES, len(examples)))
    if "translate" in verbs and isinstance(examples, SentencePairs):
        return [Sample(examples.source[i], examples.target[i]) for i in number]
    if "generate" in verbs and isinstance(examples, TextLines):
        words = [examples.text[i].split() for i in number]
        return [Sample(" ".join(line[: len(line) // 2]), " ".join(line[len(line) // 2 :])) for line in words if len(line) > 1]
    if "fill" in verbs and isinstance(examples, TextLines):
        words = [examples.text[i].split() for i in number]
        return [
            Sample(" ".join([*line[: len(line) // 2], "[MASK]", *line[len(line) // 2 + 1 :]]), line[len(line) // 2])
            for line in words
            if line
        ]
    if "classify" in verbs and isinstance(examples, LabelledTexts) and not examples.text_pair:
        return [Sample(examples.text[i], examples.label[i]) for i in number]
    if "tag" in verbs and isinstance(examples, TaggedSentences):
        return [Sample(" ".join(examples.words[i]), " ".join(examples.tags[i])) for i in number]
    return []


def translate_samples(run: Run, texts: Sequence[str]) -> list[str]:
    return [one.text for one in cast(TranslateRun, run)._best(texts, beam=1)]


def continue_samples(run: Run, texts: Sequence[str]) -> list[str]:
    return [one.continuation for one in cast(LanguageRun, run).generate(texts, max_tokens=MAX_NEW_TOKENS)]


def fill_samples(run: Run, texts: Sequence[str]) -> list[str]:
    return [", ".join(word.label for word in one.candidates[0][:3]) for one in cast(MaskedRun, run).fill(texts, number=3)]


def classify_samples(run: Run, texts: Sequence[str]) -> list[str]:
    return [f"{ranked[0].label} ({ranked[0].probability:.2f})" for ranked in cast(Any, run).classify(texts)]


def tag_samples(run: Run, texts: Sequence[str]) -> list[str]:
    return [" ".join(one.labels) for one in cast(Any, run).tag(texts)]


OUTPUTS: dict[str, Callable[[Run, Sequence[str]], list[str]]] = {
    "translate": translate_samples,
    "generate": continue_samples,
    "fill": fill_samples,
    "classify": classify_samples,
    "tag": tag_samples,
}


def sample_outputs(run: Run, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with what the model returns now."""
    verb = next((verb for verb in OUTPUTS if verb in run.task.verbs), None)
    if verb is None or not samples:
        return list(samples)
    outputs = OUTPUTS[verb](run, [sample.given for sample in samples])
    return [Sample(sample.given, sample.target, output) for sample, output in zip(samples, outputs)]


def attention_of_example(run: Run, examples: Examples) -> AttentionSnapshot | None:
    """Return the attention of the first validation example that is short: of a translator, from the words of the reference to
    those of the source, which stay the same while it learns."""
    texts = examples.source if isinstance(examples, SentencePairs) else getattr(examples, "text", [])
    if isinstance(examples, TaggedSentences):
        texts = [" ".join(words) for words in examples.words[:100]]
    chosen = next((i for i, text in enumerate(texts[:100]) if 6 <= len(text.split()) <= MAX_WORDS // 2), None)
    if chosen is None or not run._attends:
        return None
    if isinstance(examples, SentencePairs) and "align" in run.task.verbs:
        (found,) = cast(TranslateRun, run).align([texts[chosen]], [examples.target[chosen]])
        name, queries, keys, weights = "cross-attention", found.target, found.source, found.weights
    else:
        maps = attention_maps(record_attention(run, texts[chosen]))[0]
        name, queries, keys, weights = maps.name, list(maps.queries), list(maps.keys), maps.weights
    numbers = np.round(np.clip(weights, 0, 1) * 255).astype(np.uint8)
    encoded = b64encode(numbers.tobytes()).decode("ascii")
    return AttentionSnapshot(
        name, [label(word, 20) for word in queries], [label(word, 20) for word in keys], list(weights.shape), encoded
    )

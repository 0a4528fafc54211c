"""A task: everything the package knows about one kind of run, its recipe type, run class, loss, metrics, starter and card."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import nn

from regard.corpus.examples import Examples
from regard.errors import UserError
from regard.recipe import BaseData, Recipe, Settings, Training
from regard.scoring import Confusion, Score
from regard.tasks.starters.starter import Starter, StarterOptions
from regard.training.losses import CrossEntropy, Objective

if TYPE_CHECKING:
    from regard.tasks.base import Run

HUMAN_CHECK = "Text that matters to somebody's health, rights or safety without a person who checks"
TEXT_LIMITS = """It knows only what its training text says, and repeats its biases and mistakes. Text unlike its training data,
texts longer than `model.max_length` tokens and unknown characters come out badly."""
GENERATED_MISUSE = "Misleading news, impersonation, spam, and any text passed off as a person's."
"""Sentences that several model cards share."""
Modality = Literal["text", "image"]
ComparisonRow = dict[str, str | float | None]
"""The system, metric, score and p-value of a paired test."""
Size = int | tuple[int, int]
"""A number of tokens or labels, or the height and width of images."""


@dataclass(repr=False)
class EvaluationResult:
    """The scores of one evaluation set, and the outputs they were computed from."""

    name: str
    examples: Examples
    outputs: list[str]
    """The output for each example, one line each."""
    scores: dict[str, Score]
    by_length: list[dict[str, float | int | str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    confusion: Confusion | None = None
    """Of labels or tags: how often each is predicted as each."""

    def __repr__(self) -> str:
        scores = (f"{metric} {one.score:.4g} ({one.low:.4g} – {one.high:.4g})" for metric, one in self.scores.items())
        return f"{self.name}, {len(self.examples):,} examples: {', '.join(scores)}"


@dataclass(frozen=True)
class TaskCard:
    """The parts of a model card that depend on the task."""

    uses: str
    misuses: str
    limits: str
    commands: tuple[str, ...]
    """Example commands; {} stands for the run folder."""


class ModelSettings(Protocol):
    """The settings of a model, whose `kind` names its class."""

    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything the package knows about a task. One file of `tasks/` defines it; no other table lists tasks.

    A task name may have several Task objects, told apart by `model.kind`: `classify` is one for texts and one for images.
    """

    name: str
    does: str
    """A verb phrase for messages: "translates"."""
    recipe: type[Recipe] | None
    """The recipe type; None for a task that is never trained (`encode`)."""
    run: "type[Run]"
    models: Mapping[str, Callable[..., nn.Module]]
    """Model classes by `model.kind`."""
    verbs: tuple[str, ...]
    """The methods of the run that a person, the command line and the server may call."""
    reads: tuple[Modality, ...] = ("text",)
    encoder_decoder: bool = False
    """Whether the model reads a source text and writes a target text."""
    decoder_only: bool = False
    """Whether the model reads its only text as the target, token by token."""
    loss: "Callable[[Run], Objective]" = lambda run: CrossEntropy(run.recipe.train.regularize)
    searches: bool = False
    """Whether outputs are found by the recipe's beam search, whose settings are then part of a score's signature."""
    metrics: tuple[str, ...] = ()
    """Validation metrics, higher is better: the first that is measured chooses the best checkpoint, else the loss does, unless
    `train.best_metric` names one."""
    count_correct: Callable[[Sequence[str], Any], list[tuple[int, int]]] | None = None
    """Return, from the output for each example, how many of its items are right, and how many there are; None where outputs are
    not right or wrong."""
    pretrained: tuple[type[Settings], type[BaseData]] | None = None
    """The model and data settings that a Hugging Face folder of this task opens with."""
    explains: Literal["label", "translation", "next_token", "masked_token", "image_label", "similarity", "caption"] | None = None
    """Which output `explain` attributes to the input."""
    image_positions: bool = False
    """Whether the positions of an example are those of its image: patches, or codes."""
    model_sizes: Callable[[Recipe, tuple[int, int]], tuple[Size, ...]] = lambda recipe, vocabulary: vocabulary[:1]
    """The arguments of the model after its settings, from a recipe and the vocabulary sizes: for models built without data."""
    lengths: Callable[[Recipe, tuple[int, int] | None], tuple[int, int]] = lambda recipe, given: (
        (max(given), max(given)) if given else (recipe.model.max_length, recipe.model.max_length)
    )
    """The positions of both sides of an example that the plan assumes; `given` are the lengths a user asks for."""
    starter: Callable[[Sequence[Path], StarterOptions], Starter] | None = None
    """Return a starter recipe for data files."""
    card: TaskCard

    def best_metrics(self, settings: Training) -> tuple[str, ...]:
        """Return the validation metrics of which the first that is measured chooses the best checkpoint; if none is, the loss."""
        named, known = settings.best_metric, ["loss", *(metric.removeprefix("valid_") for metric in self.metrics)]
        if named is None:
            return self.metrics
        if named not in known:
            raise UserError(f"train.best_metric = {named!r} is not measured: a run that {self.does} has {', '.join(known)}")
        return () if named == "loss" else (f"valid_{named}",)

    def build(self, settings: ModelSettings, *arguments: object) -> nn.Module:
        """Build the model of these settings."""
        return self.models[settings.kind](settings, *arguments)

"""Settings of several text-to-text tasks for one model, told apart by their prefixes (T5, Raffel et al. 2020, sec. 2.4)."""

import math
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from regard.recipe.data import BaseData, PairData
from regard.recipe.settings import Count, Positive

NAME = re.compile(r"[\w.-]+")


class TaskData(PairData):
    """One of the tasks: texts and their targets (translation, summary, label, number), in the formats of parallel text. From a
    world, its sentences and their translations, or with kind = "classify" sentences with an "it" and the gender of its
    antecedent."""

    root: str = "."
    """Folder in data.root that its paths start at."""
    prefix: str | list[str]
    """The prefix of every text, such as "translate English to German: "; for texts of several columns, the prefix of each."""
    kind: Literal["translate", "summarise", "classify", "regress"] = "translate"
    """How it is scored: BLEU and chrF; ROUGE; accuracy (exact match), F1 and Matthews correlation; correlations of the
    numbers."""
    columns: tuple[int | str, ...] = (0, 1)  # type: ignore[assignment]
    """The columns of a .tsv, by number from 0 or by name in its first line; the last is the target. With more than two, also
    those of a .jsonl, by name."""
    labels: dict[str, str] = {}
    """For `classify`: the text of each label of the files, such as {0 = "negative", 1 = "positive"}. Default: the label."""
    step: Positive = 0.2
    """For `regress`: numbers are written as multiples of this."""
    weight: Positive = 1.0
    """It is sampled this many times as often as `data.mixing` says."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What to do with a training example of more than `model.max_length` tokens. Default: `truncate`, for translation `error`."""

    @model_validator(mode="before")
    @classmethod
    def truncate_by_default(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("kind", "translate") != "translate":
            return {"too_long": "truncate", **given}
        return given

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        if len(self.columns) != len(self.prefixes) + 1:
            raise ValueError(
                f"columns = {list(self.columns)}: a column for each prefix and one for the target are needed, "
                f"{len(self.prefixes) + 1} in all"
            )
        if self.labels and self.kind != "classify":
            raise ValueError(f"labels are for kind = 'classify', not {self.kind!r}")
        if self.reverse and (self.kind != "translate" or len(self.prefixes) > 1):
            raise ValueError("reverse: only a translation of one text has another direction")
        if self.world is not None and (self.kind in ("summarise", "regress") or len(self.prefixes) > 1):
            raise ValueError("world: a world has single texts to translate or to classify")
        return self

    @property
    def prefixes(self) -> list[str]:
        return [self.prefix] if isinstance(self.prefix, str) else self.prefix

    def prefixed(self, text: str) -> str:
        """Return a text with its prefix; the parts of a text of several columns are separated by tabs."""
        parts = text.split("\t") if len(self.prefixes) > 1 else [text]
        return "".join(prefix + part for prefix, part in zip(self.prefixes, parts, strict=True))


class TasksData(BaseData):
    """Several tasks, each with its own examples."""

    tasks: dict[str, TaskData] = Field(min_length=1)
    """The tasks by name."""
    mixing: Literal["proportional", "equal"] | float = "proportional"
    """How often each task is sampled (Raffel et al. 2020, sec. 3.5.2): in proportion to its examples, equally, or with a
    temperature T in proportion to the T-th root of its examples."""
    size_limit: Count | None = None
    """A task with more examples than this is sampled as if it had this many."""

    def first_file(self) -> str | None:
        found = ((task.root, task.first_file()) for task in self.tasks.values())
        return next((str(Path(root, file)) for root, file in found if file is not None), None)

    @model_validator(mode="before")
    @classmethod
    def check_misplaced(cls, given: object) -> object:
        misplaced = (
            [name for name in given if name in TaskData.model_fields and name not in cls.model_fields]
            if isinstance(given, dict)
            else []
        )
        if misplaced:
            raise ValueError(f"data.{misplaced[0]}: it belongs to a task; write it under [data.tasks.NAME]")
        return given

    @field_validator("mixing", mode="before")
    @classmethod
    def check_mixing(cls, given: object) -> object:
        if given in ("proportional", "equal"):
            return given
        if isinstance(given, int | float) and not isinstance(given, bool) and 1 <= given < math.inf:
            return given
        raise ValueError(f"data.mixing = {given!r}: should be 'proportional', 'equal', or a temperature of at least 1")

    @model_validator(mode="after")
    def check_prefixes(self) -> Self:
        known: dict[tuple[str, ...], str] = {}
        for name, task in self.tasks.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"data.tasks: {name!r} is also a file name; use letters, digits, '.', '-' and '_'")
            other = known.setdefault(tuple(task.prefixes), name)
            if other != name:
                raise ValueError(f"data.tasks.{name}.prefix = {task.prefix!r} is also that of {other}; give each task its own")
        return self

    @property
    def too_long(self) -> str:
        """What all tasks do with an example that is too long, if they do the same."""
        ways = {task.too_long for task in self.tasks.values()}
        return ways.pop() if len(ways) == 1 else "each as its task says"

    @property
    def temperature(self) -> float:
        return {"proportional": 1.0, "equal": math.inf}[self.mixing] if isinstance(self.mixing, str) else self.mixing

"""The sets of several tasks: pairs of text, the source with what says which task it is, the target as it is to be said."""

import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from regard.corpus.examples import SentencePairs, TaskPairs
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.recipe import TaskData


def as_task_pairs(name: str, task: "TaskData", pairs: SentencePairs) -> TaskPairs:
    """Pairs as the model reads and says them."""
    said = [target_text(task, pairs, i) for i in range(len(pairs))] if task.labels or task.kind == "regress" else pairs.target
    return TaskPairs([task.prefixed(text) for text in pairs.source], said, pairs.name, pairs.lines, task=name)


def target_text(task: "TaskData", pairs: SentencePairs, index: int) -> str:
    """What is said for a label, or for a number."""
    target = pairs.target[index]
    if task.kind == "regress":
        return round_to_step(target, task.step, pairs.where(index))
    if target not in task.labels:
        raise UserError(f"{pairs.where(index)} has the label {target!r}, for which labels has no word ({', '.join(task.labels)})")
    return task.labels[target]


def round_to_step(target: str, step: float, where: str) -> str:
    """The nearest multiple of a step, with as many decimals as that has."""
    try:
        number = float(target)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where} has {target!r} where a number should be (kind = 'regress')")
    decimals = max(0, -int(Decimal(str(step)).normalize().as_tuple().exponent))
    return f"{round(number / step) * step + 0.0:.{decimals}f}"


def with_root(task: "TaskData", root: str) -> "TaskData":
    """The same task; its files start at a folder."""
    return task.model_copy(update={"root": str(Path(root, task.root))})

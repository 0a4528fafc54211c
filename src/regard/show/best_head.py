"""Choose a head from the run itself: the one that does a job best on its validation set."""

from typing import cast

from regard.attention.modules import STACK_NAMES
from regard.corpus.examples import SentencePairs
from regard.errors import UserError
from regard.explain.antecedents import best_antecedent_head, head_name
from regard.tasks.base import Run
from regard.tasks.shared.gold import best_alignment_head
from regard.tasks.translate import TranslateRun

BEST_HEADS = {
    "aligner": "the head with the lowest alignment error",
    "antecedent": 'the head that most often finds the antecedent of "it"',
}
"""Names of heads that depend on the run: the best on its validation set, where a world knows the truth."""


def best_head_name(run: Run, job: str) -> str:
    """Return the name, counted from 1, of the head that does a job best on the run's validation set."""
    valid = getattr(run.data, "valid", None) if run.task.name == "translate" and run._huggingface is None else None
    gold = valid.gold or [] if isinstance(valid, SentencePairs) else []
    if not gold or (job == "antecedent" and not any(pair.pronouns for pair in gold)):
        raise UserError(
            f"--head {job}: {BEST_HEADS[job]} is known of runs that translate an embedded world (regard demo); "
            "name another head, such as 2.3 (layer.head)"
        )
    translator = cast(TranslateRun, run)
    if job == "antecedent":
        return head_name(best_antecedent_head(translator, translator.data.valid))
    layer, head = best_alignment_head(translator)
    return f"{STACK_NAMES['cross']}, layer {layer + 1}, head {head + 1}"

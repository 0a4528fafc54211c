"""The progress of a training run, which its checkpoints hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass
class TrainState:
    """The progress of a run: with the weights and the optimizer's state, all that resuming needs.

    Random generators have no state to save: every step seeds them from (seed, step, rank).
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    best_loss: float | None = None
    """The validation loss of the best score: of equal scores, the one of the lower loss is better."""
    best_step: int = 0
    evaluations_since_best: int = 0
    evaluated_step: int = 0
    """The last evaluated step: an evaluation that a signal interrupted is repeated."""
    nonfinite_steps: int = 0
    nonfinite_in_a_row: int = 0
    ema_step: int = 0
    seconds: float = 0.0

    def update_best(self, scores: Mapping[str, float], maximize: Sequence[str] = ()) -> bool:
        """Take the scores of an evaluation; return whether they are the best so far.

        The first metric of `maximize` that was measured decides, else the validation loss.
        """
        score = next((scores[name] for name in maximize if name in scores), -scores["valid_loss"])
        self.evaluated_step = self.step
        loss, best_loss = scores.get("valid_loss", 0.0), self.best_loss
        is_best = self.best is None or score > self.best or (score == self.best and best_loss is not None and loss < best_loss)
        self.evaluations_since_best = 0 if is_best else self.evaluations_since_best + 1
        if is_best:
            self.best, self.best_loss, self.best_step = score, loss, self.step
        return is_best

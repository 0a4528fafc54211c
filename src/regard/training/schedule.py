"""Learning-rate schedules: the learning rate as a fraction of its peak, a pure function of the step."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.recipe import ScheduleSettings


def learning_rate_factor(step: int, steps: int, schedule: "ScheduleSettings") -> float:
    """Return the fraction of the peak learning rate at a step counted from 1."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return step / warmup
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":  # Vaswani et al. 2017, sec. 5.3, eq. 3, divided by its peak
            return math.sqrt(max(1, warmup) / step)
        case "cosine":
            progress = min(1.0, (step - warmup) / max(1, steps - warmup))
            return schedule.final_fraction + (1 - schedule.final_fraction) * (1 + math.cos(math.pi * progress)) / 2
        case "trapezoid":
            remaining = min(1.0, (steps - step) / max(1, round(steps * schedule.cooldown_fraction)))
            return schedule.final_fraction + (1 - schedule.final_fraction) * max(0.0, remaining)

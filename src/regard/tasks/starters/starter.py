"""A starter recipe before it is written: a template with its values, and cheaper sizes that it may be cut down to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regard.tasks.starters.data_files import fill_template


@dataclass(frozen=True)
class StarterOptions:
    """What a user says about data files; what is None is found by looking at them."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    columns: str | None = None
    """Source and target column of parallel text, separated by a comma."""
    stream: bool | None = None
    """Whether plain text is running text, not one example per line."""


@dataclass(frozen=True)
class Starter:
    """A recipe for data files. The first of its sizes suits the data, the others cost less."""

    template: str
    values: Mapping[str, object]
    steps: int
    """The steps that suit the data."""
    steps_per_epoch: float
    lengths: tuple[int, int] = (30, 30)
    """Typical tokens of both sides of an example."""
    sizes: Sequence[Mapping[str, object]] = field(default_factory=lambda: [{}])
    """The values that differ between the sizes."""
    understood: Sequence[str] = ()
    """What was found in the files, in words."""
    can_be_timed: bool = True
    """Whether its training step can be planned without other runs."""
    finish: Callable[[str], str] = str
    """What is done to the recipe at last, to fine-tune another run with it."""
    vocabulary: int | None = None
    """The size of the vocabulary, if it is not `tokens.size`."""

    def to_toml(self, size: int = 0, steps: int | None = None, about: str = "") -> str:
        """Return the commented recipe of one size and number of steps; `about` follows the epochs in the comment."""
        steps = self.steps if steps is None else steps
        epochs = steps / self.steps_per_epoch
        shown = f"{epochs:.0f}" if epochs >= 3 else f"{epochs:.1f}"
        schedule = {
            "steps": steps,
            "about_steps": f"{shown} epochs{about}",
            "interval": min(steps, max(50, steps // 20)),
            "warmup": max(1, min(4000, steps // 10)),
        }
        return self.finish(fill_template(self.template, **{**self.values, **self.sizes[size], **schedule}))


def round_steps(steps: float, least: int = 300, most: int = 300_000) -> int:
    """Return a round number of steps within bounds."""
    bounded = min(max(steps, least), most)
    unit = 10 ** max(1, len(str(int(bounded))) - 2)
    return int(-(-bounded // unit) * unit)

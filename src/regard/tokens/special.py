"""The tokens that are not text: ours, and those of anybody's vocabulary."""

from dataclasses import dataclass

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
MASK, MASK_TEXT = 4, "<mask>"
"""Where words are masked, the next one."""

END, END_TEXT = 4, "<end>"
"""Where what is thought of a text gathers at its end, a mark of its own: `transformers` takes a CLIP whose texts end with token 2
for one of the first folders, and looks for the highest token instead."""

FILL = 0
"""The id that rectangles of texts are filled up with; any would do, for what is behind a text's end is never looked at."""

NO_MARK = -1
"""Where a vocabulary has no such mark."""


@dataclass(frozen=True)
class Marks:
    """The marks of one vocabulary."""

    begin: int = BOS
    """What an output is begun from; NO_MARK where it goes on from its prompt alone."""
    end: int = EOS
    """What ends it; NO_MARK where only its length does."""
    before: tuple[int, ...] = ()
    """What a text begins with when it is read."""
    after: tuple[int, ...] = (EOS,)
    """What it ends with."""
    never: tuple[int, ...] = (PAD, BOS)
    """What is never said."""
    between: tuple[int, ...] | None = None
    """What stands between two texts that are read together; as `after` when not given."""
    segment: int = 1
    """The segment of the second of them."""

    @property
    def middle(self) -> tuple[int, ...]:
        return self.after if self.between is None else self.between

    @property
    def around(self) -> int:
        return len(self.before) + len(self.after)

    @property
    def around_two(self) -> int:
        return self.around + len(self.middle)


OURS = Marks()
BOTH_ENDS = Marks(before=(BOS,), after=(EOS,))
"""As BERT reads a text: what is thought of all of it gathers at its first mark."""

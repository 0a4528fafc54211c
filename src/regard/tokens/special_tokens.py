"""The tokens that are not text: ours, and those of anybody's vocabulary."""

from dataclasses import dataclass

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKEN_NAMES = ["<pad>", "<s>", "</s>", "<unk>"]
MASK, MASK_NAME = 4, "<mask>"
"""Where words are masked, the next one."""

END, END_NAME = 4, "<end>"
"""Where what is thought of a text gathers at its end, a mark of its own: `transformers` takes a CLIP whose texts end with token 2
for one of the first folders, and looks for the highest token instead."""


NO_TOKEN = -1
"""Where a vocabulary has no such mark."""


@dataclass(frozen=True)
class SpecialTokens:
    """The marks of one vocabulary."""

    bos: int = BOS
    """What an output is begun from; NO_MARK where it goes on from its prompt alone."""
    eos: int = EOS
    """What ends it; NO_MARK where only its length does."""
    prefix: tuple[int, ...] = ()
    """What a text begins with when it is read."""
    suffix: tuple[int, ...] = (EOS,)
    """What it ends with."""
    suppressed: tuple[int, ...] = (PAD, BOS)
    """What is never said."""
    pair_separator: tuple[int, ...] | None = None
    """What stands between two texts that are read together; as `after` when not given."""
    second_segment: int = 1
    """The segment of the second of them."""

    @property
    def separator(self) -> tuple[int, ...]:
        return self.suffix if self.pair_separator is None else self.pair_separator

    @property
    def num_added(self) -> int:
        return len(self.prefix) + len(self.suffix)

    @property
    def num_added_to_pair(self) -> int:
        return self.num_added + len(self.separator)


DEFAULT_SPECIAL_TOKENS = SpecialTokens()
BOS_AND_EOS = SpecialTokens(prefix=(BOS,), suffix=(EOS,))
"""As BERT reads a text: what is thought of all of it gathers at its first mark."""

"""The tokens that are not text: those of our own tokenizers, and those of any other vocabulary."""

from dataclasses import dataclass, replace

PAD, BOS, EOS, UNK = 0, 1, 2, 3
"""PAD also pads batches of any vocabulary: positions after the end of a text are masked, so any id would do."""
SPECIAL_TOKEN_NAMES = ["<pad>", "<s>", "</s>", "<unk>"]
MASK, MASK_NAME = 4, "<mask>"
"""The next token in the vocabulary of a masked language model."""

END, END_NAME = 4, "<end>"
"""The next token in the vocabulary of a text encoder that pools at the end of a text: `transformers` mistakes a CLIP whose texts
end with token 2 for one of the first released models, and looks for the highest token id instead."""

NO_TOKEN = -1
"""The id of a special token that a vocabulary does not have."""


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of one vocabulary."""

    bos: int = BOS
    """The first decoder input; NO_TOKEN if an output continues its prompt alone."""
    eos: int = EOS
    """The token that ends an output; NO_TOKEN if only its length does."""
    prefix: tuple[int, ...] = ()
    """Tokens before an input text."""
    suffix: tuple[int, ...] = (EOS,)
    """Tokens after an input text."""
    suppressed: tuple[int, ...] = (PAD, BOS)
    """Tokens that are never generated."""
    pair_separator: tuple[int, ...] | None = None
    """Tokens between the two texts of a pair; `suffix` if not given."""
    second_segment: int = 1
    """The segment id of the second text of a pair."""
    output_prefix: tuple[int, ...] = ()
    """Tokens that every output begins with after `bos`, such as the code of its language (mBART-50, NLLB)."""
    second_prefix: tuple[int, ...] = ()
    """Tokens before the second text of a pair, in its segment."""

    @property
    def separator(self) -> tuple[int, ...]:
        return self.suffix if self.pair_separator is None else self.pair_separator

    @property
    def num_added(self) -> int:
        """Special tokens added to a text."""
        return len(self.prefix) + len(self.suffix)

    @property
    def output_start(self) -> tuple[int, ...]:
        """The decoder's inputs before an output."""
        return (self.bos, *self.output_prefix)

    def around_each_text(self) -> "SpecialTokens":
        """Return the special tokens of pairs whose texts are read one by one: each between its own, in a segment of its own."""
        return replace(self, pair_separator=self.suffix, second_prefix=self.prefix, second_segment=1)

    @property
    def num_added_to_pair(self) -> int:
        """Special tokens added to a pair of texts."""
        return self.num_added + len(self.separator) + len(self.second_prefix)


DEFAULT_SPECIAL_TOKENS = SpecialTokens()
BOS_AND_EOS = SpecialTokens(prefix=(BOS,), suffix=(EOS,))
"""As in BERT: the first token's state represents the whole text."""

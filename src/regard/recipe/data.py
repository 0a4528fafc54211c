"""Where the examples come from, and how text becomes ids."""

from typing import Literal

from pydantic import Field, model_validator

from regard.recipe.part import Count, Files, Part


class World(Part):
    """Generated data instead of files: `worlds/`, whose truth (alignments, antecedents) is known."""

    kind: Literal["bilingual"] = "bilingual"
    level: int = Field(1, ge=1, le=3)
    """Difficulty: the size of the lexicon and grammar."""
    number: Count = 50_000
    """Training pairs."""
    held_out: Count = 1_000
    """Pairs in each of the validation and test sets."""
    share: float = Field(0.32, ge=0, le=1)
    """The part of the sentences that have an "it"."""
    seed: int = 1


class Data(Part):
    """Where the examples come from: files, or a world."""

    root: str = "."
    """Folder that relative paths start at."""
    train: Files = []
    """Two aligned files (source, target), or one .tsv or .jsonl; each plain, .gz or .xz."""
    valid: Files = []
    """The validation set, in the same forms."""
    test: dict[str, Files] = {}
    """Named test sets, in the same forms."""
    world: World | None = None
    """Take the data from an embedded world instead of files."""
    held_out: int = Field(0, ge=0)
    """Set aside this many distinct source sentences of `train` as the validation set, and as many again as the test set
    `held_out`; all pairs of one source sentence stay together."""
    columns: tuple[int, int] = (0, 1)
    """Source and target column of a .tsv, counted from 0."""
    fields: tuple[str, str] = ("source", "target")
    """Source and target field of a .jsonl."""
    reverse: bool = False
    """Translate from the target into the source."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What to do with a training line of more than `model.max_length` tokens."""
    origin: str = ""
    """Where the data come from and under which licence; printed on the model's card."""

    @model_validator(mode="after")
    def one_source(self) -> "Data":
        if bool(self.train) == bool(self.world):
            raise ValueError("give either data.train (files) or data.world")
        if self.train and not self.valid and not self.held_out:
            raise ValueError("no validation set: give data.valid, "
                             "or data.held_out = 1000 to set lines of the training data aside")
        if self.valid and self.held_out:
            raise ValueError("give data.valid or data.held_out, not both")
        return self


class Tokens(Part):
    """How text becomes ids, over the `tokenizers` library."""

    kind: Literal["bpe", "wordpiece", "unigram", "characters"] = "bpe"
    size: int = Field(8000, ge=16)
    """Vocabulary size aimed at, special tokens included; ignored for characters."""
    joint: bool = True
    """One vocabulary for both languages (needed to tie all embeddings), or one each."""
    file: str | None = None
    """Load this tokenizer.json (relative to data.root) instead of training one; both languages share it."""
    lowercase: bool = False

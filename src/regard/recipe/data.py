"""Settings of the data and of its tokenization."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from regard.recipe.settings import Count, Files, Natural, Seed, Settings, discriminate_by_kind


class BilingualWorld(Settings):
    """Generated sentence pairs (`worlds/`) with known alignments and antecedents."""

    kind: Literal["bilingual"] = "bilingual"
    level: int = Field(1, ge=1, le=3)
    """Difficulty: the size of the lexicon and grammar."""
    number: Count = 50_000
    """Training examples."""
    held_out: Count = 1_000
    """Examples in each of the validation and test sets."""
    pronoun_fraction: float = Field(0.32, ge=0, le=1)
    """Fraction of the sentences that have an "it"."""
    seed: Seed = 1


class AlgorithmWorld(Settings):
    """Pairs of an algorithm, to test length generalisation (Dehghani et al. 2019, sec. 3.4), for the tasks translate and
    text-to-text. `copy`: digits, to be repeated. `addition`: "123+45" to "168"; its length is that of the longer operand."""

    kind: Literal["copy", "addition"]
    number: Count = 50_000
    """Training examples."""
    held_out: Count = 1_000
    """Examples in the validation set, and in the test set of each length."""
    seed: Seed = 1
    shortest: Count = 1
    """Shortest length trained on."""
    longest: Count = 10
    """Longest length trained on."""
    tests: list[Count] = []
    """Lengths tested on, each a test set. Default: `longest`."""
    digit_order: Literal["plain", "reverse_target", "reverse"] = "plain"
    """Write the least significant digit of a sum first (Lee et al. 2023), or that of its operands too (addition)."""
    pad: Natural = 0
    """Fill both operands with zeros to this many digits, and the sum to one more; 0 is none (addition)."""

    @model_validator(mode="after")
    def check_lengths(self) -> "AlgorithmWorld":
        if self.shortest > self.longest:
            raise ValueError(f"data.world.shortest = {self.shortest} is more than longest = {self.longest}")
        if self.kind == "copy" and (self.pad or self.digit_order != "plain"):
            raise ValueError("data.world.digit_order and pad are of sums; leave them out, or set kind = 'addition'")
        if self.pad and self.pad < (most := max(self.longest, *self.tests, 0)):
            raise ValueError(f"data.world.pad = {self.pad}: the longest operands have {most} digits; set at least that, or 0")
        return self


class ShapesWorld(Settings):
    """Images of coloured shapes with captions and bounding boxes (`worlds/shapes`); the test set `composition` has combinations
    of colour and kind that occur nowhere else."""

    kind: Literal["shapes"]
    number: Count = 20_000
    """Training images."""
    held_out: Count = 500
    """Images in each of the validation and test sets."""
    shapes: tuple[int, int] = (1, 4)
    """The fewest and the most shapes in an image."""
    seed: Seed = 1


AnyWorld = Annotated[
    Annotated[BilingualWorld, Tag("bilingual")]
    | Annotated[AlgorithmWorld, Tag("copy")]
    | Annotated[AlgorithmWorld, Tag("addition")]
    | Annotated[ShapesWorld, Tag("shapes")],
    discriminate_by_kind("bilingual", "bilingual, copy, addition or shapes"),
]


class BaseData(Settings):
    """Settings that the data of every task has."""

    has_images: ClassVar[bool] = False
    """Whether the examples are images."""

    root: str = "."
    """Folder that relative paths start at; relative itself, it starts at the working folder, or else at the recipe's folder."""
    origin: str = ""
    """Where the data comes from and under which licence; printed on the model card."""

    def first_file(self) -> str | None:
        """Return a file of the training set, relative to `root`; None if there is none."""
        return None

    def locate(self, beside: Path, *, first: bool = False) -> Self:
        """Return the same data with the folder `beside / root`, if that has its first file and `root` does not, or if `first`."""
        file = self.first_file()
        if file is None or not Path(beside, self.root, file).exists() or (Path(self.root, file).exists() and not first):
            return self
        return self.model_copy(update={"root": str(beside / self.root)})


class Data(BaseData):
    """Examples from files, or from an embedded world."""

    train: Files = []
    """The training set."""
    valid: Files = []
    """The validation set, in the same formats."""
    test: dict[str, Files] = {}
    """Named test sets, in the same formats."""
    world: AnyWorld | None = None
    """Take the data from an embedded world instead of files."""
    held_out: Natural = 0
    """Hold out this many distinct texts of `train` as the validation set, and as many again as the test set `held_out`; all
    examples of one (source) text stay together. Of a stream, its last lines."""
    held_out_test: Natural | None = None
    """Size of the test set `held_out`, if not that of the validation set; with 0, where `test` has files, none is held out."""
    limit: Natural = 0
    """Train on this many examples only, drawn at random after `held_out`; a smaller limit draws some of the same. 0 is all."""
    limit_seed: Seed | None = None
    """Which examples `limit` draws. Default: the recipe's `seed`."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What to do with a training example of more than `model.max_length` tokens."""

    def first_file(self) -> str | None:
        return self.train[0] if self.train else None

    @model_validator(mode="after")
    def check_source(self) -> "Data":
        if bool(self.train) == bool(self.world):
            raise ValueError("give either data.train (files) or data.world")
        if self.train and not self.valid and not self.held_out:
            raise ValueError("no validation set: give data.valid, or data.held_out = 1000 to hold out lines of the training data")
        if self.valid and self.held_out:
            raise ValueError("give data.valid or data.held_out, not both")
        if self.held_out_test is not None and not self.held_out:
            raise ValueError(f"data.held_out_test = {self.held_out_test} needs data.held_out, which holds out the validation set")
        if isinstance(self.world, AlgorithmWorld) and not isinstance(self, PairData):
            raise ValueError(
                f"data.world.kind = {self.world.kind!r} is for the tasks translate and text-to-text; "
                "change the task, or use another world"
            )
        if isinstance(self.world, ShapesWorld) and not self.has_images:
            raise ValueError(
                "data.world.kind = 'shapes' has images, and this task reads texts; use data.world.kind = 'bilingual', or a task "
                "of images such as caption"
            )
        return self


class PairData(Data):
    """Parallel text: two aligned files (source, target), or one table: .tsv, .csv or .jsonl, each plain, .gz or .xz, or .parquet,
    .arrow or .feather; or several of both, one after another. From a world, its sentences and their translations."""

    columns: tuple[int | str, int | str] = (0, 1)
    """Source and target column of a table: numbers from 0 (.tsv, .csv), or names; `translation.en` is a field of a field."""
    fields: tuple[str, str] = ("source", "target")
    """Source and target field of a .jsonl, in the same way."""
    reverse: bool = False
    """Translate from the target into the source."""

    @model_validator(mode="after")
    def check_direction(self) -> "PairData":
        if self.reverse and isinstance(self.world, AlgorithmWorld):
            raise ValueError(
                f"data.reverse: an algorithm has one direction; leave it out for data.world.kind = {self.world.kind!r}"
            )
        return self


class TextData(Data):
    """Text files, or a column of tables (as for the task translate); each plain, .gz or .xz. From a world, its sentences in one
    language."""

    stream: bool = False
    """Read the text as one stream, cut into windows of `model.max_length` tokens, instead of line by line."""
    held_out_documents: bool = False
    """`held_out` takes whole documents (lines without an empty line between them) with at least so many lines, so that held-out
    lines still follow one another. `masking.next_sentence` sets it. Of a stream, the last lines are held out in any case."""
    overlap: Natural = 0
    """When a stream is scored, each window repeats this many tokens of the previous one as context, not scored again."""
    column: int | str | None = None
    """Read this column of tables: its number from 0 (.tsv, .csv), or its name."""
    language: Literal["source", "target", "both"] = "source"
    """Language of a world; with `both`, every sentence is followed by its translation."""
    too_long: Literal["error", "drop", "truncate", "split"] = "drop"  # type: ignore[assignment]
    """What to do with a training line of more than `model.max_length` tokens; `split` reads it window by window, each on its
    own."""
    pack: bool = False
    """Pack several lines into each row of `model.max_length` tokens, for less padding; none attends to another."""

    @model_validator(mode="after")
    def check_stream(self) -> "TextData":
        if self.stream and self.pack:
            raise ValueError("data.pack packs lines, and a stream has none: give data.pack or data.stream")
        if self.limit and (self.stream or self.held_out_documents):
            raise ValueError(
                "data.limit draws single lines, and these follow one another: give fewer lines in data.train instead"
            )
        if self.overlap and not self.stream:
            raise ValueError("data.overlap: only a stream has windows; set data.stream = true")
        return self


class LabelledData(Data):
    """Texts with labels: .tsv, .csv or .jsonl files, each plain, .gz or .xz, or .parquet, .arrow or .feather. From a world,
    sentences with an "it", labelled with the gender of its antecedent."""

    text: int | str = 0
    """The column of the text: its number from 0, or its name in the first line of a .tsv or .csv or in any other table."""
    text_pair: int | str | None = None
    """The column of a second text, for pairs."""
    label: int | str = 1
    """The column of the label."""
    positive_label: int | str | None = None
    """The label whose F1 is reported. Default: of two labels the second in alphabetical order, of more the mean of all."""
    too_long: Literal["error", "drop", "truncate"] = "truncate"
    """What to do with a text of more than `model.max_length` tokens."""


class QuestionData(Data):
    """Questions with contexts and the positions of the answers: SQuAD's .json, or a .jsonl with `question`, `context` and
    `answers`; each plain, .gz or .xz. From a world, an English word of a sentence, to be found in the German one."""

    stride: Count = 128
    """Tokens between the starts of two windows of a long context, at most half a window."""
    unanswerable: bool = False
    """Some questions have no answer in their context (SQuAD 2.0), and the model may answer none."""
    too_long: Literal["truncate"] = "truncate"
    """A question is truncated at half of `model.max_length`; contexts are never truncated."""


class TaggedData(Data):
    """Sentences with a tag for every word, in CoNLL format: a word and its tag per line, separated by a tab, and an empty line
    between sentences. From a world, English words tagged with their German translation."""

    word: Natural = 0
    """The column of the word, from 0."""
    tag: int = -1
    """The column of the tag; -1 is the last one."""


class TokenSettings(Settings):
    """Tokenization, by the `tokenizers` library."""

    kind: Literal["bpe", "bytes", "wordpiece", "unigram", "words", "characters"] = "bpe"
    """`bytes` is byte-level BPE (GPT-2): nothing is unknown, and white space is kept, as for `characters`."""
    size: int = Field(8000, ge=16, le=10_000_000)
    """Target vocabulary size, special tokens included; ignored for characters."""
    file: str | None = None
    """Load this tokenizer.json (relative to data.root), for example GPT-2's, instead of training one; both languages share
    it."""
    lowercase: bool = False
    split_punctuation: bool = True
    """Split punctuation from words; false splits at white space only, for text that is tokenized already."""


class PairTokenSettings(TokenSettings):
    joint: bool = True
    """One vocabulary for both languages (needed to tie all embeddings), or one for each."""
    source_language: str | None = None
    """Language code of the source, for a vocabulary that has such codes: `eng_Latn` (NLLB), `en_XX` (mBART)."""
    target_language: str | None = None
    """Language code that outputs begin with."""

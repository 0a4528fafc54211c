"""Where the examples come from, and how text becomes ids."""

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.settings import Count, Files, Settings, kind_discriminator


class BilingualWorld(Settings):
    """Generated data instead of files: `worlds/`, whose truth (alignments, antecedents) is known."""

    kind: Literal["bilingual"] = "bilingual"
    level: int = Field(1, ge=1, le=3)
    """Difficulty: the size of the lexicon and grammar."""
    number: Count = 50_000
    """Training examples."""
    held_out: Count = 1_000
    """Examples in each of the validation and test sets."""
    pronoun_fraction: float = Field(0.32, ge=0, le=1)
    """The part of the sentences that have an "it"."""
    seed: int = 1


class AlgorithmWorld(Settings):
    """Pairs that an algorithm makes, to be tested on longer ones than were trained on (Dehghani et al. 2019, sec. 3.4); for the
    tasks translate and text-to-text. `copy`: some digits, to be said again. `addition`: "123+45", to be answered with "168"; its
    length is the digits of the longer operand."""

    kind: Literal["copy", "addition"]
    number: Count = 50_000
    """Training examples."""
    held_out: Count = 1_000
    """Examples in the validation set, and in the test set of each length."""
    seed: int = 1
    shortest: Count = 1
    """Shortest length trained on."""
    longest: Count = 10
    """Longest length trained on."""
    tests: list[Count] = []
    """Lengths tested on, each a test set of its own; `longest` when none is given."""

    @model_validator(mode="after")
    def lengths_fit(self) -> "AlgorithmWorld":
        if self.shortest > self.longest:
            raise ValueError(f"data.world.shortest = {self.shortest} is more than longest = {self.longest}")
        return self


class ShapesWorld(Settings):
    """Pictures of coloured shapes, their captions, and where everything is (`worlds/shapes`); the test set `composition` has
    colours and kinds together that are nowhere else."""

    kind: Literal["shapes"]
    number: Count = 20_000
    """Training pictures."""
    held_out: Count = 500
    """Pictures in each of the validation and test sets."""
    shapes: tuple[int, int] = (1, 4)
    """The fewest and the most shapes in a picture."""
    seed: int = 1


AnyWorld = Annotated[
    Annotated[BilingualWorld, Tag("bilingual")]
    | Annotated[AlgorithmWorld, Tag("copy")]
    | Annotated[AlgorithmWorld, Tag("addition")]
    | Annotated[ShapesWorld, Tag("shapes")],
    Discriminator(
        kind_discriminator("bilingual"),
        custom_error_type="kind",
        custom_error_message="should be bilingual, copy, addition or shapes",
    ),
]


class BaseData(Settings):
    """What the data of every task have."""

    has_images: ClassVar[bool] = False
    """Whether they are pictures."""

    root: str = "."
    """Folder that relative paths start at."""
    origin: str = ""
    """Where the data come from and under which licence; printed on the model's card."""


class Data(BaseData):
    """Where the examples come from: files, or a world."""

    train: Files = []
    """The training set."""
    valid: Files = []
    """The validation set, in the same forms."""
    test: dict[str, Files] = {}
    """Named test sets, in the same forms."""
    world: AnyWorld | None = None
    """Take the data from an embedded world instead of files."""
    held_out: int = Field(0, ge=0)
    """Set aside this many distinct texts of `train` as the validation set, and as many again as the test set `held_out`; all
    examples of one (source) text stay together."""
    too_long: Literal["error", "drop", "truncate"] = "error"
    """What to do with a training example of more than `model.max_length` tokens."""

    @model_validator(mode="after")
    def one_source(self) -> "Data":
        if bool(self.train) == bool(self.world):
            raise ValueError("give either data.train (files) or data.world")
        if self.train and not self.valid and not self.held_out:
            raise ValueError(
                "no validation set: give data.valid, or data.held_out = 1000 to set lines of the training data aside"
            )
        if self.valid and self.held_out:
            raise ValueError("give data.valid or data.held_out, not both")
        return self

    @model_validator(mode="after")
    def pairs_are_for_translators(self) -> "Data":
        if isinstance(self.world, AlgorithmWorld) and not isinstance(self, PairData):
            raise ValueError(f"data.world.kind = {self.world.kind!r} has pairs: it is for the tasks translate and text-to-text")
        return self

    @model_validator(mode="after")
    def texts_have_no_shapes(self) -> "Data":
        if isinstance(self.world, ShapesWorld) and not self.has_images:
            raise ValueError("data.world.kind = 'shapes' has pictures, and this task reads texts")
        return self


class PairData(Data):
    """Parallel text: two aligned files (source, target), or one .tsv or .jsonl; each plain, .gz or .xz. From a world, its
    sentences and their translations."""

    columns: tuple[int | str, int | str] = (0, 1)
    """Source and target column of a .tsv: their numbers, counted from 0, or their names in its first line."""
    fields: tuple[str, str] = ("source", "target")
    """Source and target field of a .jsonl."""
    reverse: bool = False
    """Translate from the target into the source."""

    @model_validator(mode="after")
    def algorithms_go_one_way(self) -> "PairData":
        if self.reverse and isinstance(self.world, AlgorithmWorld):
            raise ValueError(f"data.reverse: an algorithm goes one way; leave it out for data.world.kind = {self.world.kind!r}")
        return self


class TextData(Data):
    """Text files, or a column of .tsv or .jsonl files; each plain, .gz or .xz. From a world, its sentences in one language."""

    stream: bool = False
    """Read the text as one long stream, cut into windows of `model.max_length` tokens, instead of line by line."""
    overlap: int = Field(0, ge=0)
    """Of a stream that is scored: so many tokens of each window are read again from the one before, and asked for only there."""
    column: int | str | None = None
    """Read this column of .tsv or .jsonl files: its number, counted from 0, or its name."""
    language: Literal["source", "target", "both"] = "source"
    """Of a world: which language; in both, every sentence is followed by its translation."""
    too_long: Literal["error", "drop", "truncate", "split"] = "drop"  # type: ignore[assignment]
    """What to do with a training line of more than `model.max_length` tokens; `split` reads it window by window, each as if it
    stood alone."""
    pack: bool = False
    """Fill every row of `model.max_length` tokens with several lines, none of which sees another, for less padding."""

    @model_validator(mode="after")
    def lines_can_be_set_aside(self) -> "TextData":
        if self.stream and self.held_out:
            raise ValueError("data.held_out sets lines aside, and a stream has none: give data.valid")
        if self.stream and self.pack:
            raise ValueError("data.pack packs lines, and a stream has none: give data.pack or data.stream")
        if self.overlap and not self.stream:
            raise ValueError("data.overlap: only a stream has windows; set data.stream = true")
        return self


class LabelledData(Data):
    """Texts with labels: .tsv or .jsonl files, each plain, .gz or .xz. From a world, sentences with an "it", labelled with the
    gender of what it stands for."""

    text: int | str = 0
    """The column of the text: its number, counted from 0, or its name in the first line of a .tsv or in a .jsonl."""
    text_pair: int | str | None = None
    """The column of a second text, likewise, where two are judged together."""
    label: int | str = 1
    """The column of the label, likewise."""
    positive_label: int | str | None = None
    """The label whose F1 is reported; when not given, of two labels the second in alphabetical order, of more the mean of all."""
    too_long: Literal["error", "drop", "truncate"] = "truncate"
    """What to do with a text of more than `model.max_length` tokens."""


class QuestionData(Data):
    """Questions with the contexts that answer them, and where the answers stand in them: SQuAD's .json, or a .jsonl with
    `question`, `context` and `answers`; each plain, .gz or .xz. From a world, an English word of a sentence, to be found in the
    German one."""

    stride: Count = 128
    """A context that is too long is read in windows; so many tokens each begins after the one before, at most half a window."""
    unanswerable: bool = False
    """There are questions without an answer in their context (SQuAD 2.0), and the model may say so."""
    too_long: Literal["truncate"] = "truncate"
    """A question may take half of `model.max_length`, and is cut there; contexts are never cut."""


class TaggedData(Data):
    """Sentences with a tag for every word, as CoNLL has them: a word and its tag a line, separated by a tab, and an empty line
    between sentences. From a world, English words tagged with the German word they become."""

    word: int = Field(0, ge=0)
    """The column of the word, counted from 0."""
    tag: int = -1
    """The column of the tag; -1 is the last one."""


class TokenSettings(Settings):
    """How text becomes ids, over the `tokenizers` library."""

    kind: Literal["bpe", "bytes", "wordpiece", "unigram", "words", "characters"] = "bpe"
    """`bytes` is BPE over bytes, as GPT-2 has it: nothing is unknown, and white space is kept as it is, as for `characters`."""
    size: int = Field(8000, ge=16)
    """Vocabulary size aimed at, special tokens included; ignored for characters."""
    file: str | None = None
    """Load this tokenizer.json (relative to data.root), one's own or somebody's, such as GPT-2's, instead of training one; both
    languages share it."""
    lowercase: bool = False
    split_punctuation: bool = True
    """Punctuation stands apart from the words; false splits at white space only, for text that is tokenised already."""


class PairTokenSettings(TokenSettings):
    joint: bool = True
    """One vocabulary for both languages (needed to tie all embeddings), or one each."""

"""The models that read one text: language models, classifiers, taggers."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.settings import Count, Settings, kind_discriminator
from regard.recipe.stacks import DecoderModel, EncoderModel

Score = Literal["none", "dot", "scaled", "general", "additive", "cosine"]


class WordVectors(Settings):
    """Pre-computed word vectors to begin from: a text file of word2vec or GloVe, a word and its numbers a line."""

    file: str
    """Relative to data.root; plain, .gz or .xz."""
    frozen: bool = False
    """Leave them as they are."""


class ContextualFeatures(Settings):
    """Read the frozen contextual vectors of another run instead of words: CoVe from a translator's encoder, ELMo from a
    bidirectional language model or a tagger. The other run's tokenizer is used, and the run is copied into this one."""

    run: str
    """A run folder."""
    layer: int | Literal["mix"] = "mix"
    """One layer, 0 being its word embeddings, or all of them mixed with learned scalars (Peters et al. 2018, eq. 1)."""


class RecurrentSettings(Settings):
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: Count = 1
    width: Count = 256
    """Of the states; two directions share it."""
    embedding_width: Count | None = None
    """As `width` when not given."""
    attention: Score = "none"
    attention_width: Count | None = None
    """Of the additive score; as `width` when not given."""
    max_length: int = Field(256, ge=2)
    """Longest text in tokens."""
    vectors: WordVectors | None = None


class RecurrentEncoderModel(RecurrentSettings):
    """A recurrent network that reads a text, and says one thing of it or one of every word."""

    kind: Literal["recurrent"] = "recurrent"
    bidirectional: bool = True
    attention: Score = "none"
    """A classifier without it takes the last state, and with it asks all states with the last one; a tagger adds to each state
    what it sees of the others."""
    features: ContextualFeatures | None = None

    @model_validator(mode="after")
    def fits(self) -> "RecurrentEncoderModel":
        if self.bidirectional and self.width % 2:
            raise ValueError(
                f"width {self.width} is not even: two directions share it; use {self.width + 1}, or bidirectional = false"
            )
        if self.features and self.vectors:
            raise ValueError("give model.features or model.vectors, not both: features bring their own words")
        return self


class RecurrentDecoderModel(RecurrentSettings):
    """A recurrent language model, which says the next word."""

    kind: Literal["recurrent"] = "recurrent"
    attention: Score = "none"
    """Over its own earlier states."""
    tie: bool = False
    """Share the weights of embedding and output; needs embedding_width = width."""

    @model_validator(mode="after")
    def fits(self) -> "RecurrentDecoderModel":
        if self.tie and self.embedding_width not in (None, self.width):
            raise ValueError(f"model.tie needs embedding_width = width = {self.width}")
        return self


class ElmoModel(Settings):
    """ELMo (Peters et al. 2018): two language models, one reading forward and one backward, whose states are contextual word
    vectors. With tokens.kind = "characters" it reads characters, else words or sub-words."""

    kind: Literal["elmo"]
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: Count = 2
    width: int = Field(512, ge=2, multiple_of=2)
    """Of both directions together."""
    embedding_width: Count | None = None
    """As half the `width` when not given."""
    max_length: int = Field(256, ge=2)
    """Longest text in tokens."""
    vectors: WordVectors | None = None


LanguageModel = Annotated[
    Annotated[DecoderModel, Tag("transformer")]
    | Annotated[RecurrentDecoderModel, Tag("recurrent")]
    | Annotated[ElmoModel, Tag("elmo")],
    Discriminator(
        kind_discriminator("recurrent"), custom_error_type="kind", custom_error_message="should be transformer, recurrent or elmo"
    ),
]

TextEncoderModel = Annotated[
    Annotated[EncoderModel, Tag("transformer")] | Annotated[RecurrentEncoderModel, Tag("recurrent")],
    Discriminator(
        kind_discriminator("recurrent"),
        custom_error_type="kind",
        custom_error_message="should be transformer or recurrent, or vit to classify pictures",
    ),
]

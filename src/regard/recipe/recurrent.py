"""Settings of recurrent models that read one text: language models, classifiers, taggers."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.settings import Count, Settings, kind_discriminator
from regard.recipe.stacks import DecoderModel, EncoderModel

Score = Literal["none", "dot", "scaled", "general", "additive", "cosine"]


class WordVectors(Settings):
    """Pre-computed word vectors to initialise the embedding: a text file (word2vec, GloVe), a word and its numbers per line."""

    file: str
    """Relative to data.root; plain, .gz or .xz."""
    frozen: bool = False
    """Freeze them."""


class ContextualFeatures(Settings):
    """Read the frozen contextual embeddings of another run instead of word embeddings: CoVe from a translator's encoder, ELMo
    from a bidirectional language model or a tagger. The other run's tokenizer is used, and the run is copied into this one."""

    run: str
    """A run folder."""
    layer: int | Literal["mix"] = "mix"
    """One layer (0 is its word embeddings), or all layers mixed with learned scalars (Peters et al. 2018, eq. 1)."""


class RecurrentSettings(Settings):
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: Count = 1
    width: Count = 256
    """Width of the states; two directions share it."""
    embedding_width: Count | None = None
    """Default: `width`."""
    attention: Score = "none"
    attention_width: Count | None = None
    """Width of the additive score. Default: `width`."""
    max_length: int = Field(256, ge=2)
    """Longest text in tokens."""
    vectors: WordVectors | None = None


class RecurrentEncoderModel(RecurrentSettings):
    """A recurrent encoder, with one output per text or per word."""

    kind: Literal["recurrent"] = "recurrent"
    bidirectional: bool = True
    attention: Score = "none"
    """Without attention a classifier uses the last state; with it, the last state attends to all states. A tagger adds to each
    state what it attends to in the others."""
    features: ContextualFeatures | None = None

    @model_validator(mode="after")
    def check_width(self) -> "RecurrentEncoderModel":
        if self.bidirectional and self.width % 2:
            raise ValueError(
                f"width {self.width} is not even: two directions share it; use {self.width + 1}, or bidirectional = false"
            )
        if self.features and self.vectors:
            raise ValueError("give model.features or model.vectors, not both: features replace the word embeddings")
        return self


class RecurrentDecoderModel(RecurrentSettings):
    """A recurrent language model."""

    kind: Literal["recurrent"] = "recurrent"
    attention: Score = "none"
    """Attention over its own earlier states."""
    tie: bool = False
    """Tie the weights of embedding and output; needs embedding_width = width."""

    @model_validator(mode="after")
    def fits(self) -> "RecurrentDecoderModel":
        if self.tie and self.embedding_width not in (None, self.width):
            raise ValueError(f"model.tie needs embedding_width = width = {self.width}")
        return self


class ElmoModel(Settings):
    """ELMo (Peters et al. 2018): a forward and a backward language model, whose states are contextual embeddings. With
    tokens.kind = "characters" it reads characters, else words or sub-words."""

    kind: Literal["elmo"]
    cell: Literal["rnn", "lstm", "gru"] = "lstm"
    layers: Count = 2
    width: int = Field(512, ge=2, multiple_of=2)
    """Width of both directions together."""
    embedding_width: Count | None = None
    """Default: half the `width`."""
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
        custom_error_message="should be transformer or recurrent, or vit to classify images",
    ),
]

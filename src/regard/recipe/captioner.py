"""What says in words what a picture shows: an encoder that makes a map of vectors of it, and a decoder that looks at the map."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.image_encoders import CnnEncoderModel, EfficientNetEncoderModel, PatchesEncoderModel
from regard.recipe.model import PositionedBlockSettings
from regard.recipe.settings import Count, Fraction, Settings, kind_discriminator

ImageEncoderModel = Annotated[
    Annotated[CnnEncoderModel, Tag("cnn")]
    | Annotated[PatchesEncoderModel, Tag("patches")]
    | Annotated[EfficientNetEncoderModel, Tag("efficientnet-lite0")],
    Discriminator(
        kind_discriminator("cnn"), custom_error_type="kind", custom_error_message="should be cnn, patches or efficientnet-lite0"
    ),
]


class LstmDecoderModel(Settings):
    """The LSTM that looks at the map before each word (Xu et al. 2015)."""

    kind: Literal["lstm"] = "lstm"
    layers: Count = 1
    width: Count = 256
    """Of the states."""
    embedding_width: Count | None = None
    """As `width` when not given."""
    attention_width: Count | None = None
    """Of the additive score; as `width` when not given."""
    attention: Literal["soft", "hard"] = "soft"
    """`soft` sees the mean of all places under the weights (sec. 4.2), `hard` one place that is drawn from them (sec. 4.1), and
    once it is trained the likeliest one."""
    query_with_word: bool = False
    """Look from the state and the word before, not from the state alone, which has not read that word yet (as published)."""
    gate: bool = True
    """A learned number before each word says how much of what is seen counts (sec. 4.2.1)."""
    doubly_stochastic_weight: float = Field(1.0, ge=0)
    """λ of eq. 14: soft attention should have looked at every place in the end."""
    reinforce_weight: float = Field(1.0, ge=0)
    """λ_r of eq. 12: how much hard attention learns from which places led to good words."""
    entropy_weight: float = Field(0.01, ge=0)
    """λ_e of eq. 12: what keeps hard attention from settling too soon."""
    soft_probability: Fraction = 0.5
    """Chance that hard attention is given the mean for a picture while training, as soft attention is."""


class TransformerDecoderModel(PositionedBlockSettings):
    """The decoder of the Transformer (Vaswani et al. 2017), whose cross-attention looks at the map."""

    kind: Literal["transformer"]
    layers: Count = 3
    width: Count = 256
    heads: Count = 4
    feed_forward: Count = 1024
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it."""
    tie: bool = True
    """Share the weights of embedding and output."""

    @model_validator(mode="after")
    def begins_at_its_beginning(self) -> Self:
        if self.positions.random_offset:
            raise ValueError("model.decoder.positions.random_offset: captions begin at their beginning; set it to 0")
        return self


CaptionDecoderModel = Annotated[
    Annotated[LstmDecoderModel, Tag("lstm")] | Annotated[TransformerDecoderModel, Tag("transformer")],
    Discriminator(kind_discriminator("lstm"), custom_error_type="kind", custom_error_message="should be lstm or transformer"),
]


class CaptionModel(Settings):
    """Show, attend and tell (Xu et al. 2015)."""

    encoder: ImageEncoderModel = CnnEncoderModel()
    decoder: CaptionDecoderModel = LstmDecoderModel()
    max_length: int = Field(64, ge=2)
    """Longest caption in tokens."""

    @property
    def kind(self) -> str:
        return self.decoder.kind

    @property
    def layers(self) -> int:
        return self.decoder.layers

    @property
    def width(self) -> int:
        return self.decoder.width

"""Settings of captioners: an image encoder that gives a feature map, and a decoder that attends to it."""

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
    """The LSTM that attends to the feature map before each word (Xu et al. 2015)."""

    kind: Literal["lstm"] = "lstm"
    layers: Count = 1
    width: Count = 256
    """Width of the states."""
    embedding_width: Count | None = None
    """Default: `width`."""
    attention_width: Count | None = None
    """Width of the additive score. Default: `width`."""
    attention: Literal["soft", "hard"] = "soft"
    """`soft` reads the weighted mean of all cells (sec. 4.2), `hard` one sampled cell (sec. 4.1), after training the most
    probable one."""
    query_with_word: bool = False
    """Query with the state and the previous word, not with the state alone, which has not read that word yet (as published)."""
    gate: bool = True
    """Gate the context vector by a learned scalar per step (sec. 4.2.1)."""
    doubly_stochastic_weight: float = Field(1.0, ge=0)
    """λ of eq. 14: soft attention should have attended to every cell in the end."""
    reinforce_weight: float = Field(1.0, ge=0)
    """λ_r of eq. 12: weight of the REINFORCE term of hard attention."""
    entropy_weight: float = Field(0.01, ge=0)
    """λ_e of eq. 12: weight of the entropy of hard attention, against premature convergence."""
    soft_probability: Fraction = 0.5
    """Probability that an image is read with soft attention while hard attention is trained."""


class TransformerDecoderModel(PositionedBlockSettings):
    """The decoder of the Transformer (Vaswani et al. 2017), whose cross-attention reads the feature map."""

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
    def check_offset(self) -> Self:
        if self.positions.random_offset:
            raise ValueError("model.decoder.positions.random_offset: not for captions; set it to 0")
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

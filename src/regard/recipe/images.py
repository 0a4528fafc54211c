"""What reads pictures: how they come in and are brought to one size, the Vision Transformer, what is done to them in training."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.recipe.data import Data, ShapesWorld
from regard.recipe.model import BlockSettings, with_preset
from regard.recipe.settings import Count, Fraction, Settings
from regard.recipe.training import Training

Side = Annotated[int, Field(ge=1, le=8192)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0)]

VIT: dict[str, Any] = dict(norm_epsilon=1e-6)
VITS: dict[str, dict[str, Any]] = {
    "vit-tiny": dict(layers=12, width=192, heads=3, feed_forward=768, patch_size=16, **VIT),
    "vit-small": dict(layers=12, width=384, heads=6, feed_forward=1536, patch_size=16, **VIT),
    "vit-base": dict(layers=12, width=768, heads=12, feed_forward=3072, patch_size=16, **VIT),
    "vit-large": dict(layers=24, width=1024, heads=16, feed_forward=4096, patch_size=16, **VIT),
    "vit-cifar-tiny": dict(layers=6, width=192, heads=3, feed_forward=768, patch_size=4, **VIT),
    "vit-cifar": dict(layers=9, width=384, heads=6, feed_forward=1536, patch_size=4, **VIT),
}
"""Dosovitskiy et al. 2021, table 1, and Touvron et al. 2021, table 1; and two for pictures of 32 pixels."""


def height_and_width(given: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width."""
    return (given, given) if isinstance(given, int) else given


class BaseImageData(Data):
    """Pictures, and how all are brought to one size."""

    has_images: ClassVar[bool] = True

    path: int | str = 0
    """The column of the path: its number, counted from 0, or its name in the first line of a .tsv or in a .jsonl."""
    offset: int = Field(1, ge=0)
    """The column of an index that says where a picture begins; the next one says how many bytes it has."""
    size: Side | tuple[Side, Side] = 224
    """Every picture is brought to this height and width; one number is both."""
    resize_mode: Literal["crop", "stretch"] = "crop"
    """`crop` resizes the shorter side and takes the middle of the longer one, `stretch` resizes both."""
    resize: Side | tuple[Side, Side] | None = None
    """Resize to this, and take the middle of it; as `size` when not given."""
    resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    """How pixels are mixed where a picture is resized."""

    @property
    def height_width(self) -> tuple[int, int]:
        return height_and_width(self.size)

    @property
    def resized(self) -> tuple[int, int]:
        """Height and width before the middle is taken."""
        return self.height_width if self.resize is None else height_and_width(self.resize)

    @model_validator(mode="after")
    def the_middle_is_inside(self) -> Self:
        if any(whole < part for whole, part in zip(self.resized, self.height_width)):
            raise ValueError(f"data.resize = {self.resize} is smaller than data.size = {self.size}, which is taken out of it")
        return self

    @model_validator(mode="after")
    def worlds_have_pictures(self) -> Self:
        if self.world is None:
            return self
        if not isinstance(self.world, ShapesWorld):
            raise ValueError(f"data.world.kind = {self.world.kind!r} has no pictures; give data.train")
        if self.height_width[0] != self.height_width[1] or self.height_width[0] not in range(24, 129, 8):
            raise ValueError(f"data.size = {self.size}: shapes are drawn in squares of 24 to 128 pixels, a multiple of 8")
        return self


class LabelledImageData(BaseImageData):
    """Pictures (PNG, JPEG, WebP) with labels: a folder with a folder for each label (`train/cat/1.png`); .tsv or .jsonl files
    with a column of paths, which start at the file; tar shards (`0001.jpg` beside `0001.cls` or `0001.json`); or pictures laid
    end to end in one file (`a.jpgs`) with an index (`a.index.tsv`, plain, .gz or .xz)."""

    label: int | str = 1
    """The column of the label, or the field of a shard's .json; folders and .cls files say it without one."""
    label_attribute: Literal["kind", "colour", "both"] = "both"
    """Of the world of shapes: what of a picture's main shape its label says."""
    positive_label: int | str | None = None
    """The label whose F1 is reported; when not given, of two labels the second in alphabetical order, of more the mean of all."""


class CaptionedImageData(BaseImageData):
    """Pictures (PNG, JPEG, WebP) with captions, one or several: .tsv or .jsonl files with a column of paths, which start at the
    file; tar shards (`0001.jpg` beside `0001.txt` or `0001.json`); or pictures laid end to end in one file (`a.jpgs`) with an
    index (`a.index.tsv`, plain, .gz or .xz)."""

    captions: list[int | str] = [1]
    """The columns of the captions, or the fields of a .jsonl or of a shard's .json, each a text or a list of them; a picture that
    is named again in another line has that line's captions too."""


class GridPositionSettings(Settings):
    """How the model knows where in the picture a patch is."""

    kind: Literal["learned", "sinusoidal", "none"] = "learned"
    """`sinusoidal` gives half of the width to the row and half to the column."""
    base: float = Field(10_000.0, gt=1)
    """The constant of the sinusoids."""


class VitModel(BlockSettings):
    """The Vision Transformer (Dosovitskiy et al. 2021): patches of a picture read like words. Any field of a preset may be
    overridden."""

    kind: Literal["vit"]
    preset: Literal["vit-tiny", "vit-small", "vit-base", "vit-large", "vit-cifar-tiny", "vit-cifar"] | None = None
    layers: Count = 12
    width: Count = 192
    heads: Count = 3
    feed_forward: Count = 768
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it."""
    patch_size: Side | tuple[Side, Side] = 16
    """Height and width of a patch in pixels; one number is both."""
    pool: Literal["class", "mean"] = "class"
    """What a picture is judged by: a mark that is read before the patches, or the mean of all patches."""
    distilled: Literal["none", "token", "head"] = "none"
    """DeiT's second mark (Touvron et al. 2021): it is read (`token`), or a label is said from it too, and the mean of both counts
    (`head`)."""
    positions: GridPositionSettings = GridPositionSettings()
    mean: tuple[UnitInterval, UnitInterval, UnitInterval] = (0.5, 0.5, 0.5)
    """Taken from red, green and blue, of which 1 is the most."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.5, 0.5, 0.5)
    """What is left is divided by this."""
    embedding_norm: bool = False
    """Normalise patches and marks with their positions before the first layer, as CLIP does."""
    patch_bias: bool = True
    """In the map from a patch to its vector."""

    @property
    def prefix_tokens(self) -> int:
        """Positions before the patches."""
        return (self.pool == "class") + (self.distilled != "none")

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches in a picture."""
        return size[0] // height_and_width(self.patch_size)[0], size[1] // height_and_width(self.patch_size)[1]

    def length(self, size: tuple[int, int]) -> int:
        """Positions that a picture takes."""
        rows, columns = self.grid(size)
        return self.prefix_tokens + rows * columns

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        return with_preset(given, VITS)

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(f"model.width = {self.width}: sinusoidal positions of two dimensions need a multiple of 4")
        if self.distilled != "none" and self.pool == "mean":
            raise ValueError("model.distilled: the second mark goes with the first; set model.pool = 'class'")
        return self


class RandAugment(Settings):
    """Changes drawn anew for each picture (Cubuk et al. 2020): shear, shift, turn, brightness, contrast, colour, sharpness, fewer
    shades, inverted lights, stretched and evened histograms, or none."""

    operations: Count = 2
    """Changes one after another."""
    magnitude: float = Field(9.0, ge=0, le=10)
    """How far they go."""


class AugmentSettings(Settings):
    """What is done to the pictures of a batch while training; validation and tests see them as they are."""

    crop_padding: int = Field(0, ge=0)
    """Move each picture by up to so many pixels in both directions; what comes in is black."""
    flip: bool = False
    """Turn left and right around in half of the cases."""
    rand_augment: RandAugment | None = None
    random_erasing: Fraction = 0.0
    """Chance of covering a rectangle with one colour (random erasing, Zhong et al. 2020)."""
    mixup: float = Field(0.0, ge=0)
    """α of the share by which pictures and labels are blended with those of another one (Zhang et al. 2018); 0 is none."""
    cutmix: float = Field(0.0, ge=0)
    """α of the share of a picture that is replaced by a rectangle of another one (Yun et al. 2019); 0 is none. With `mixup`,
    each has half of the pictures."""

    @property
    def enabled(self) -> bool:
        return self != AugmentSettings()


class ImageTraining(Training):
    """The training loop for pictures."""

    images_per_batch: Count = 256
    """A step sees this times gradient_accumulation_steps."""
    augment: AugmentSettings = AugmentSettings()

    def budget(self, positions: int) -> int:
        return self.images_per_batch * positions

"""Settings of image data, of the Vision Transformer, and of augmentation."""

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
"""Dosovitskiy et al. 2021, table 1, and Touvron et al. 2021, table 1; and two for images of 32 pixels."""


def height_and_width(given: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width of a size given as one number or two."""
    return (given, given) if isinstance(given, int) else given


class BaseImageData(Data):
    """Images, and how they are brought to one size."""

    has_images: ClassVar[bool] = True

    path: int | str = 0
    """The column of the path: its number from 0, or its name in the first line of a .tsv or in a .jsonl."""
    offset: int = Field(1, ge=0)
    """The column of an index with the offset of an image in bytes; the next column is its length."""
    size: Side | tuple[Side, Side] = 224
    """Height and width that every image is brought to; one number is both."""
    resize_mode: Literal["crop", "stretch"] = "crop"
    """`crop` resizes the shorter side and crops the centre of the longer one, `stretch` resizes both."""
    resize: Side | tuple[Side, Side] | None = None
    """Resize to this, then crop the centre. Default: `size`."""
    resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"
    """Interpolation of resizing."""

    @property
    def height_width(self) -> tuple[int, int]:
        return height_and_width(self.size)

    @property
    def resized(self) -> tuple[int, int]:
        """Height and width before the centre crop."""
        return self.height_width if self.resize is None else height_and_width(self.resize)

    @model_validator(mode="after")
    def check_crop(self) -> Self:
        if any(whole < part for whole, part in zip(self.resized, self.height_width)):
            raise ValueError(f"data.resize = {self.resize} is smaller than data.size = {self.size}, which is cropped from it")
        return self

    @model_validator(mode="after")
    def check_world(self) -> Self:
        if self.world is None:
            return self
        if not isinstance(self.world, ShapesWorld):
            raise ValueError(f"data.world.kind = {self.world.kind!r} has no images; give data.train")
        if self.height_width[0] != self.height_width[1] or self.height_width[0] not in range(24, 129, 8):
            raise ValueError(f"data.size = {self.size}: shapes are drawn in squares of 24 to 128 pixels, a multiple of 8")
        return self


class LabelledImageData(BaseImageData):
    """Images (PNG, JPEG, WebP) with labels: a folder with a folder for each label (`train/cat/1.png`); .tsv or .jsonl files
    with a column of paths, relative to the file; tar shards (`0001.jpg` beside `0001.cls` or `0001.json`); or images concatenated
    in one file (`a.jpgs`) with an index (`a.index.tsv`, plain, .gz or .xz)."""

    label: int | str = 1
    """The column of the label, or the field of a shard's .json; folders and .cls files need none."""
    label_attribute: Literal["kind", "colour", "both"] = "both"
    """The attribute of an image's main shape that is its label, in the world of shapes."""
    positive_label: int | str | None = None
    """The label whose F1 is reported. Default: of two labels the second in alphabetical order, of more the mean of all."""


class CaptionedImageData(BaseImageData):
    """Images (PNG, JPEG, WebP) with one or several captions: .tsv or .jsonl files with a column of paths, relative to the file;
    tar shards (`0001.jpg` beside `0001.txt` or `0001.json`); or images concatenated in one file (`a.jpgs`) with an index
    (`a.index.tsv`, plain, .gz or .xz)."""

    captions: list[int | str] = [1]
    """The columns of the captions, or the fields of a .jsonl or of a shard's .json, each a text or a list of texts; an image that
    occurs in several lines has the captions of all of them."""


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
    layers: Count = 12
    width: Count = 192
    heads: Count = 3
    feed_forward: Count = 768
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it (post-norm)."""
    patch_size: Side | tuple[Side, Side] = 16
    """Height and width of a patch in pixels; one number is both."""
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
    def fill_from_preset(cls, given: Any) -> Any:
        return with_preset(given, VITS)

    @model_validator(mode="after")
    def check_tokens(self) -> Self:
        if self.positions.kind == "sinusoidal" and self.width % 4:
            raise ValueError(f"model.width = {self.width}: sinusoidal positions of two dimensions need a multiple of 4")
        if self.distilled != "none" and self.pool == "mean":
            raise ValueError("model.distilled: the distillation token goes with the class token; set model.pool = 'class'")
        return self


class RandAugment(Settings):
    """RandAugment (Cubuk et al. 2020): random operations on each image: shear, translate, rotate, brightness, contrast, colour,
    sharpness, posterize, solarize, autocontrast, equalize, or identity."""

    operations: Count = 2
    """Operations per image."""
    magnitude: float = Field(9.0, ge=0, le=10)
    """Strength of the operations."""


class AugmentSettings(Settings):
    """Augmentation of training images; validation and test images are not augmented."""

    crop_padding: int = Field(0, ge=0)
    """Random crop: shift each image by up to this many pixels in both directions, padded with black."""
    flip: bool = False
    """Random horizontal flip."""
    rand_augment: RandAugment | None = None
    random_erasing: Fraction = 0.0
    """Probability of covering a rectangle with one colour (random erasing, Zhong et al. 2020)."""
    mixup: float = Field(0.0, ge=0)
    """α of mixup, which blends images and labels in pairs (Zhang et al. 2018); 0 is none."""
    cutmix: float = Field(0.0, ge=0)
    """α of CutMix, which replaces a rectangle by one of another image (Yun et al. 2019); 0 is none. With `mixup`, each is applied
    to half of the images."""

    @property
    def enabled(self) -> bool:
        return self != AugmentSettings()


class ImageTraining(Training):
    """The training loop for images."""

    images_per_batch: Count = 256
    """Images in a batch; a step reads this times gradient_accumulation_steps."""
    augment: AugmentSettings = AugmentSettings()

    def budget(self, positions: int) -> int:
        return self.images_per_batch * positions

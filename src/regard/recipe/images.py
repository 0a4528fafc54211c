"""Settings of image data, of augmentation, and of training on images."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from regard.recipe.data import Data, ShapesWorld
from regard.recipe.settings import Fraction, Natural, NonNegative, Settings, Size
from regard.recipe.training import Regularization, SelfCritical, Training

Side = Annotated[int, Field(ge=1, le=8192)]


def height_and_width(given: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width of a size given as one number or two."""
    return (given, given) if isinstance(given, int) else given


class BaseImageData(Data):
    """Images, and how they are brought to one size."""

    has_images: ClassVar[bool] = True

    path: int | str = 0
    """The column of the path: its number from 0, or its name in the first line of a .tsv or in a .jsonl."""
    offset: Natural = 1
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
    def check_size(self) -> Self:
        if any(whole < part for whole, part in zip(self.resized, self.height_width)):
            raise ValueError(f"data.resize = {self.resize} is smaller than data.size = {self.size}, which is cropped from it")
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


class RandAugment(Settings):
    """RandAugment (Cubuk et al. 2020): random operations on each image: shear, translate, rotate, brightness, contrast, colour,
    sharpness, posterize, solarize, autocontrast, equalize, or identity."""

    operations: Size = 2
    """Operations per image."""
    magnitude: float = Field(9.0, ge=0, le=10)
    """Strength of the operations."""


class AugmentSettings(Settings):
    """Augmentation of training images; validation and test images are not augmented."""

    crop_padding: Natural = 0
    """Random crop: shift each image by up to this many pixels in both directions, padded with black."""
    flip: bool = False
    """Random horizontal flip."""
    rand_augment: RandAugment | None = None
    random_erasing: Fraction = 0.0
    """Probability of covering a rectangle with one colour (random erasing, Zhong et al. 2020)."""
    mixup: NonNegative = 0.0
    """α of mixup, which blends images and labels in pairs (Zhang et al. 2018); 0 is none."""
    cutmix: NonNegative = 0.0
    """α of CutMix, which replaces a rectangle by one of another image (Yun et al. 2019); 0 is none. With `mixup`, each is applied
    to half of the images."""
    mix_probability: float = Field(1.0, gt=0, le=1)
    """Probability that an image is mixed at all, where `mixup` or `cutmix` is set."""

    @model_validator(mode="after")
    def check_mixing(self) -> Self:
        if self.mix_probability < 1 and not (self.mixup or self.cutmix):
            raise ValueError("train.augment.mix_probability needs mixup or cutmix; set one of them, or leave it out")
        return self

    @property
    def enabled(self) -> bool:
        return self != AugmentSettings()


class ImageTraining(Training):
    """The training loop for images."""

    images_per_batch: Size = 256
    """Images in a batch; a step reads this times gradient_accumulation_steps."""
    augment: AugmentSettings = AugmentSettings()

    def budget(self, positions: int) -> int:
        return self.images_per_batch * positions

    def describe_batch(self) -> str:
        return f"{self.images_per_batch:,} images"


class CaptionRegularization(Regularization):
    feature_dropout: Fraction = 0.0
    """On the channels of the feature map that a captioner attends to: a dropped channel is zero in every cell of an image."""


class CaptionTraining(ImageTraining):
    """The training loop of captioners."""

    regularize: CaptionRegularization = CaptionRegularization()
    self_critical: SelfCritical | None = None
    """Train on the BLEU of the model's own samples."""

    @model_validator(mode="after")
    def check_self_critical(self) -> Self:
        if self.self_critical is None:
            return self
        if not self.evaluate_sentences:
            raise ValueError("train.self_critical raises the loss that would choose the weights: set train.evaluate_sentences")
        if self.regularize.r_drop:
            raise ValueError("train.regularize.r_drop compares two passes over references: with train.self_critical set it to 0")
        if self.compile is True or self.cuda_graphs is True:
            name = "compile" if self.compile is True else "cuda_graphs"
            raise ValueError(f"train.{name}: the host takes part in every step of train.self_critical; leave it out")
        if self.parallel == "fsdp":
            raise ValueError("train.parallel = 'fsdp' shards the weights that train.self_critical samples with; use 'ddp'")
        return self

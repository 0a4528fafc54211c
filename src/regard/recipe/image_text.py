"""Settings of CLIP (Radford et al. 2021): its towers, its data, its training."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from regard.recipe.image_encoders import CnnEncoderModel, EfficientNetEncoderModel
from regard.recipe.images import CaptionedImageData, ImageTraining, VitModel
from regard.recipe.model import PositionSettings
from regard.recipe.settings import Count, Fraction, Settings, kind_discriminator
from regard.recipe.stacks import StackSettings
from regard.recipe.training import Regularization

TOWER: dict[str, Any] = dict(activation="quick_gelu", norm_epsilon=1e-5)
IMAGE: dict[str, Any] = dict(
    **TOWER,
    embedding_norm=True,
    patch_bias=False,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
CLIPS: dict[str, dict[str, Any]] = {
    name: dict(
        projection_width=space,
        image=dict(layers=layers, width=width, heads=width // 64, feed_forward=4 * width, patch_size=patch, **IMAGE),
        text=dict(layers=12, width=words, heads=words // 64, feed_forward=4 * words, max_length=77, **TOWER),
    )
    for name, layers, width, patch, words, space in [
        ("clip-vit-b-32", 12, 768, 32, 512, 512),
        ("clip-vit-b-16", 12, 768, 16, 512, 512),
        ("clip-vit-l-14", 24, 1024, 14, 768, 768),
    ]
}
"""Radford et al. 2021, table 20."""


class ImageTextData(CaptionedImageData):
    """Images with one or several captions, in the formats of captioned images; each epoch takes another caption of an image."""

    too_long: Literal["truncate"] = "truncate"
    """A caption is truncated at `model.text.max_length` tokens."""


class ImageTowerModel(VitModel):
    """A Vision Transformer; the image's vector comes from its class token or the mean of its patches. Any field of a preset may
    be overridden."""

    kind: Literal["vit"] = "vit"


TowerModel = Annotated[
    Annotated[ImageTowerModel, Tag("vit")]
    | Annotated[CnnEncoderModel, Tag("cnn")]
    | Annotated[EfficientNetEncoderModel, Tag("efficientnet-lite0")],
    Discriminator(
        kind_discriminator("vit"), custom_error_type="kind", custom_error_message="should be vit, cnn or efficientnet-lite0"
    ),
]
"""The image's vector from a convolutional feature map is the mean of its cells."""


class TextTowerModel(StackSettings):
    """A Transformer; the text's vector comes from its end token or the mean of its tokens."""

    layers: Count = 4
    width: Count = 192
    heads: Count = 3
    feed_forward: Count = 768
    activation: Literal["relu", "gelu", "quick_gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it (post-norm)."""
    max_length: int = Field(77, ge=3)
    """Longest text in tokens, special tokens included."""
    positions: PositionSettings = PositionSettings(kind="learned")
    causal: bool = True
    """Causal attention, as published; false reads in both directions."""
    pool: Literal["end", "mean"] = "end"
    """What the text's vector comes from: its end token, as published, or the mean of all tokens."""


class ClipModel(Settings):
    """CLIP (Radford et al. 2021): two towers, and a shared space in which an image is near a text that fits it."""

    kind: Literal["clip"] = "clip"
    preset: Literal["clip-vit-b-32", "clip-vit-b-16", "clip-vit-l-14"] | None = None
    """Any field of a preset, and of its towers, may be overridden."""
    projection_width: Count = 128
    """Width of the shared space."""
    temperature: float = Field(0.07, ge=0.01)
    """Initial temperature that similarities are divided by; it is learned, and never less than 0.01."""
    image: TowerModel = ImageTowerModel()
    text: TextTowerModel = TextTowerModel()

    @property
    def max_length(self) -> int:
        return self.text.max_length

    @property
    def layers(self) -> str:
        return f"{self.image.layers} and {self.text.layers}"

    @property
    def width(self) -> str:
        return f"{self.image.width} and {self.text.width}"

    def length(self, size: tuple[int, int]) -> int:
        """Return the positions of an image of this size, or of the longest text, whichever are more."""
        return max(self.image.length(size), self.text.max_length)

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        preset = CLIPS.get(str(given.get("preset"))) if isinstance(given, dict) else None
        if preset is None:
            return given
        towers = {
            name: {**preset[name], **given[name]}
            if isinstance(given.get(name, {}), dict) and name in given
            else given.get(name, preset[name])
            for name in ("image", "text")
        }
        return {**preset, **given, **towers}

    @model_validator(mode="after")
    def check_distilled(self) -> Self:
        if isinstance(self.image, ImageTowerModel) and self.image.distilled != "none":
            raise ValueError(
                f"model.image.distilled = {self.image.distilled!r}: the distillation token is for labels; leave it out"
            )
        return self


class ContrastiveRegularization(Regularization):
    dropout: Fraction = 0.0
    """After each sub-layer, before the residual addition."""
    label_smoothing: Fraction = 0.0
    """Smoothing of the probabilities over the batch."""


class ContrastiveTraining(ImageTraining):
    """The training loop for pairs of an image and a text."""

    images_per_batch: int = Field(256, ge=2)
    """Pairs in the contrastive loss; on several devices, those of all devices together."""
    regularize: ContrastiveRegularization = ContrastiveRegularization()

    @model_validator(mode="after")
    def check_loss(self) -> Self:
        if self.gradient_accumulation_steps > 1:
            raise ValueError(
                "train.gradient_accumulation_steps: the loss compares the pairs of one batch, and its parts would not "
                "see each other; set it to 1 and choose train.images_per_batch"
            )
        if self.regularize.r_drop:
            raise ValueError("train.regularize.r_drop compares two passes over labels, and pairs have none: set it to 0")
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("train.augment.mixup and cutmix blend labels, and captions cannot be blended: set them to 0")
        return self

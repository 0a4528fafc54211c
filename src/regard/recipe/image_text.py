"""Settings of models of images and texts: CLIP (Radford et al. 2021), and DALL·E (Ramesh et al. 2021) with its image codes."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from regard.recipe.image_models import CnnEncoderModel, EfficientNetModel, VitModel
from regard.recipe.images import CaptionedImageData, ImageTraining
from regard.recipe.model import BlockSettings, PositionSettings
from regard.recipe.settings import Count, Fraction, Layers, Natural, NonNegative, Settings, Size, discriminate_by_kind
from regard.recipe.text_models import StackSettings
from regard.recipe.training import Regularization

Pattern = Literal["full", "row", "column", "conv"]
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
    Annotated[ImageTowerModel, Tag("vit")] | Annotated[CnnEncoderModel, Tag("cnn")] | EfficientNetModel,
    discriminate_by_kind("vit", "vit, cnn or efficientnet-lite0, -lite1 or -lite2"),
]
"""The image's vector from a convolutional feature map is the mean of its cells."""


class TextTowerModel(StackSettings):
    """A Transformer; the text's vector comes from its end token or the mean of its tokens."""

    layers: Layers = 4
    width: Size = 192
    heads: Size = 3
    feed_forward: Size = 768
    max_length: int = Field(77, ge=3, le=2**24)
    """Longest text in tokens, special tokens included."""
    positions: PositionSettings = PositionSettings(kind="learned")
    causal: bool = True
    """Causal attention, as published; false reads in both directions."""
    pool: Literal["end", "mean"] = "end"
    """What the text's vector comes from: its end token, as published, or the mean of all tokens."""
    segments: Natural = 0
    """Segment embeddings, of which a text has the first, for the weights of a BERT; 0 is none."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings, as BERT does."""


class ClipModel(Settings):
    """CLIP (Radford et al. 2021): two towers, and a shared space in which an image is near a text that fits it."""

    kind: Literal["clip"] = "clip"
    preset: Literal["clip-vit-b-32", "clip-vit-b-16", "clip-vit-l-14"] | None = None
    """Any field of a preset, and of its towers, may be overridden."""
    projection_width: Size = 128
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
    def fill_from_preset(cls, given: object) -> object:
        if not isinstance(given, dict) or not isinstance(given.get("preset"), str) or given["preset"] not in CLIPS:
            return given
        preset = CLIPS[given["preset"]]
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
    label_smoothing: Fraction = 0.0
    """Smoothing of the probabilities over the batch."""
    projection_dropout: Fraction = 0.0
    """On the vectors of both towers, before their projections; for pretrained towers and few pairs."""


class ContrastiveTraining(ImageTraining):
    """The training loop for pairs of an image and a text."""

    images_per_batch: int = Field(256, ge=2, le=2**20)
    """Pairs in the contrastive loss; on several devices, those of all devices together."""
    hard_negatives: int = Field(0, ge=0, le=64)
    """Contrast every image of a batch also with so many captions of each that are false by one change (hard negatives; NegCLIP,
    Yuksekgonul et al. 2023); for the world of shapes, which makes such captions."""
    own_negatives_weight: NonNegative = 0.0
    """Contrast every image with its own hard negatives only, in a loss of its own with this weight (Doveh et al. 2023); 0
    contrasts it with those of the whole batch, some of which are true of it."""
    regularize: ContrastiveRegularization = ContrastiveRegularization()

    @model_validator(mode="after")
    def check_loss(self) -> Self:
        if self.gradient_accumulation_steps > 1:
            raise ValueError(
                "train.gradient_accumulation_steps: the loss compares the pairs of one batch, and its parts would not "
                "see each other; set it to 1 and choose train.images_per_batch"
            )
        if self.own_negatives_weight and not self.hard_negatives:
            raise ValueError(
                f"train.own_negatives_weight = {self.own_negatives_weight}: there are no hard negatives; set train.hard_negatives"
            )
        if self.regularize.r_drop:
            raise ValueError("train.regularize.r_drop compares two passes over labels, and pairs have none: set it to 0")
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("train.augment.mixup and cutmix blend labels, and captions cannot be blended: set them to 0")
        return self


class DvaeModel(Settings):
    """The discrete autoencoder of DALL·E (Ramesh et al. 2021, sec. 2.1): an image as a grid of codes."""

    kind: Literal["dvae"] = "dvae"
    codebook_size: int = Field(512, ge=2, le=2**20)
    """Codes in the codebook."""
    code_width: Size = 64
    """Width of a code's vector."""
    downsampling: Literal[2, 4, 8, 16] = 4
    """Pixels per code, in both directions."""
    width: Size = 64
    """Width of the convolutions."""
    layers: Layers = 2
    """Residual blocks at the size of the grid, in the encoder and in the decoder."""
    quantizer: Literal["gumbel", "vq"] = "gumbel"
    """`gumbel` relaxes the choice of a code (DALL·E); `vq` takes the nearest code with a straight-through gradient (VQ-VAE, van
    den Oord et al. 2017)."""
    reconstruction_loss: Literal["l2", "l1", "laplace"] = "l2"
    """Squared or absolute error, or the logit-Laplace likelihood of app. A.3."""
    temperature: tuple[float, float] = (1.0, 0.0625)
    """Temperature of the relaxation (gumbel): at the first step, and from `anneal_steps` on."""
    anneal_steps: Count = 1000
    kl_weight: NonNegative = 0.0
    """Weight of the KL divergence from a uniform choice (gumbel); it rises over `kl_warmup_steps`. Published: 6.6, laplace."""
    kl_warmup_steps: Count = 1000
    commitment_weight: NonNegative = 0.25
    """Weight of the commitment loss, the distance from the encoder output to its code (vq)."""
    codebook_update: Literal["ema", "loss"] = "ema"
    """How the codebook learns (vq): as moving averages of the vectors assigned to each code, or by gradients."""
    decay: Fraction = 0.99
    """Decay of these averages, and of the usage of each code."""
    restart_threshold: Fraction = 0.05
    """A code used less than this times the average is reset to a vector of the batch (vq); 0 is never."""

    @model_validator(mode="after")
    def check_temperature(self) -> Self:
        if min(self.temperature) <= 0:
            raise ValueError(f"model.temperature = {list(self.temperature)}: both should be more than 0")
        return self

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of codes of an image."""
        return size[0] // self.downsampling, size[1] // self.downsampling

    def length(self, size: tuple[int, int]) -> int:
        rows, columns = self.grid(size)
        return rows * columns


class ImageCodesSource(Settings):
    """The run whose codes are generated; it is copied into this one."""

    run: str
    """A run folder of the task image-codes."""


class DalleModel(BlockSettings):
    """DALL·E (Ramesh et al. 2021, sec. 2.2): a decoder that reads a caption and predicts the codes of its image, row by row."""

    kind: Literal["dalle"] = "dalle"
    image_codes: ImageCodesSource
    layers: Layers = 6
    width: Size = 256
    heads: Size = 4
    feed_forward: Size = 1024
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    text_length: Count = 64
    """Tokens of a caption; a shorter one is padded, with a learned token for each position."""
    attention: list[Pattern] = Field(["full"], min_length=1)
    """What each layer attends to in the image so far, repeated over the layers: all of it, the last row and the cell above
    (`row`), the column, or a neighbourhood (`conv`); always the caption. As published: row, column, row, row; in the last layer
    conv."""
    kernel_size: int = Field(11, ge=3, le=2**20)
    """Width and height of the neighbourhood, an odd number."""
    text_loss_weight: float = Field(0.125, ge=0, lt=1)
    """Weight of the caption in the loss; the image has the rest."""

    @model_validator(mode="after")
    def check_kernel(self) -> Self:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"model.kernel_size = {self.kernel_size}: use an odd number")
        return self

    def patterns(self) -> list[Pattern]:
        """Return the pattern of every layer."""
        return [self.attention[number % len(self.attention)] for number in range(self.layers)]


class ImageSampling(Settings):
    """How images are sampled for evaluation."""

    temperature: float = Field(1.0, ge=1e-6, le=1000)
    top_k: Natural = 0
    """Sample from the k most probable codes; 0 is all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the fewest codes whose probabilities sum to this."""
    reranker: str | None = None
    """A run folder of the task contrastive (CLIP) that chooses the best of several images; it is copied into this run."""
    candidates: Count = 1
    """Images it chooses from."""

    @model_validator(mode="after")
    def check_candidates(self) -> Self:
        if self.candidates > 1 and self.reranker is None:
            raise ValueError(f"sample.candidates = {self.candidates}: name the run that chooses among them in sample.reranker")
        return self

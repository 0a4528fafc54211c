"""Pictures as codes, and pictures drawn from captions: DALL·E's two models."""

from typing import Literal, Self

from pydantic import Field, model_validator

from regard.recipe.model import BlockSettings
from regard.recipe.settings import Count, Fraction, Settings

Pattern = Literal["full", "row", "column", "conv"]


class DvaeModel(Settings):
    """The discrete autoencoder of DALL·E (Ramesh et al. 2021, sec. 2.1): a picture as a grid of codes."""

    kind: Literal["dvae"] = "dvae"
    codebook_size: int = Field(512, ge=2)
    """Codes in the book."""
    code_width: Count = 64
    """Of the vector that stands for a code."""
    downsampling: Literal[2, 4, 8, 16] = 4
    """Pixels across for each code."""
    width: Count = 64
    """Of the convolutions."""
    layers: Count = 2
    """Residual blocks at the size of the grid, in the encoder and again in the decoder."""
    quantizer: Literal["gumbel", "vq"] = "gumbel"
    """`gumbel` relaxes the choice of a code (DALL·E); `vq` takes the nearest and lets gradients straight through (VQ-VAE, van den
    Oord et al. 2017)."""
    reconstruction_loss: Literal["l2", "l1", "laplace"] = "l2"
    """How pixels are compared: squared or absolute error, or the logit-Laplace of app. A.3."""
    temperature: tuple[float, float] = (1.0, 0.0625)
    """Of the relaxation (gumbel): at the first step, and from `anneal_steps` on."""
    anneal_steps: Count = 1000
    kl_weight: float = Field(0.0, ge=0)
    """Weight of the choices' divergence from a uniform one (gumbel); it rises over `kl_warmup_steps`. Published: 6.6, laplace."""
    kl_warmup_steps: Count = 1000
    commitment_weight: float = Field(0.25, ge=0)
    """Weight of the distance from what the encoder says to its code (vq)."""
    codebook_update: Literal["ema", "loss"] = "ema"
    """How the book learns (vq): as moving averages of what chose each code, or by gradients."""
    decay: Fraction = 0.99
    """Of these averages, and of how often a code is chosen."""
    restart_threshold: Fraction = 0.05
    """A code that is chosen less than this times as often as on average begins anew at a vector of the batch (vq); 0 never."""

    @model_validator(mode="after")
    def temperatures_are_warm(self) -> Self:
        if min(self.temperature) <= 0:
            raise ValueError(f"model.temperature = {list(self.temperature)}: both should be more than 0")
        return self

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of codes of a picture."""
        return size[0] // self.downsampling, size[1] // self.downsampling

    def length(self, size: tuple[int, int]) -> int:
        rows, columns = self.grid(size)
        return rows * columns


class ImageCodesSource(Settings):
    """The run whose codes are drawn; it is copied into this one."""

    run: str
    """A run folder of the task image-codes."""


class DalleModel(BlockSettings):
    """DALL·E (Ramesh et al. 2021, sec. 2.2): one decoder that reads a caption and says the codes of its picture, row by row."""

    kind: Literal["dalle"] = "dalle"
    image_codes: ImageCodesSource
    layers: Count = 6
    width: Count = 256
    heads: Count = 4
    feed_forward: Count = 1024
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it."""
    text_length: Count = 64
    """Tokens of a caption; a shorter one is filled up, with a learned token for each position."""
    attention: list[Pattern] = Field(["full"], min_length=1)
    """What of the picture so far each layer sees, again and again from the first on: all of it, the last row and the place above
    (`row`), the column, or a neighbourhood (`conv`); the caption in any case. As published: row, column, row, row; in the last
    layer conv."""
    kernel_size: int = Field(11, ge=3)
    """Width and height of the neighbourhood, an odd number."""
    text_loss_weight: float = Field(0.125, ge=0, lt=1)
    """Of the caption in the loss; the picture has the rest."""

    @model_validator(mode="after")
    def neighbourhoods_have_a_centre(self) -> Self:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"model.kernel_size = {self.kernel_size}: a neighbourhood has a centre; use an odd number")
        return self

    def patterns(self) -> list[Pattern]:
        """Of every layer."""
        return [self.attention[number % len(self.attention)] for number in range(self.layers)]


class ImageSampling(Settings):
    """How the pictures are drawn that are scored."""

    temperature: float = Field(1.0, gt=0)
    top_k: int = Field(0, ge=0)
    """Draw from so many of the likeliest codes; 0 is all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw from the fewest codes that have this probability together."""
    reranker: str | None = None
    """A run folder of the task contrastive (CLIP), which chooses the best of several; it is copied into this run."""
    candidates: Count = 1
    """Pictures it chooses from."""

    @model_validator(mode="after")
    def somebody_chooses(self) -> Self:
        if self.candidates > 1 and self.reranker is None:
            raise ValueError(f"sample.candidates = {self.candidates}: who chooses? name a run in sample.reranker")
        return self

"""Settings of DALL·E's two models: image codes, and text-to-image generation."""

from typing import Literal, Self

from pydantic import Field, model_validator

from regard.recipe.model import BlockSettings
from regard.recipe.settings import Count, Fraction, Settings

Pattern = Literal["full", "row", "column", "conv"]


class DvaeModel(Settings):
    """The discrete autoencoder of DALL·E (Ramesh et al. 2021, sec. 2.1): an image as a grid of codes."""

    kind: Literal["dvae"] = "dvae"
    codebook_size: int = Field(512, ge=2)
    """Codes in the codebook."""
    code_width: Count = 64
    """Width of a code's vector."""
    downsampling: Literal[2, 4, 8, 16] = 4
    """Pixels per code, in both directions."""
    width: Count = 64
    """Width of the convolutions."""
    layers: Count = 2
    """Residual blocks at the size of the grid, in the encoder and in the decoder."""
    quantizer: Literal["gumbel", "vq"] = "gumbel"
    """`gumbel` relaxes the choice of a code (DALL·E); `vq` takes the nearest code with a straight-through gradient (VQ-VAE, van
    den Oord et al. 2017)."""
    reconstruction_loss: Literal["l2", "l1", "laplace"] = "l2"
    """Squared or absolute error, or the logit-Laplace likelihood of app. A.3."""
    temperature: tuple[float, float] = (1.0, 0.0625)
    """Temperature of the relaxation (gumbel): at the first step, and from `anneal_steps` on."""
    anneal_steps: Count = 1000
    kl_weight: float = Field(0.0, ge=0)
    """Weight of the KL divergence from a uniform choice (gumbel); it rises over `kl_warmup_steps`. Published: 6.6, laplace."""
    kl_warmup_steps: Count = 1000
    commitment_weight: float = Field(0.25, ge=0)
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
    layers: Count = 6
    width: Count = 256
    heads: Count = 4
    feed_forward: Count = 1024
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    norm_first: bool = True
    """Normalise before each sub-layer (pre-norm) instead of after it (post-norm)."""
    text_length: Count = 64
    """Tokens of a caption; a shorter one is padded, with a learned token for each position."""
    attention: list[Pattern] = Field(["full"], min_length=1)
    """What each layer attends to in the image so far, repeated over the layers: all of it, the last row and the cell above
    (`row`), the column, or a neighbourhood (`conv`); always the caption. As published: row, column, row, row; in the last layer
    conv."""
    kernel_size: int = Field(11, ge=3)
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

    temperature: float = Field(1.0, gt=0)
    top_k: int = Field(0, ge=0)
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

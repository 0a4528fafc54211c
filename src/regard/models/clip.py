"""CLIP (Radford et al. 2021): an image encoder and a text encoder whose projections into one space are near for matching pairs.

Deviations: convolutional feature maps are averaged (the paper's ResNets end in attention pooling); a bidirectional text encoder,
and mean pooling instead of the class token and the end token, are settings.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.errors import UserError
from regard.layers.stack import Stack
from regard.models.bert import Pooling
from regard.models.efficientnet import EfficientNetFeatureMap
from regard.models.gpt import build_stack, init_normal
from regard.models.image_encoders import build_image_encoder
from regard.models.vit import Size, VitEncoder, resize_position_table

if TYPE_CHECKING:
    from regard.recipe import Regularization
    from regard.recipe.image_text import ClipModel, ContrastiveRegularization, TextTowerModel

MAX_LOG_SCALE = math.log(100)
"""The scale of the logits is at most 100 (sec. 2.5)."""
POSITION_TABLE = "image.stack.positions.table.weight"


class ClipTextEncoder(nn.Module):
    """Ids (B, S) -> a vector of each text (B, D)."""

    def __init__(self, settings: "TextTowerModel", vocabulary: int, regularize: "Regularization | None" = None):
        super().__init__()
        self.causal = settings.causal
        self.token_embedding = nn.Embedding(vocabulary, settings.width)
        self.segments = nn.Embedding(settings.segments, settings.width) if settings.segments else None
        self.stack = build_stack(settings, regularize, causal=settings.causal, embedding_norm=settings.embedding_norm)
        self.pool = Pooling(settings.pool, settings.width)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        mask = Mask(causal=True) if self.causal else Mask(lengths=lengths)
        segment = None if self.segments is None else self.segments.weight[0]
        return self.pool(self.stack(self.token_embedding(source), mask=mask, segment=segment), lengths)


class Clip(nn.Module):
    """Two encoders and their projections into one space of width E."""

    once_per_example = ("image_projection", "text_projection")

    def __init__(self, settings: "ClipModel", size: Size, vocabulary: int, regularize: "ContrastiveRegularization | None" = None):
        super().__init__()
        self.settings = settings
        self.image = build_image_encoder(settings.image, size, regularize)
        self.text = ClipTextEncoder(settings.text, vocabulary, regularize)
        self.image_projection = nn.Linear(settings.image.width, settings.projection_width, bias=False)
        self.text_projection = nn.Linear(settings.text.width, settings.projection_width, bias=False)
        self.dropout = nn.Dropout(regularize.projection_dropout if regularize else 0.0)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(settings.temperature)))
        init_normal(self.text)
        init_clip_tower(self.text.stack)
        if isinstance(self.image, VitEncoder):
            init_clip_tower(self.image.stack)
            if self.image.class_token is not None:
                nn.init.normal_(self.image.class_token, std=settings.image.width**-0.5)
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)

    def forward(
        self,
        pixels: Tensor | None = None,
        source: Tensor | None = None,
        lengths: Tensor | None = None,
        image_vectors: Tensor | None = None,
        text_vectors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of images and of texts (B, E) each, and the scale of their products.

        `image_vectors` and `text_vectors` (B, D) replace the inputs of a frozen tower by its outputs.
        """
        if image_vectors is None:
            assert pixels is not None, "no images"
            image_vectors = self.encode_images(pixels)
        if text_vectors is None:
            assert source is not None and lengths is not None, "no texts"
            text_vectors = self.text(source, lengths)
        return self.project_images(image_vectors), self.project_texts(text_vectors), self.scale()

    def image_features(self, pixels: Tensor) -> Tensor:
        """Return a unit vector of each image: (B, E)."""
        return self.project_images(self.encode_images(pixels))

    def text_features(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return a unit vector of each text: (B, E)."""
        return self.project_texts(self.text(source, lengths))

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Return the image tower's vector of each image: (B, D)."""
        x = self.image(pixels)  # (B, N, D)
        return x[:, 0] if self.settings.image.pool == "class" else x.mean(1)

    def project_images(self, x: Tensor) -> Tensor:
        return unit_features(self.image_projection(self.dropout(x)))

    def project_texts(self, x: Tensor) -> Tensor:
        return unit_features(self.text_projection(self.dropout(x)))

    def resize(self, size: Size) -> None:
        if not isinstance(self.image, VitEncoder):
            raise UserError("a convolutional image encoder reads images of its training size only; resize them")
        self.image.resize(size)

    def adapt_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of another model for this one, which may have another image size, or end earlier."""
        if isinstance(self.image, EfficientNetFeatureMap):
            return self.image.adapt_weights(weights, "image")
        return resize_position_table(weights, POSITION_TABLE, self.image) if isinstance(self.image, VitEncoder) else weights

    def scale(self) -> Tensor:
        """Return one over the temperature, at most 100. While training, the parameter itself is clamped, because it gets no
        gradient beyond the limit."""
        if not self.training:
            return self.log_scale.clamp(max=MAX_LOG_SCALE).exp()
        with torch.no_grad():
            self.log_scale.clamp_(max=MAX_LOG_SCALE)
        return self.log_scale.exp()


def unit_features(x: Tensor) -> Tensor:
    """Return unit vectors in at least float32, also under autocast."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def init_clip_tower(stack: Stack) -> None:
    """Initialise matrices by the width and depth of their encoder, as in the authors' code."""
    for block in stack.layers():
        width = block.self_attention.q_proj.in_features
        inside, out = width**-0.5, (2 * width * len(stack.blocks)) ** -0.5
        for layer in (block.self_attention.q_proj, block.self_attention.k_proj, block.self_attention.v_proj):
            nn.init.normal_(layer.weight, std=inside)
        nn.init.normal_(block.self_attention.out_proj.weight, std=out)
        nn.init.normal_(block.feed_forward.inner.weight, std=(2 * width) ** -0.5)
        nn.init.normal_(block.feed_forward.outer.weight, std=out)

"""Image encoders by the `kind` of their settings: pixels (B, 3, H, W) -> vectors (B, S, D)."""

from typing import TYPE_CHECKING

from regard.models.cnn import Cnn, ImageFeatureMap
from regard.models.efficientnet import EfficientNetFeatureMap
from regard.models.gpt import init_normal
from regard.models.vit import Size, VitEncoder

if TYPE_CHECKING:
    from regard.recipe import CnnEncoderModel, EfficientNetEncoderModel, Regularization, VitModel


def build_image_encoder(
    settings: "VitModel | CnnEncoderModel | EfficientNetEncoderModel", size: Size, regularize: "Regularization | None" = None
) -> VitEncoder | ImageFeatureMap:
    match settings.kind:
        case "cnn":
            return Cnn(settings, size)
        case "efficientnet-lite0" | "efficientnet-lite1" | "efficientnet-lite2":
            return EfficientNetFeatureMap(settings, size)
    encoder = VitEncoder(settings, size, regularize)
    init_normal(encoder)
    return encoder

"""What makes a map of vectors (B, S, D) of pictures (B, 3, H, W), by the `kind` of its settings."""

from typing import TYPE_CHECKING

from regard.models.cnn import Cnn, PictureMap
from regard.models.efficientnet import EfficientNetMap
from regard.models.gpt import initialise
from regard.models.vit import PictureEncoder, Size

if TYPE_CHECKING:
    from regard.recipe import CnnEncoder, EfficientNetEncoder, Regularize, VitModel


def build_encoder(
    settings: "VitModel | CnnEncoder | EfficientNetEncoder", size: Size, regularize: "Regularize | None" = None
) -> PictureEncoder | PictureMap:
    if settings.kind == "cnn":
        return Cnn(settings, size)
    if settings.kind == "efficientnet-lite0":
        return EfficientNetMap(settings, size)
    made = PictureEncoder(settings, size, regularize)
    initialise(made)
    return made

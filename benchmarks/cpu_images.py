"""Compute the feature maps of 32 images of 224 pixels with EfficientNet-Lite0 on the CPU.

    python benchmarks/cpu_images.py [--rounds 5] [--threads 2]

Ours folds batch norms into convolutions where no gradients are taken; "norms kept" does not. timm's has the same random weights
and layout of pixels. Feature maps in fp32 must be within 1e-4 of each other.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from harness import parse_args, report, require_close, time_alternating

from regard.models import efficientnet

IMAGES, SIZE, TOLERANCE = 32, 224, 1e-4
TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
"""Declares the operators that its Python, which timm imports, expects of its compiled part."""


def timm_efficientnet(ours: torch.nn.Module) -> torch.nn.Module:
    """Return timm's model with our weights: both have the same layers in the same order."""
    for name in ("nms", "qnms"):
        TORCHVISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(str(Path(sys.prefix) / "foreign"))
    import timm

    peer = timm.create_model("tf_efficientnet_lite0", num_classes=0, global_pool="").eval()
    weights = dict(zip(peer.state_dict(), ours.state_dict().values(), strict=True))
    peer.load_state_dict(weights)
    return peer.to(memory_format=torch.channels_last)


@torch.inference_mode()
def main() -> None:
    args = parse_args(__doc__, rounds=5, threads=2)
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = efficientnet.EfficientNet().eval()
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 1)
    peer = timm_efficientnet(model)
    pixels = torch.randn(IMAGES, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    can_fold = efficientnet.can_fold_norm

    def norms_kept() -> Any:
        efficientnet.can_fold_norm = lambda norm, x: False
        try:
            return model(pixels)
        finally:
            efficientnet.can_fold_norm = can_fold

    agreement = require_close(model(pixels), peer(pixels), TOLERANCE, "feature maps of timm", relative=True)
    require_close(model(pixels), norms_kept(), TOLERANCE, "feature maps with norms", relative=True)
    engines = {"regard": lambda: model(pixels), "norms kept": norms_kept, "timm": lambda: peer(pixels)}
    times = time_alternating(engines, args.rounds)
    what = f"EfficientNet-Lite0, {IMAGES} images of {SIZE} pixels, fp32, {args.threads} threads"
    report(what, times, amount=IMAGES, unit="images/s", against=("timm", "norms kept"), agreement=agreement)


if __name__ == "__main__":
    main()

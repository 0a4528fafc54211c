"""Read and write preprocessor_config.json: how images are resized and normalized."""

import math
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.config import ConfigFile, ValueType, int_or_pair, is_integer, is_number, read_json
from regard.interop.family_rules import FlatSettings, ModelFamily

RESAMPLE_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""In the order of Pillow's numbers."""
RESCALE_FACTOR = 1 / 255
IMAGE_SIZE = int_or_pair()
VIT: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": RESCALE_FACTOR,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
CLIP: dict[str, Any] = {
    **VIT,
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": VIT,
    "DeiT": {
        **VIT,
        "image_processor_type": "DeiTImageProcessor",
        "size": {"height": 256, "width": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "CLIP": CLIP,
}
"""Defaults of preprocessor_config.json, by the prefix of its processor type."""


def rgb(maximum: float, minimum: float = 0.0) -> ValueType:
    """Three numbers, for red, green and blue; one number stands for all three."""

    def read(value: object) -> tuple[float, ...]:
        channels = [value] * 3 if isinstance(value, int | float) else value
        if (
            not isinstance(channels, list | tuple)
            or len(channels) != 3
            or not all(is_number(one, minimum, maximum) for one in channels)
        ):
            raise ValueError(f"should be three numbers from {minimum:g} to {maximum:g}")
        return tuple(float(one) for one in channels)

    return ValueType(read)


MEAN, STD = rgb(1.0), rgb(1e6, 1e-6)


def read_preprocessor(folder: Path, family: ModelFamily, size: int | tuple[int, int]) -> FlatSettings:
    """Return our settings from preprocessor_config.json; images must come out at the size that the model reads."""
    path = folder / "preprocessor_config.json"
    without_file = {"size": size, "crop_size": size, "do_center_crop": family.image_processor == "CLIP"}
    values = read_json(path) if path.is_file() else without_file
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or family.image_processor)
    defaults = next((PROCESSORS[name] for name in PROCESSORS if kind.startswith(name)), None)
    if defaults is None:
        raise UserError(f"{path}: image_processor_type = {kind[:60]!r} is not supported; those of {' and '.join(PROCESSORS)} are")
    config = ConfigFile({**defaults, **values}, path)
    for name in ("do_resize", "do_rescale"):
        if config.get(name) not in (True, None):
            raise config.error(name, config.get(name), "is not supported; only True")
    factor = config.get("rescale_factor")
    if factor is not None and not (isinstance(factor, int | float) and math.isclose(factor, RESCALE_FACTOR, rel_tol=1e-6)):
        raise config.error("rescale_factor", factor, "is not supported; only 1/255")
    resample = config.get("resample")
    if not is_integer(resample, 0, len(RESAMPLE_FILTERS) - 1):
        raise config.error("resample", resample, f"should be one of Pillow's numbers, 0 to {len(RESAMPLE_FILTERS) - 1}")
    resized, mode = read_image_size(config, "size", shortest_edge="shortest_edge" in defaults["size"])
    crops = config.get("do_center_crop") is True
    cropped = read_image_size(config, "crop_size")[0] if crops else resized
    if mode == "crop" and not crops:
        raise config.error("size", config.get("size"), "leaves images of different shapes; do_center_crop should be true")
    if cropped != size:
        raise UserError(f"{path} resizes images to {cropped} pixels, the model reads {size} (image_size)")
    normalizes = config.get("do_normalize") is not False
    return {
        "data.size": size,
        "data.resize": resized,
        "data.resize_mode": mode,
        "data.resample": RESAMPLE_FILTERS[resample],
        f"{family.image_prefix}mean": config.read("image_mean", MEAN) if normalizes else (0.0,) * 3,
        f"{family.image_prefix}std": config.read("image_std", STD) if normalizes else (1.0,) * 3,
    }


def read_image_size(config: ConfigFile, name: str, *, shortest_edge: bool = False) -> tuple[int | tuple[int, int], str]:
    """Return a size, and whether it is that of the shorter side (crop) or of both (stretch). In some families one number is the
    `shortest_edge`, in others both sides."""
    value: Any = config.get(name)
    if shortest_edge and isinstance(value, int):
        return config.read(name, IMAGE_SIZE), "crop"
    if isinstance(value, dict) and value.keys() >= {"height", "width"}:
        value = [value["height"], value["width"]]
    elif isinstance(value, dict):
        if value.keys() != {"shortest_edge"}:
            raise config.error(name, value, "should have height and width, or shortest_edge")
        return config.read(f"{name}.shortest_edge", IMAGE_SIZE), "crop"
    return config.convert(name, value, IMAGE_SIZE), "stretch"


def write_preprocessor(settings: FlatSettings, family: ModelFamily) -> dict[str, Any]:
    """Return preprocessor_config.json from our settings."""
    size, resized, mode = settings["data.size"], settings["data.resize"], settings["data.resize_mode"]
    if mode == "crop" and resized[0] != resized[1]:
        raise UserError(
            f"data.resize_mode = 'crop' to {resized[0]} × {resized[1]} pixels has no counterpart in preprocessor_config.json; "
            "use a square, or data.resize_mode = 'stretch'"
        )
    crops = mode == "crop" or tuple(size) != tuple(resized)
    config = {
        **PROCESSORS[family.image_processor],
        "image_mean": list(settings[f"{family.image_prefix}mean"]),
        "image_std": list(settings[f"{family.image_prefix}std"]),
        "resample": RESAMPLE_FILTERS.index(settings["data.resample"]),
        "do_center_crop": crops,
        "size": {"shortest_edge": resized[0]} if mode == "crop" else dict(zip(("height", "width"), resized)),
    }
    config.pop("crop_size", None)
    return config | ({"crop_size": dict(zip(("height", "width"), size))} if crops else {})

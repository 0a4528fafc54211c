"""preprocessor_config.json: how somebody else brings pictures to one size and normalises them, and how a run of ours does."""

import math
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.interop.config import MISSING, ConfigFile, ValueType, int_or_pair, read_json
from regard.interop.family_rules import FlatSettings, ModelFamily

RESAMPLE_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By Pillow's numbers."""
RESCALE_FACTOR = 1 / 255
SIDE = int_or_pair()
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
"""What a preprocessor_config.json says when it does not say otherwise, by the beginning of the type that it names."""


def rgb(most: float, least: float = 0.0) -> ValueType:
    """Three numbers: of red, green and blue."""

    def read(value: Any) -> tuple[float, ...]:
        three = [value] * 3 if isinstance(value, int | float) else value
        if (
            not isinstance(three, list | tuple)
            or len(three) != 3
            or not all(
                isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) and least <= one <= most
                for one in three
            )
        ):
            raise ValueError(f"should be three numbers from {least:g} to {most:g}")
        return tuple(float(one) for one in three)

    return ValueType(read)


MEAN, DEVIATION = rgb(1.0), rgb(1e6, 1e-6)


def read_preprocessor(folder: Path, family: ModelFamily, size: int | tuple[int, int]) -> FlatSettings:
    """Our settings, from preprocessor_config.json; pictures must come out at the size that the model reads."""
    path = folder / "preprocessor_config.json"
    said = (
        read_json(path)
        if path.is_file()
        else {"size": size, "crop_size": size, "do_center_crop": family.image_processor == "CLIP"}
    )
    kind = str(said.get("image_processor_type") or said.get("feature_extractor_type") or family.image_processor)
    standard = next((PROCESSORS[name] for name in PROCESSORS if kind.startswith(name)), None)
    if standard is None:
        raise UserError(f"{path}: image_processor_type = {kind[:60]!r} is not read; those of {' and '.join(PROCESSORS)} are")
    given = ConfigFile({**standard, **said}, path)
    for name in ("do_resize", "do_rescale"):
        if given.get(name) not in (True, MISSING):
            raise given.error(name, given.get(name), "is not read here; only True")
    factor = given.get("rescale_factor")
    if factor is not MISSING and not (isinstance(factor, int | float) and math.isclose(factor, RESCALE_FACTOR, rel_tol=1e-6)):
        raise given.error("rescale_factor", factor, "is not read here; only 1/255")
    resample = given.get("resample")
    if isinstance(resample, bool) or not isinstance(resample, int) or not 0 <= resample < len(RESAMPLE_FILTERS):
        raise given.error("resample", resample, f"should be one of Pillow's numbers, 0 to {len(RESAMPLE_FILTERS) - 1}")
    resized, fit = read_image_size(given, "size", shorter="shortest_edge" in standard["size"])
    cut = read_image_size(given, "crop_size")[0] if given.get("do_center_crop") is True else resized
    if fit == "crop" and given.get("do_center_crop") is not True:
        raise given.error("size", given.get("size"), "leaves pictures of different shapes; do_center_crop should be true")
    if cut != size:
        raise UserError(f"{path} brings pictures to {cut} pixels, the model reads {size} (image_size)")
    plain = given.get("do_normalize") is False
    return {
        "data.size": size,
        "data.resize": resized,
        "data.resize_mode": fit,
        "data.resample": RESAMPLE_FILTERS[resample],
        f"{family.image_prefix}mean": (0.0,) * 3 if plain else read_value(given, "image_mean", MEAN),
        f"{family.image_prefix}deviation": (1.0,) * 3 if plain else read_value(given, "image_std", DEVIATION),
    }


def read_image_size(given: ConfigFile, name: str, *, shorter: bool = False) -> tuple[int | tuple[int, int], str]:
    """A size, and whether the shorter side is brought to it (crop) or both (stretch); one number means the `shorter` side in some
    families, both in others."""
    value: Any = given.get(name)
    if shorter and isinstance(value, int):
        return read_value(given, name, SIDE), "crop"
    if isinstance(value, dict) and value.keys() >= {"height", "width"}:
        value = [value["height"], value["width"]]
    elif isinstance(value, dict):
        if value.keys() != {"shortest_edge"}:
            raise given.error(name, value, "should have height and width, or shortest_edge")
        return read_value(given, f"{name}.shortest_edge", SIDE), "crop"
    try:
        return SIDE.read(value), "stretch"
    except ValueError as error:
        raise given.error(name, value, str(error)) from None


def read_value(given: ConfigFile, name: str, kind: ValueType) -> Any:
    try:
        return kind.read(given.get(name))
    except ValueError as error:
        raise given.error(name, given.get(name), str(error)) from None


def write_preprocessor(settings: FlatSettings, family: ModelFamily) -> dict[str, Any]:
    """preprocessor_config.json, from our settings."""
    size, resized = settings["data.size"], settings["data.resize"]
    if settings["data.resize_mode"] == "crop" and resized[0] != resized[1]:
        raise UserError(
            f"data.resize_mode = 'crop' to {resized[0]} × {resized[1]} pixels has no counterpart in preprocessor_config.json; "
            "a square has, and data.resize_mode = 'stretch'"
        )
    crop = settings["data.resize_mode"] == "crop" or tuple(size) != tuple(resized)
    made = {
        **PROCESSORS[family.image_processor],
        "image_mean": list(settings[f"{family.image_prefix}mean"]),
        "image_std": list(settings[f"{family.image_prefix}deviation"]),
        "resample": RESAMPLE_FILTERS.index(settings["data.resample"]),
        "do_center_crop": crop,
        "size": {"shortest_edge": resized[0]} if settings["data.resize_mode"] == "crop" else sides(resized),
    }
    return {name: value for name, value in made.items() if name != "crop_size"} | ({"crop_size": sides(size)} if crop else {})


def sides(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}

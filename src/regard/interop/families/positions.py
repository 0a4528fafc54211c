"""Rotary positions and sliding windows in config.json, for decoders like Llama: settings of ours that need several of theirs."""

from collections.abc import Sequence
from typing import Any

from regard.interop.config import ConfigFile, choice, integer, positive_float
from regard.interop.family_rules import ConfigField, FlatSettings, read_field

ROPE_TYPE = choice({"default": "none", "linear": "linear", "llama3": "llama3"})
ROPE_THETA = positive_float(maximum=1e12)
SCALING = {"none": (), "linear": ("factor",), "llama3": ("factor", "low_frequency", "high_frequency", "original_length")}
"""The settings of each rule that scales rotary positions."""
SCALING_FIELDS = {
    "factor": ("factor", positive_float(), None),
    "low_frequency": ("low_freq_factor", positive_float(), None),
    "high_frequency": ("high_freq_factor", positive_float(), None),
    "original_length": ("original_max_position_embeddings", integer(), lambda settings: settings["max_length"]),
}
WINDOW = integer()
FULL, SLIDING = "full_attention", "sliding_attention"


def read_rotary(
    config: ConfigFile, settings: FlatSettings, section: str = "rope_parameters", theta: float = 10_000.0
) -> FlatSettings:
    """Return our settings of rotary positions. As in transformers, `rope_scaling` takes the place of `rope_parameters`."""
    section = "rope_scaling" if config.get("rope_scaling") else section
    base = ConfigField("positions.base", f"{section}.rope_theta", ROPE_THETA, theta, aliases=("rope_theta",))
    kind = ConfigField("positions.scaling.kind", f"{section}.rope_type", ROPE_TYPE, "default", aliases=(f"{section}.type",))
    found = {item.ours: read_field(item, config, settings) for item in (base, kind)}
    for name in SCALING[found[kind.ours]]:
        theirs, value_type, default = SCALING_FIELDS[name]
        item = ConfigField(f"positions.scaling.{name}", f"{section}.{theirs}", value_type, default)
        found[item.ours] = read_field(item, config, settings)
    return found


def rope_parameters(settings: FlatSettings) -> dict[str, Any]:
    """Return their section about rotary positions."""
    kind = settings["positions.scaling.kind"]
    scaling = {SCALING_FIELDS[name][0]: settings[f"positions.scaling.{name}"] for name in SCALING[kind]}
    return {"rope_type": ROPE_TYPE.write(kind), "rope_theta": settings["positions.base"], **scaling}


def read_windows(config: ConfigFile, settings: FlatSettings, sliding: Sequence[int], default: int | None = None) -> FlatSettings:
    """Return our settings of sliding windows; their width counts the own position, as ours does. `sliding` are the layers that
    have one where `layer_types` does not say, `default` is the width where `sliding_window` is absent (null is no window)."""
    types, window = config.get("layer_types"), config.values.get("sliding_window", default)
    if types is not None:
        if not isinstance(types, list) or len(types) != settings["layers"] or not set(types) <= {FULL, SLIDING}:
            raise config.error("layer_types", types, f"should name {settings['layers']} layers, each {FULL} or {SLIDING}")
        sliding = [number for number, one in enumerate(types) if one == SLIDING]
        if sliding and window is None:
            raise config.error("sliding_window", None, f"should be an integer, as layer_types has {SLIDING}")
    if window is None or not sliding:
        return {"window": None, "window_layers": None}
    return {"window": config.convert("sliding_window", window, WINDOW), "window_layers": list(sliding)}


def layer_types(settings: FlatSettings) -> list[str]:
    """Return the kind of attention of each layer."""
    sliding = settings["window_layers"] or ()
    return [SLIDING if number in sliding else FULL for number in range(settings["layers"])]

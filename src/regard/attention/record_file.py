"""A record of attention as a file, `.attn`: safetensors with JSON in its header. numpy alone; see docs/seeing.md for the format.

Weights from `transformers` come in, and BertViz's tuples go out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from regard.attention.reductions import RECORD_KINDS, RecordedMap, part_shapes
from regard.errors import UserError
from regard.files import atomic_file

VERSION = 1
SIDES = {
    "text": ("text", "text"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


@dataclass(frozen=True)
class ModuleRecord:
    """One place of attention: what is kept of each time it was called."""

    name: str
    layer: int | None
    kind: str
    """self or cross."""
    queries: str
    """Which of the record's tokens ask,"""
    keys: str
    """and which are looked at."""
    heads: list[int]
    calls: list[RecordedMap]
    rows: list[int] | None = None
    """Of the queries, those that were watched, where not all were."""

    def weights(self) -> np.ndarray:
        """(B, H, T, S), the queries of all calls one after another, as near as what is kept comes."""
        maps = [kept.dense() for kept in self.calls]
        longest = max(weights.shape[3] for weights in maps)
        return np.concatenate([np.pad(weights, [(0, 0)] * 3 + [(0, longest - weights.shape[3])]) for weights in maps], axis=2)

    @property
    def dropped(self) -> str:
        return "; ".join(dict.fromkeys(kept.dropped for kept in self.calls if kept.dropped))


@dataclass(frozen=True)
class Record:
    """What a model attended to. `tokens`: of each side ("text", or "source" and "target"), one list of strings a row of the
    batch, or {"patches": [rows, columns]} for a picture."""

    modules: dict[str, ModuleRecord]
    tokens: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """SHA-256 of the weights of the model, where it is known,"""
    inputs: str = ""
    """and of what it read."""

    def __post_init__(self) -> None:
        for place in self.modules.values():
            check_tokens(place, self.tokens)

    def write(self, path: str | Path) -> None:
        """Written aside, then renamed."""
        arrays = {
            f"{name}/{number}/{part}": np.ascontiguousarray(array)
            for name, place in self.modules.items()
            for number, kept in enumerate(place.calls)
            for part, array in kept.numpy().parts.items()
        }
        places = [
            {
                "name": place.name,
                "layer": place.layer,
                "kind": place.kind,
                "queries": place.queries,
                "keys": place.keys,
                "heads": place.heads,
                "rows": place.rows,
                "dropped": place.dropped,
                "calls": [{"kind": kept.kind, "size": kept.size, "shape": list(kept.shape)} for kept in place.calls],
            }
            for place in self.modules.values()
        ]
        about = {"version": VERSION, "model": self.model, "inputs": self.inputs, "tokens": self.tokens, "places": places}
        try:
            with atomic_file(Path(path)) as temporary:
                save_file(arrays, temporary, metadata={"attn": json.dumps(about, ensure_ascii=False)})
        except SafetensorError as error:
            raise UserError(f"cannot write {path}: {error}") from None

    @staticmethod
    def read(path: str | Path) -> "Record":
        """A file, checked: whatever is in it, it gives a record or one line that says what is wrong."""
        if not Path(path).is_file():
            raise UserError(f"{path}: there is no such file")
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads((file.metadata() or {}).get("attn", "null"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path}: not a record of attention, or only part of one ({str(error)[:80]})") from None
        try:
            return read_record(about, arrays)
        except UserError as mistake:
            raise UserError(f"{path}: {mistake}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: a damaged record of attention ({type(error).__name__}: {str(error)[:80]})") from None

    @staticmethod
    def from_transformers(attentions: Any, tokens: Any = None) -> "Record":
        """`outputs.attentions` (a tuple of one (B, H, T, S) a layer), or of a model of two sides
        {"encoder": outputs.encoder_attentions, "decoder": outputs.decoder_attentions, "cross": outputs.cross_attentions}."""
        parts = attentions if isinstance(attentions, Mapping) else {"text": attentions}
        places = {}
        for part, layers in parts.items():
            if part not in SIDES:
                raise UserError(f"{part!r}: attentions are of {', '.join(SIDES)}")
            if layers is None or any(layer is None for layer in layers):
                raise UserError(
                    "transformers gave no attentions (None): load the model with attn_implementation='eager' and call "
                    "it with output_attentions=True"
                )
            for number, layer in enumerate(layers):
                if not hasattr(layer, "shape") or len(layer.shape) != 4:
                    raise UserError(f"layer {number} of the attentions is not (batch, heads, queries, keys): give one call's")
                stack = "" if part == "text" else "encoder." if part == "encoder" else "decoder."
                name = f"{stack}blocks.{number}.{'cross' if part == 'cross' else 'self'}_attention"
                kept = RecordedMap("weights", tuple(layer.shape), {"weights": layer}).numpy()
                places[name] = module_record(name, [kept])
        return Record(places, normalize_tokens(tokens))

    def to_bertviz(self, pattern: str = "", row: int = 0) -> tuple[Any, ...]:
        """What BertViz's head_view and model_view take: a tensor (1, H, T, S) of each layer whose name matches, of one row of the
        batch."""
        import torch  # all else here does without

        chosen = [place for name, place in self.modules.items() if re.search(pattern, name)]
        for place in chosen:
            if place.dropped:
                raise UserError(f"{place.name}: BertViz draws whole maps, and the record dropped {place.dropped}")
        return tuple(torch.from_numpy(place.weights()[row : row + 1].copy()) for place in chosen)


def module_record(
    name: str, calls: list[RecordedMap], heads: Sequence[int] | None = None, rows: list[int] | None = None
) -> ModuleRecord:
    """A place as its name tells it: `decoder.blocks.0.cross_attention`."""
    kind = "cross" if "cross" in name else "self"
    part = "cross" if kind == "cross" else next((side for side in ("encoder", "decoder") if name.startswith(side + ".")), "text")
    number = re.search(r"\.(\d+)\.", "." + name)
    known = list(range(calls[0].shape[1]) if heads is None else heads)
    return ModuleRecord(name, None if number is None else int(number.group(1)), kind, *SIDES[part], known, calls, rows)


def normalize_tokens(tokens: Any) -> dict[str, Any]:
    """One text as a list of strings, several as a list of those, sides by their names -> what a record has."""
    if tokens is None:
        return {}
    sides = tokens if isinstance(tokens, Mapping) and "patches" not in tokens else {"text": tokens}
    return {
        side: [list(said)] if said and isinstance(said, Sequence) and isinstance(said[0], str) else said
        for side, said in sides.items()
    }


def check_tokens(place: ModuleRecord, tokens: Mapping[str, Any]) -> None:
    """There are no more tokens than places for them, and as many rows as in the batch."""
    B = place.calls[0].shape[0]
    asking = max(kept.shape[2] for kept in place.calls) if len(place.calls) == 1 else sum(kept.shape[2] for kept in place.calls)
    for side, room in ((place.keys, max(kept.shape[3] for kept in place.calls)), (place.queries, asking)):
        said = tokens.get(side)
        if said is None or (side == place.queries and place.rows is not None):
            continue
        if isinstance(said, Mapping):
            if len(said.get("patches", ())) != 2 or not all(isinstance(n, int) and n > 0 for n in said["patches"]):
                raise UserError(f"tokens of {side!r}: patches should be [rows, columns]")
            continue
        if not isinstance(said, list) or not all(
            isinstance(row, list) and all(isinstance(token, str) for token in row) for row in said
        ):
            raise UserError(f"tokens of {side!r} should be a list of strings for each row of the batch")
        if len(said) != B:
            raise UserError(f"tokens of {side!r}: {len(said)} rows, and a batch of {B} at {place.name}")
        if any(len(row) > room for row in said):
            raise UserError(f"tokens of {side!r}: {max(map(len, said))} in a row, and {room} at {place.name}")


def read_record(about: Any, arrays: dict[str, np.ndarray]) -> Record:
    if not isinstance(about, dict) or "version" not in about:
        raise UserError("safetensors, but no record of attention (no 'attn' in its header)")
    if about["version"] != VERSION:
        raise UserError(f"a record of version {str(about['version'])[:20]}; this regard reads version {VERSION}")
    places = {}
    for said in about["places"]:
        calls = [read_call(f"{said['name']}/{number}", call, arrays) for number, call in enumerate(said["calls"])]
        numbers = [*said["heads"], *(said["rows"] or ()), said["layer"] or 0]
        words = [said["name"], said["kind"], said["queries"], said["keys"]]
        if not all(isinstance(word, str) for word in words) or not all(map(is_number, numbers)):
            raise UserError(f"a place that is not described as a place should be ({str(said)[:60]})")
        if not calls or len(said["heads"]) != calls[0].shape[1]:
            raise UserError(f"{said['name']}: {len(said['heads'])} heads are named, and the weights are of another number")
        places[said["name"]] = ModuleRecord(
            said["name"], said["layer"], said["kind"], said["queries"], said["keys"], said["heads"], calls, said["rows"]
        )
    if arrays:
        raise UserError(f"tensors that no place names, such as {next(iter(arrays))!r}")
    return Record(places, dict(about["tokens"]), str(about["model"]), str(about["inputs"]))


def is_number(value: Any) -> bool:
    return type(value) is int


def read_call(where: str, said: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> RecordedMap:
    """One call's arrays, taken out of all; no shape is believed before it is confirmed."""
    kind, size, shape = said["kind"], said["size"], tuple(said["shape"])
    if kind not in RECORD_KINDS or len(shape) != 4 or not all(map(is_number, (size, *shape))) or size < 1 or min(shape) < 0:
        raise UserError(
            f"{where}: a reduction this regard does not know ({str(kind)[:20]!r}, {str(size)[:20]}, {str(shape)[:60]})"
        )
    parts = {}
    for name, expected in part_shapes(kind, size, shape).items():
        array = arrays.pop(f"{where}/{name}", None)
        if array is None or array.shape != expected:
            raise UserError(f"{where}/{name} should be {expected} and is {'missing' if array is None else array.shape}")
        limit = {"keys": shape[3], "rows": shape[2]}.get(name)
        integers = np.issubdtype(array.dtype, np.integer)
        if integers != (limit is not None) or (limit is not None and array.size and not 0 <= array.min() <= array.max() < limit):
            raise UserError(f"{where}/{name} holds {array.dtype} that are no {'places' if limit is not None else 'weights'}")
        parts[name] = array
    return RecordedMap(kind, shape, parts, size)

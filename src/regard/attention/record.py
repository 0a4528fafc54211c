"""Records of attention, in memory and as `.attn` files: safetensors with JSON in the header (docs/seeing.md has the format).

This module needs numpy only: a record is read without torch. Attentions of `transformers` can be imported, BertViz's tuples
exported. A record keeps each map of weights (B, H, T, S) whole, or reduced:

    weights   all
    top       the `size` largest weights of each row, and their keys
    blocks    means over blocks of `size` queries × `size` keys
    rows      the weights of every `size`-th query
    entropy   -Σ w ln w of each row, in nats
    nothing   only its shape
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from regard.errors import UserError
from regard.files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

MAX_DENSE = 2**30
"""Weights of a map that is seen whole: 4 GB."""
VERSION = 1
RECORD_KINDS = ("weights", "top", "blocks", "rows", "entropy", "nothing")
SIDES = {
    "text": ("text", "text"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""The sides whose tokens are queries and keys."""
MapShape = tuple[int, int, int, int]
Tokens = Sequence[str] | Sequence[Sequence[str]] | Mapping[str, object]
"""The tokens of one text, of several, or of each side of a record."""
Attentions = Sequence["Tensor | np.ndarray"]
"""One map (B, H, T, S) per layer."""


def part_shapes(kind: str, size: int, shape: MapShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that a record keeps of a map."""
    B, H, T, S = shape
    match kind:
        case "weights":
            return {"weights": shape}
        case "top":
            return {"values": (B, H, T, size), "keys": (B, H, T, size)}
        case "blocks":
            return {"means": (B, H, -(-T // size), -(-S // size))}
        case "rows":
            return {"weights": (B, H, -(-T // size), S), "rows": (-(-T // size),)}
        case "entropy":
            return {"entropy": (B, H, T)}
        case _:
            return {}


@dataclass(frozen=True)
class RecordedMap:
    """The record of one map of weights (B, H, T, S): all of it, or a reduction that knows what it dropped."""

    kind: str
    shape: MapShape
    """Of the whole map."""
    parts: dict[str, Any]
    """Tensors, or arrays after `numpy`."""
    size: int = 1

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self.parts.values())

    @property
    def dropped(self) -> str:
        """What is missing, in words; empty where nothing is."""
        _, _, T, S = self.shape
        match self.kind:
            case "weights":
                return ""
            case "top":
                return f"all but the {self.size} largest of {S} weights a row"
            case "blocks":
                return f"everything finer than means over blocks of {min(self.size, T)} × {min(self.size, S)}"
            case "rows":
                return f"all but every {self.size}th of {T} rows"
            case "entropy":
                return "the weights; the entropy of each row is kept"
            case _:
                return "everything but the shape"

    def numpy(self) -> "RecordedMap":
        """Return the same record in arrays; bfloat16, which numpy lacks, becomes float32."""
        return replace(self, parts={name: _to_array(part) for name, part in self.parts.items()})

    def dense(self) -> np.ndarray:
        """Return (B, H, T, S) as far as it is known: 0 where a top-k dropped a weight, block means repeated over their blocks,
        NaN where a row is unknown."""
        parts = self.numpy().parts
        if math.prod(self.shape) > MAX_DENSE:
            raise UserError(f"a map of {' × '.join(map(str, self.shape))} weights is too large to be seen whole")
        match self.kind:
            case "weights":
                return parts["weights"]
            case "top":
                dense = np.zeros(self.shape, parts["values"].dtype)
                np.put_along_axis(dense, parts["keys"].astype(np.int64), parts["values"], axis=-1)
                return dense
            case "blocks":
                _, _, T, S = self.shape
                return parts["means"].repeat(min(self.size, T), axis=2)[:, :, :T].repeat(min(self.size, S), axis=3)[..., :S]
            case "rows":
                dense = np.full(self.shape, np.nan, parts["weights"].dtype)
                dense[:, :, parts["rows"]] = parts["weights"]
                return dense
            case _:
                return np.full(self.shape, np.nan, np.float32)

    def remainder(self) -> np.ndarray:
        """Return the weight of each row that a top-k dropped (B, H, T); 0 for a row that looked nowhere."""
        assert self.kind == "top", f"of a top-k, not of {self.kind}"
        kept = self.numpy().parts["values"].astype(np.float32).sum(-1)
        return np.where(kept > 0, np.clip(1 - kept, 0, None), 0)


def _to_array(part: Any) -> np.ndarray:
    if isinstance(part, np.ndarray):
        return part
    part = part.detach().cpu()
    return (part.float() if str(part.dtype) == "torch.bfloat16" else part).numpy()


@dataclass(frozen=True)
class ModuleRecord:
    """The record of one attention module: a map for each time it was called."""

    name: str
    layer: int | None
    kind: str
    """self or cross."""
    queries: str
    """The side whose tokens are the queries, such as "target"."""
    keys: str
    """The side whose tokens are the keys."""
    heads: list[int]
    calls: list[RecordedMap]
    rows: list[int] | None = None
    """The queries that were watched, where not all were."""

    def weights(self) -> np.ndarray:
        """Return (B, H, T, S), the queries of all calls concatenated, as far as they are known (`RecordedMap.dense`)."""
        maps = [call.dense() for call in self.calls]
        keys = max(weights.shape[3] for weights in maps)
        return np.concatenate([np.pad(weights, [(0, 0)] * 3 + [(0, keys - weights.shape[3])]) for weights in maps], axis=2)

    @property
    def dropped(self) -> str:
        return "; ".join(dict.fromkeys(call.dropped for call in self.calls if call.dropped))


@dataclass(frozen=True)
class Record:
    """What a model attended to. `tokens` has for each side ("text", or "source" and "target") one list of strings per row of the
    batch, or {"patches": [rows, columns]} for an image."""

    modules: dict[str, ModuleRecord]
    tokens: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """SHA-256 of the model's weights, where it is known."""
    inputs: str = ""
    """SHA-256 of the inputs, where it is known."""

    def __post_init__(self) -> None:
        for module in self.modules.values():
            _check_tokens(module, self.tokens)

    def write(self, path: str | Path) -> None:
        """Write the record to a file, which is whole or absent."""
        arrays = {
            f"{name}/{number}/{part}": np.ascontiguousarray(array)
            for name, module in self.modules.items()
            for number, call in enumerate(module.calls)
            for part, array in call.numpy().parts.items()
        }
        modules = [
            {
                "name": module.name,
                "layer": module.layer,
                "kind": module.kind,
                "queries": module.queries,
                "keys": module.keys,
                "heads": module.heads,
                "rows": module.rows,
                "dropped": module.dropped,
                "calls": [{"kind": call.kind, "size": call.size, "shape": list(call.shape)} for call in module.calls],
            }
            for module in self.modules.values()
        ]
        header = {"version": VERSION, "model": self.model, "inputs": self.inputs, "tokens": self.tokens, "modules": modules}
        try:
            with atomic_file(Path(path)) as temporary:
                save_file(arrays, temporary, metadata={"attn": json.dumps(header, ensure_ascii=False)})
        except SafetensorError as error:
            raise UserError(f"cannot write {path}: {error}") from None

    @staticmethod
    def read(path: str | Path) -> "Record":
        """Read and check a file; raise UserError, one line, where it is not a valid record."""
        if not Path(path).is_file():
            raise UserError(f"{path}: there is no such file")
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {}).get("attn", "null"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path}: not a record of attention, or a truncated one ({str(error)[:80]})") from None
        try:
            return _read_record(header, arrays)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: a damaged record of attention ({type(error).__name__}: {str(error)[:80]})") from None

    @staticmethod
    def from_transformers(attentions: Attentions | Mapping[str, Attentions], tokens: Tokens | None = None) -> "Record":
        """Return a record of `outputs.attentions` of a transformers model (a tuple of one (B, H, T, S) per layer), or for an
        encoder–decoder of {"encoder": outputs.encoder_attentions, "decoder": outputs.decoder_attentions, "cross":
        outputs.cross_attentions}."""
        stacks = attentions if isinstance(attentions, Mapping) else {"text": attentions}
        modules = {}
        for stack, layers in stacks.items():
            if stack not in SIDES:
                raise UserError(f"{stack!r}: attentions are of {', '.join(SIDES)}")
            if layers is None or any(layer is None for layer in layers):
                raise UserError(
                    "transformers gave no attentions (None): load the model with attn_implementation='eager' and call "
                    "it with output_attentions=True"
                )
            for number, layer in enumerate(layers):
                if not hasattr(layer, "shape") or len(layer.shape) != 4:
                    raise UserError(f"layer {number} of the attentions is not (batch, heads, queries, keys): give one call's")
                prefix = "" if stack == "text" else "encoder." if stack == "encoder" else "decoder."
                name = f"{prefix}blocks.{number}.{'cross' if stack == 'cross' else 'self'}_attention"
                call = RecordedMap("weights", tuple(layer.shape), {"weights": layer}).numpy()
                modules[name] = module_record(name, [call], stack=stack)
        return Record(modules, normalize_tokens(tokens))

    def to_bertviz(self, pattern: str = "", row: int = 0) -> "tuple[Tensor, ...]":
        """Return the input of BertViz's head_view and model_view: a tensor (1, H, T, S) per layer whose name matches, for one row
        of the batch."""
        import torch  # nothing else here needs it

        chosen = [module for name, module in self.modules.items() if re.search(pattern, name)]
        for module in chosen:
            if module.dropped:
                raise UserError(f"{module.name}: BertViz draws whole maps, and the record dropped {module.dropped}")
        return tuple(torch.from_numpy(module.weights()[row : row + 1].copy()) for module in chosen)


def module_record(
    name: str,
    calls: list[RecordedMap],
    heads: Sequence[int] | None = None,
    rows: list[int] | None = None,
    *,
    stack: str = "text",
) -> ModuleRecord:
    """Return the record of a module of a stack (one of SIDES), with its layer read from its name."""
    kind = "cross" if stack == "cross" else "self"
    number = re.search(r"\.(\d+)\.", "." + name)
    recorded_heads = list(range(calls[0].shape[1]) if heads is None else heads)
    return ModuleRecord(name, None if number is None else int(number.group(1)), kind, *SIDES[stack], recorded_heads, calls, rows)


def normalize_tokens(tokens: Tokens | None) -> dict[str, Any]:
    """Return the tokens of a record from one text (a list of strings), several (a list of those), or a mapping of sides."""
    if tokens is None:
        return {}
    sides = tokens if isinstance(tokens, Mapping) and "patches" not in tokens else {"text": tokens}
    return {
        side: [list(texts)] if texts and isinstance(texts, Sequence) and isinstance(texts[0], str) else texts
        for side, texts in sides.items()
    }


def _check_tokens(module: ModuleRecord, tokens: Mapping[str, Any]) -> None:
    """Raise UserError where a side has more tokens than the maps have positions, or another number of rows than the batch."""
    B = module.calls[0].shape[0]
    queries = sum(call.shape[2] for call in module.calls)
    for side, positions in ((module.keys, max(call.shape[3] for call in module.calls)), (module.queries, queries)):
        texts = tokens.get(side)
        if texts is None or (side == module.queries and module.rows is not None):
            continue
        if isinstance(texts, Mapping):
            if len(texts.get("patches", ())) != 2 or not all(isinstance(n, int) and n > 0 for n in texts["patches"]):
                raise UserError(f"tokens of {side!r}: patches should be [rows, columns]")
            if math.prod(texts["patches"]) > positions:
                raise UserError(f"tokens of {side!r}: patches {texts['patches']}, and {positions} positions at {module.name}")
            continue
        if not isinstance(texts, list) or not all(
            isinstance(row, list) and all(isinstance(token, str) for token in row) for row in texts
        ):
            raise UserError(f"tokens of {side!r} should be a list of strings for each row of the batch")
        if len(texts) != B:
            raise UserError(f"tokens of {side!r}: {len(texts)} rows, and a batch of {B} at {module.name}")
        if any(len(row) > positions for row in texts):
            raise UserError(f"tokens of {side!r}: {max(map(len, texts))} in a row, and {positions} at {module.name}")


def _read_record(header: Any, arrays: dict[str, np.ndarray]) -> Record:
    if not isinstance(header, dict) or "version" not in header:
        raise UserError("a safetensors file, but no record of attention (no 'attn' in its header)")
    if header["version"] != VERSION:
        raise UserError(f"a record of version {str(header['version'])[:20]}; this regard reads version {VERSION}")
    modules = {}
    for entry in header["modules"]:
        calls = [_read_call(f"{entry['name']}/{number}", call, arrays) for number, call in enumerate(entry["calls"])]
        numbers = [*entry["heads"], *(entry["rows"] or ()), entry["layer"] or 0]
        names = [entry["name"], entry["kind"], entry["queries"], entry["keys"]]
        if not all(isinstance(name, str) for name in names) or not all(map(_is_integer, numbers)):
            raise UserError(f"an invalid module entry ({str(entry)[:60]})")
        if not calls or len(entry["heads"]) != calls[0].shape[1]:
            raise UserError(f"{entry['name']}: {len(entry['heads'])} heads are named, and the weights have another number")
        modules[entry["name"]] = ModuleRecord(
            entry["name"], entry["layer"], entry["kind"], entry["queries"], entry["keys"], entry["heads"], calls, entry["rows"]
        )
    if arrays:
        raise UserError(f"tensors of no module, such as {next(iter(arrays))!r}")
    return Record(modules, dict(header["tokens"]), str(header["model"]), str(header["inputs"]))


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _read_call(path: str, call: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> RecordedMap:
    """Take the arrays of one call out of `arrays`; their shapes and values are checked against the header."""
    kind, size, shape = call["kind"], call["size"], tuple(call["shape"])
    if kind not in RECORD_KINDS or len(shape) != 4 or not all(map(_is_integer, (size, *shape))) or size < 1 or min(shape) < 0:
        raise UserError(f"{path}: an unknown reduction ({str(kind)[:20]!r}, {str(size)[:20]}, {str(shape)[:60]})")
    parts = {}
    for name, expected in part_shapes(kind, size, shape).items():
        array = arrays.pop(f"{path}/{name}", None)
        if array is None or array.shape != expected:
            raise UserError(f"{path}/{name} should be {expected} and is {'missing' if array is None else array.shape}")
        limit = {"keys": shape[3], "rows": shape[2]}.get(name)
        integers = np.issubdtype(array.dtype, np.integer)
        if integers != (limit is not None) or (limit is not None and array.size and not 0 <= array.min() <= array.max() < limit):
            raise UserError(f"{path}/{name} holds {array.dtype} that are no {'positions' if limit is not None else 'weights'}")
        parts[name] = array
    return RecordedMap(kind, shape, parts, size)

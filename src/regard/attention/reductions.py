"""What a record keeps of one map of weights (B, H, T, S): all of it, or a reduction that says what it dropped. numpy alone.

weights   all
top       the `size` largest weights of each row, and where they are
blocks    means over blocks of `size` queries × `size` keys
rows      the weights of every `size`-th query
entropy   -Σ w ln w of each row, in nats
nothing   its shape
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

RECORD_KINDS = ("weights", "top", "blocks", "rows", "entropy", "nothing")
MapShape = tuple[int, int, int, int]


def part_shapes(kind: str, size: int, shape: MapShape) -> dict[str, tuple[int, ...]]:
    """The shapes of what is kept of a map."""
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
        """What is not here, in words; empty where everything is."""
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
        """The same in arrays; what numpy has no name for (bfloat16) becomes float32."""
        return replace(self, parts={name: as_array(part) for name, part in self.parts.items()})

    def dense(self) -> np.ndarray:
        """(B, H, T, S), as near as what is kept comes: 0 where a top-k dropped, means repeated over their blocks, NaN where a row
        is unknown."""
        parts = self.numpy().parts
        match self.kind:
            case "weights":
                return parts["weights"]
            case "top":
                whole = np.zeros(self.shape, parts["values"].dtype)
                np.put_along_axis(whole, parts["keys"].astype(np.int64), parts["values"], axis=-1)
                return whole
            case "blocks":
                _, _, T, S = self.shape
                return parts["means"].repeat(min(self.size, T), axis=2)[:, :, :T].repeat(min(self.size, S), axis=3)[..., :S]
            case "rows":
                whole = np.full(self.shape, np.nan, parts["weights"].dtype)
                whole[:, :, parts["rows"]] = parts["weights"]
                return whole
            case _:
                return np.full(self.shape, np.nan, np.float32)

    def remainder(self) -> np.ndarray:
        """How much of each row's weight is not in a top-k: (B, H, T). A row that looked nowhere has none."""
        assert self.kind == "top", f"of a top-k, not of {self.kind}"
        held = self.numpy().parts["values"].astype(np.float32).sum(-1)
        return np.where(held > 0, np.clip(1 - held, 0, None), 0)


def as_array(part: Any) -> np.ndarray:
    if isinstance(part, np.ndarray):
        return part
    part = part.detach().cpu()
    return (part.float() if str(part.dtype) == "torch.bfloat16" else part).numpy()

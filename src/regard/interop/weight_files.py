"""A folder of somebody else's, read safely: nothing in it is run, and no size in it is believed before the file confirms it."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import Interrupted, UserError
from regard.interop.config import ConfigFile, read_json

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
SUPPORTED_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "U8", "BOOL"}
"""Kinds of numbers that weights and their leftovers come in; quantised ones are not read."""


@dataclass
class TensorFiles:
    """The tensors of a folder: their shapes at once, their numbers when asked for."""

    path: str
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]


def open_config(folder: Path) -> ConfigFile:
    """config.json, if it asks for nothing but to be read."""
    config = ConfigFile(read_json(folder / "config.json"), folder / "config.json")
    for path in (config.path, folder / "tokenizer_config.json"):
        values = config.values if path == config.path else read_json(path) if path.exists() else {}
        asks = [name for name in ("auto_map", "trust_remote_code") if values.get(name)]
        if asks:
            raise UserError(
                f"{path} asks for code of its own ({asks[0]}); regard runs none, and reads only the families it knows"
            )
    if "quantization_config" in config.values:
        raise UserError(f"{config.path}: the weights are quantised (quantization_config); save them in float32 or bfloat16")
    return config


def open_tensors(folder: Path, *, allow_pickle: bool = False) -> TensorFiles:
    if (folder / SAFETENSORS).is_file():
        return open_safetensors(folder, [SAFETENSORS], None)
    if (folder / SAFETENSORS_INDEX).is_file():
        index = read_weight_map(folder / SAFETENSORS_INDEX, ".safetensors")
        return open_safetensors(folder, list(dict.fromkeys(index.values())), index)
    pickled = [name for name in PICKLE_FILES if (folder / name).is_file()]
    if not pickled:
        raise UserError(
            f"{folder} has no weights ({SAFETENSORS}, or {SAFETENSORS_INDEX} and the files it names); "
            "where there is only a .bin: regard convert SRC DST --allow-pickle"
        )
    if not allow_pickle:
        raise UserError(
            f"{folder} has its weights in a pickle ({pickled[0]}), which can hold code; to take the tensors alone: "
            f"regard convert {folder} DST --allow-pickle"
        )
    if pickled[0] == PICKLE_FILES[0]:
        return open_pickles(folder, [PICKLE_FILES[0]])
    return open_pickles(folder, list(dict.fromkeys(read_weight_map(folder / PICKLE_FILES[1], ".bin").values())))


def read_weight_map(path: Path, ending: str) -> dict[str, str]:
    """Which file holds which tensor. Files are named plainly: an index does not lead out of its folder."""
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise UserError(f"{path} names no tensors (weight_map)")
    for name in index.values():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(ending):
            raise UserError(f"{path} names the file {str(name)[:80]!r}; it should be the name of a {ending} file beside it")
    for name in dict.fromkeys(index.values()):
        if not (path.parent / name).is_file():
            raise UserError(f"{path} names {name}, which is not there; the download may be unfinished")
    return index


def open_safetensors(folder: Path, names: list[str], index: dict[str, str] | None) -> TensorFiles:
    """Safetensors: their headers say every shape, and are checked against the length of the file by the library."""
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Any] = {}
    for name in names:
        try:
            file = safe_open(folder / name, framework="pt")
            for key in file.keys():  # noqa: SIM118
                part = file.get_slice(key)
                if part.get_dtype() not in SUPPORTED_DTYPES:
                    raise UserError(f"{folder / name}: {key} is of the type {part.get_dtype()}, which is not read")
                shapes[key] = tuple(part.get_shape())
                files[key] = file
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{folder / name} is damaged: {str(error).splitlines()[0]}; fetch it again") from None
    for key, name in (index or {}).items():
        if key not in shapes:
            raise UserError(f"{folder / SAFETENSORS_INDEX} says that {name} holds {key}, which it does not")

    def read(name: str) -> Tensor:
        return files[name].get_tensor(name)

    return TensorFiles(str(folder / (names[0] if index is None else SAFETENSORS_INDEX)), shapes, read)


def open_pickles(folder: Path, names: list[str]) -> TensorFiles:
    """Pickles as torch writes them today: archives, of which nothing is compressed."""
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            with zipfile.ZipFile(folder / name) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise UserError(f"{folder / name} is compressed, as torch never writes it; it is not opened")
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise UserError(f"{folder / name} is not a pickle of tensors alone: {str(error)[:120]}") from None
        tensors |= load_pickle(folder / name)
    return TensorFiles(
        str(folder / names[0]), {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__
    )


def load_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle, and nothing else of it (`weights_only`). Torch may raise anything on a crafted one, hence the last
    clause."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)  # tests/test_house.py allows it here alone
    except BaseException as error:
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a pickle of tensors alone: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise UserError(f"{path} should hold tensors by name, and holds something else")
    return dict(found)

"""Read a folder of unknown origin safely: no code in it is run, and no size in it is trusted before the file confirms it."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import Interrupted, UnsupportedModel, UserError
from regard.interop.config import ConfigFile, read_json

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SUPPORTED_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "U8", "BOOL"}
"""Of weights and of the buffers saved beside them; quantized weights are not read."""


@dataclass
class TensorFiles:
    """The tensors of a folder: all shapes, and a function that reads one tensor."""

    path: str
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]


def open_config(folder: Path) -> ConfigFile:
    """Read config.json; refuse folders that need code of their own or are quantized."""
    config = ConfigFile(read_json(folder / "config.json"), folder / "config.json")
    for path in (config.path, folder / "tokenizer_config.json"):
        values = config.values if path == config.path else read_json(path) if path.exists() else {}
        if code := [name for name in ("auto_map", "trust_remote_code") if values.get(name)]:
            raise UnsupportedModel(f"{path} needs code of its own ({code[0]}); regard's own models need none")
    if "quantization_config" in config.values:
        raise UserError(f"{config.path}: the weights are quantized (quantization_config); save them in float32 or bfloat16")
    return config


def open_tensors(folder: Path, *, allow_pickle: bool = False) -> TensorFiles:
    """Open a folder's weights: safetensors, or with `allow_pickle` a pickle of tensors."""
    files = [name for name in (SAFETENSORS, SAFETENSORS_INDEX, PICKLE, PICKLE_INDEX) if (folder / name).is_file()]
    if not files:
        raise UserError(
            f"{folder} has no weights ({SAFETENSORS}, or {SAFETENSORS_INDEX} and the files it names); "
            "if there is only a .bin: regard convert SRC DST --allow-pickle"
        )
    is_pickle = files[0] in (PICKLE, PICKLE_INDEX)
    if is_pickle and not allow_pickle:
        raise UserError(
            f"{folder} has its weights in a pickle ({files[0]}), which can hold code; to read only the tensors: "
            f"regard convert {folder} DST --allow-pickle"
        )
    has_index = files[0] in (SAFETENSORS_INDEX, PICKLE_INDEX)
    index = read_weight_map(folder / files[0], ".bin" if is_pickle else ".safetensors") if has_index else None
    names = [files[0]] if index is None else list(dict.fromkeys(index.values()))
    return open_pickles(folder, names) if is_pickle else open_safetensors(folder, names, index)


def read_weight_map(path: Path, suffix: str) -> dict[str, str]:
    """Return the file of each tensor. File names must be plain, so that an index does not lead out of its folder."""
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise UserError(f"{path} names no tensors (weight_map)")
    for name in index.values():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(suffix):
            raise UserError(f"{path} names the file {str(name)[:80]!r}; it should be the name of a {suffix} file beside it")
    for name in dict.fromkeys(index.values()):
        if not (path.parent / name).is_file():
            raise UserError(f"{path} names {name}, which does not exist; the download may be incomplete")
    return index


def open_safetensors(folder: Path, names: list[str], index: dict[str, str] | None) -> TensorFiles:
    """Open safetensors files; the library checks the shapes in their headers against the length of the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Any] = {}
    for name in names:
        try:
            file: Any = safe_open(folder / name, framework="pt")
            for key in file.keys():  # noqa: SIM118
                tensor = file.get_slice(key)
                if tensor.get_dtype() not in SUPPORTED_DTYPES:
                    raise UserError(f"{folder / name}: {key} has dtype {tensor.get_dtype()}, which is not supported")
                shapes[key] = tuple(tensor.get_shape())
                files[key] = file
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{folder / name} is damaged: {str(error).splitlines()[0]}; download it again") from None
    for key, name in (index or {}).items():
        if key not in shapes:
            raise UserError(f"{folder / SAFETENSORS_INDEX} says that {name} holds {key}, which it does not")
    path = folder / (names[0] if index is None else SAFETENSORS_INDEX)
    return TensorFiles(str(path), shapes, lambda name: files[name].get_tensor(name))


def open_pickles(folder: Path, names: list[str]) -> TensorFiles:
    """Load pickles in torch's zip format, whose entries are never compressed: a compressed one may be a decompression bomb."""
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            with zipfile.ZipFile(folder / name) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise UserError(f"{folder / name} is compressed, which torch never does; it is not opened")
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise UserError(f"{folder / name} is not a pickle of tensors: {str(error)[:120]}") from None
        tensors |= load_pickle(folder / name)
    return TensorFiles(
        str(folder / names[0]), {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__
    )


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Load only the tensors of a pickle (`weights_only`). Torch may raise anything on a crafted file, hence the last clause."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)  # tests/test_house.py allows torch.load here only
    except BaseException as error:
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a pickle of tensors: {reason}") from None
    if not isinstance(tensors, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tensors.items()):
        raise UserError(f"{path} should hold tensors by name, and holds something else")
    return dict(tensors)

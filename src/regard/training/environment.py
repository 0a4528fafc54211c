"""The environment of a run: versions, device, threads, git state."""

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
from regard.hardware import hardware

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
    "tensorboard": ["tensorboard"],
    "wandb": ["wandb"],
    "mlflow": ["mlflow-skinny"],
    "export": ["ctranslate2", "onnx", "onnxruntime"],
}


def version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(device: torch.device) -> dict[str, Any]:
    """Return the contents of environment.json."""
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
    """Return what differs from environment.json, of what bit-exact training depends on."""
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
    """Return the commit of the working directory and whether it has changes; None outside a repository or without git."""
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str | None:
        found = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        )
        return found.stdout.strip() if found.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "changed": bool(git("status", "--porcelain"))}

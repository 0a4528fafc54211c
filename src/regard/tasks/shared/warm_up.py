"""Compile the kernels of evaluation and scoring in a second process, while the first one trains.

Triton compiles a kernel when it is first called, 0.3 to 1 s each, and keeps it in a cache on disk, where every process finds it
within milliseconds. The second process (`python -m regard.tasks.shared.warm_up RUN DEVICE MARKER`) evaluates and scores a model
with random weights on the validation set by the same code, so that no list of kernels has to be kept. It writes nothing into the
run folder.
"""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from regard import __version__, distributed, tasks
from regard.hardware import HAS_TRITON, choose_device, hardware
from regard.recipe import Recipe
from regard.training.precision import choose_precision

MIN_STEPS = 1000
"""A shorter run may end before it is worth while."""
MIN_FREE_MEMORY, MAX_MEMORY = 40 * 2**30, 4 * 2**30
"""Of the GPU: what must be free, so that training does not lack what the second process takes, and what that may take."""
MAX_EXAMPLES = 1024
COMMAND = (sys.executable, "-m", "regard.tasks.shared.warm_up")


@contextmanager
def compile_ahead(settings: Recipe, folder: Path, device: torch.device) -> Iterator[None]:
    """While the block runs, let a second process compile the kernels of evaluation, where that saves time."""
    if not is_worthwhile(settings, device):
        yield
        return
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        [*COMMAND, str(folder), str(device), str(marker(settings, device))], stdin=subprocess.PIPE, stdout=silent, stderr=silent
    )  # the pipe closes when this process ends, however it ends
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def is_worthwhile(settings: Recipe, device: torch.device) -> bool:
    """Return whether kernels of ours will be compiled in a run that is long enough, on a GPU with memory to spare."""
    return (
        device.type == "cuda"
        and HAS_TRITON
        and distributed.world_size() == 1
        and settings.train.steps >= MIN_STEPS
        and torch.cuda.mem_get_info(device)[0] >= MIN_FREE_MEMORY
        and not marker(settings, device).exists()
    )


def marker(settings: Recipe, device: torch.device) -> Path:
    """Return the path of an empty file in Triton's cache, which says that the kernels of these settings are there."""
    cache = os.environ.get("TRITON_CACHE_DIR") or Path(os.environ.get("TRITON_HOME", Path.home()), ".triton", "cache")
    parts = [settings.model, settings.decode, settings.train.precision, __version__, torch.__version__, hardware(device)]
    return Path(cache, f"regard-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}")


def warm_up(folder: Path, device: torch.device) -> None:
    """Evaluate and score a model with random weights as training and `regard evaluate` do."""
    recipe = tasks.read_recipe(folder / "recipe.toml")
    task = tasks.recipe_task(recipe)
    run = task.run(task, folder, recipe, device)
    valid = run.data.valid
    some = valid.select(range(0, len(valid), -(-len(valid) // MAX_EXAMPLES)))
    bf16 = choose_precision(recipe.train.precision, run.model, device) == "bf16"
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext():
        run._validate(some, run._evaluation_rows(some))
    run._score("valid", some)


def end_with_parent() -> None:
    """End this process when the pipe from its parent closes."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main() -> None:
    """Compile the kernels for a run folder on a device, with low priority; then write the marker."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(10)
    device = choose_device(sys.argv[2])
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(MAX_MEMORY / torch.cuda.mem_get_info(device)[1], device.index)
    warm_up(Path(sys.argv[1]), device)
    done = Path(sys.argv[3])
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


if __name__ == "__main__":
    main()

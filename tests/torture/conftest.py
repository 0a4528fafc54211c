"""Runs that are killed, interrupted and short of disk space; the terminal summary counts what was done.

Every run is a child forked from this process, which has imported everything it needs, so that it starts at once. This process
itself trains nothing and never starts CUDA, so that its children start without threads and with a GPU of their own. Each child
leads a process group, which is killed with it: workers and compilers do not outlive it.
"""

import copy
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
import torch

import regard.cli
import regard.run.evaluate
import regard.run.train
from regard.training import checkpoint

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise torch.cuda.is_available() starts CUDA, and children cannot
DONE: Counter[str] = Counter()
GROUPS: list[int] = []
"""The process groups that the running test has started."""
LOOP = {
    "steps": 24,
    "evaluate_every": 6,
    "save_every": 3,
    "log_every": 4,
    "keep_checkpoints": 2,
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"warmup_steps": 8},
    "regularize": {"dropout": 0.1},
}
BLOCK = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
SENTENCES = {"world": {"number": 120, "held_out": 10}}
SHAPES = {"world": {"kind": "shapes", "number": 48, "held_out": 8}, "size": 24}
RECIPES = {
    "translation": {
        "data": SENTENCES,
        "tokens": {"size": 200},
        "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 64},
        "train": {
            **LOOP,
            "tokens_per_batch": 512,
            "evaluate_sentences": 2,
            "ema_decay": 0.9,
            "regularize": {"dropout": 0.1, "bpe_dropout": 0.1},
        },
        "decode": {"max_tokens": 6},
    },
    "GPT": {
        "task": "language",
        "data": SENTENCES,
        "tokens": {"size": 200},
        "model": {**BLOCK, "kind": "transformer", "max_length": 64},
        "train": {**LOOP, "tokens_per_batch": 512, "average_checkpoints": 2, "gradient_accumulation_steps": 2},
    },
    "BERT": {
        "task": "masked",
        "data": SENTENCES,
        "tokens": {"size": 200},
        "model": {**BLOCK, "kind": "transformer", "max_length": 64},
        "train": {**LOOP, "tokens_per_batch": 512, "patience": 3, "optimizer": {"kind": "muon"}},
    },
    "ViT": {
        "task": "classify",
        "data": {**SHAPES, "label_attribute": "kind"},
        "model": {**BLOCK, "kind": "vit", "patch_size": 8},
        "train": {**LOOP, "images_per_batch": 16, "augment": {"crop_padding": 1, "flip": True, "mixup": 0.4}},
    },
    "CLIP": {
        "task": "contrastive",
        "data": SHAPES,
        "tokens": {"kind": "words"},
        "model": {"projection_width": 8, "image": {**BLOCK, "patch_size": 8}, "text": {**BLOCK, "max_length": 24}},
        "train": {**LOOP, "images_per_batch": 16},
    },
}


class Child:
    """A regard command in a process of its own; its stderr goes to a file."""

    def __init__(self, told: Path, args, before=lambda: None):
        self.told, self.started = told, time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            self.live([str(word) for word in args], before)
        with suppress(PermissionError):  # the child did it first
            os.setpgid(self.pid, self.pid)
        GROUPS.append(self.pid)

    def live(self, args, before):
        status = 1
        try:
            os.dup2(os.open(self.told, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            sys.argv = ["regard", *args]
            before()
            regard.cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def alive(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def send(self, number: int) -> bool:
        """Send a signal; return whether the process was still alive."""
        alive = self.alive()
        if alive:
            os.kill(self.pid, number)
        return alive

    def wait(self) -> int:
        """Return the exit status, or minus the signal that killed it; kill what is left of its process group."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        kill_group(self.pid)  # before its id is free again
        GROUPS.remove(self.pid)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def said(self) -> str:
        return self.told.read_text()


def kill_group(leader: int) -> None:
    """Kill every process of a group, if any is left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class Runs:
    """A recipe, its uninterrupted run, and further runs of it on a device."""

    def __init__(self, folder: Path, settings: dict, device: str):
        self.folder, self.settings, self.device, self.number = folder, settings, device, 0
        (folder / "recipe.toml").write_text(tomli_w.dumps(settings))
        whole = self.start(folder / "whole")
        self.wait_until_it_trains(whole, folder / "whole")
        self.start_seconds = time.monotonic() - whole.started
        """From the start of the process to the beginning of training."""
        assert whole.wait() == 0, whole.said()
        self.seconds = time.monotonic() - whole.started
        self.expected = state_of(folder / "whole")

    def wait_until_it_trains(self, child: Child, out: Path) -> None:
        """Wait until a run that was just started or resumed trains, or has ended."""
        log = out / "log.jsonl"
        known = log.stat().st_size if log.exists() else 0
        while child.alive() and (not log.exists() or b'"begin"' not in log.read_bytes()[known:]):
            time.sleep(0.002)

    def start(self, out: Path, *args, before=lambda: None) -> Child:
        """Start a run or resume it."""
        first = [out, "--resume"] if (out / "recipe.toml").exists() else [self.folder / "recipe.toml", "--out", out]

        def prepare():
            before()
            at_the_end(lambda: (out / "random").write_bytes(torch.get_rng_state().numpy().tobytes()))

        return Child(
            out.with_name(f"{out.name}.err"), ["train", *first, "--device", self.device, "--no-evaluate", *args], prepare
        )

    def fresh(self) -> Path:
        self.number += 1
        return self.folder / f"run-{self.number}"


def at_the_end(write):
    """Call a function after training, in the child."""
    fit = regard.run.train.train

    def then(*args, **named):
        found = fit(*args, **named)
        write()
        return found

    regard.run.train.train = then


@pytest.fixture(name="state_of")
def state_of_fixture():
    return state_of


def state_of(out: Path) -> dict[str, str]:
    """Return everything of a finished run that must be bit-exact: weights, optimizer, averages, train state, random state."""
    last = checkpoint.list_checkpoints(out / "checkpoints")[-1]
    progress = {name: value for name, value in json.loads((last / "state.json").read_text()).items() if name != "seconds"}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last.glob("*.safetensors")}
    found |= {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("model.safetensors", "random")}
    return {**found, "step": last.name, "progress": json.dumps(progress)}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return the runs of a recipe; the uninterrupted one is made once. They are forked, which is not safe after computing with
    several threads: therefore these tests run by themselves, with one thread."""
    if torch.get_num_threads() > 1:
        pytest.skip("these fork: OMP_NUM_THREADS=1 pytest tests/torture, as make system and make torture do")
    made = {}

    def of(name, device="cpu", **changes):
        key = json.dumps([name, device, changes], sort_keys=True)
        if key not in made:
            settings = copy.deepcopy(RECIPES[name])
            settings["train"].update(changes)
            made[key] = Runs(tmp_path_factory.mktemp(name), settings, device)
        return made[key]

    return of


@pytest.fixture
def chance(request):
    return random.Random(request.node.name)


@pytest.fixture
def count():
    def add(what, number=1):
        DONE[what] += number

    return add


@pytest.fixture(autouse=True)
def no_children_are_left():
    before = child_processes()
    yield
    while GROUPS:  # of a test that failed, or was interrupted
        kill_group(GROUPS.pop())
    assert child_processes() <= before


def child_processes() -> set[str]:
    """Return the ids of this process's children; helpers of other tests in the same worker may be among them."""
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children.update((task / "children").read_text().split())
    return children


def pytest_terminal_summary(terminalreporter):
    if DONE:
        terminalreporter.section("injected failures, all handled")
        terminalreporter.write_line("| done | times |\n|---|---|")
        for what, number in sorted(DONE.items()):
            terminalreporter.write_line(f"| {what} | {number:,} |")

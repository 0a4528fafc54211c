"""Train and score several runs side by side, each in a process group of its own, within a time limit.

A trial whose folder is finished is kept, one that was interrupted resumes: the same call goes on where a killed one stopped.
Several trials may share a device: on a GPU their kernels run at once under NVIDIA's Multi-Process Service (MPS), and take turns
without it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from regard.errors import Interrupted, UserError
from regard.run.card import write_card
from regard.run.evaluate import evaluate
from regard.run.load import load_native
from regard.run.train import train
from regard.training.checkpoint import list_checkpoints
from regard.training.log import note
from regard.training.signals import catch_signals

GRACE_SECONDS = 20.0
"""How long a trial may write its checkpoint after SIGTERM, before it is killed."""
TICK_SECONDS = 5.0
STOPPED = "stopped; the next call resumes it"


@dataclass(frozen=True)
class Trial:
    """One run to train: a recipe with overrides, into a folder."""

    recipe: str | Path
    folder: Path
    overrides: tuple[str, ...] = ()
    after: tuple[Path, ...] = ()
    """Folders of trials that must be finished first, such as the one that it is initialised from."""

    @property
    def log(self) -> Path:
        """What it prints, when it has a process of its own."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def is_finished(self) -> bool:
        """Whether it has its weights, and its scores if it has test sets (`run_trial` writes the card last)."""
        return (self.folder / "model.safetensors").is_file() and (self.folder / "README.md").is_file()


@dataclass
class TrialState:
    """How far a trial is."""

    trial: Trial
    seconds: float | None = None
    """Wall-clock time of its process in this call; None before it starts, and of one that was finished before."""
    error: str = ""
    is_running: bool = False

    @property
    def status(self) -> str:
        """Return "finished", "running", "waiting", or why it is neither."""
        if self.is_running:
            return "running"
        return "finished" if self.trial.is_finished() else self.error or "waiting"


@dataclass
class _Running:
    """A trial in a process."""

    state: TrialState
    device: str
    process: BaseProcess
    answer: Connection
    started: float = field(default_factory=time.monotonic)

    def finish(self) -> None:
        """Take the trial's answer and end what it left running."""
        self.process.join()
        self.state.is_running, self.state.seconds = False, time.monotonic() - self.started
        try:
            self.state.error = str(self.answer.recv()) if self.answer.poll() else ""
        except EOFError:
            self.state.error = ""
        if not self.state.error and self.process.exitcode:
            self.state.error = f"failed with exit status {self.process.exitcode}; see {self.state.trial.log}"
        if self.process.pid and hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):  # nothing is left
                os.killpg(self.process.pid, signal.SIGKILL)


def run_trials(
    trials: Sequence[Trial],
    devices: Sequence[str],
    *,
    seconds: float | None = None,
    on_change: Callable[[list[TrialState]], None] | None = None,
) -> list[TrialState]:
    """Train and score trials, one at a time on each of the devices, of which one may be listed several times.

    Without a time limit, trials on a single device run in this process and raise their errors. Others each have a process; their
    errors are in the states returned. After `seconds` they are asked to write a checkpoint, and are killed if they do not.
    `on_change` is called with all states when one of them changes, and every few seconds.
    """
    if len(devices) == 1 and seconds is None:
        for trial in trials:
            run_trial(trial, devices[0])
        return [TrialState(trial) for trial in trials]
    states = [TrialState(trial) for trial in trials]
    with catch_signals(immediate=True):
        _schedule(states, list(devices), None if seconds is None else time.monotonic() + seconds, on_change or (lambda _: None))
    return states


def _schedule(
    states: list[TrialState], free: list[str], deadline: float | None, on_change: Callable[[list[TrialState]], None]
) -> None:
    """Start trials on free devices, and wait for their ends, until none is left or the time is over."""
    threads = max(1, (os.cpu_count() or 1) // len(free))
    running: list[_Running] = []
    try:
        while True:
            for state in [state for state in states if _is_ready(state, states)][: len(free)]:
                running.append(_start(state, free.pop(0), threads))
            on_change(states)
            if not running or (deadline is not None and time.monotonic() >= deadline):
                break
            connection.wait([one.process.sentinel for one in running], _wait_seconds(deadline))
            for one in [one for one in running if not one.process.is_alive()]:
                one.finish()
                running.remove(one)
                free.append(one.device)
    finally:
        _stop_all(running)
        on_change(states)


def _wait_seconds(deadline: float | None) -> float:
    return TICK_SECONDS if deadline is None else max(0.0, min(TICK_SECONDS, deadline - time.monotonic()))


def _is_ready(state: TrialState, states: list[TrialState]) -> bool:
    """Whether a trial can be started now. One that waits for a trial that failed gets its error."""
    if state.is_running or state.error or state.trial.is_finished():
        return False
    for folder in state.trial.after:
        known = next((other for other in states if other.trial.folder == folder), None)
        if (known is None and not (folder / "model.safetensors").is_file()) or (known is not None and known.error):
            state.error = f"needs {folder}, which is not finished"
        if state.error or (known is not None and known.status != "finished"):
            return False
    return True


def _start(state: TrialState, device: str, threads: int) -> _Running:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    state.trial.folder.parent.mkdir(parents=True, exist_ok=True)
    process = context.Process(target=_run_alone, args=(state.trial, device, threads, theirs), name=state.trial.folder.name)
    process.start()
    theirs.close()
    state.is_running = True
    return _Running(state, device, process, ours)


def _stop_all(running: list[_Running]) -> None:
    """Ask trials for a checkpoint, wait a while, and kill them with all that they started."""
    for one in running:
        one.process.terminate()
    until = time.monotonic() + GRACE_SECONDS
    for one in running:
        one.process.join(max(0.0, until - time.monotonic()))
        if one.process.is_alive():
            one.process.kill()
        one.finish()
        one.state.error = "" if one.state.trial.is_finished() else STOPPED


def _run_alone(trial: Trial, device: str, threads: int, answer: Connection) -> None:
    """Run a trial as the main function of a process, whose output goes to a file; send its error, if any."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, which is killed with all that it started
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with trial.log.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)  # also for what it starts
    try:
        run_trial(trial, device)
    except (UserError, Interrupted) as error:
        print(error, file=sys.stderr)
        answer.send(str(error))


def _end_with_parent() -> None:
    """Kill this process group when the parent process ends, however that happens."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL) if hasattr(os, "killpg") else os._exit(1)


def run_trial(trial: Trial, device: str) -> None:
    """Train a run and score it on its test sets, as `regard train` does; go on with one that has been started."""
    if trial.is_finished():
        return
    if (trial.folder / "model.safetensors").is_file():
        run = load_native(trial.folder, device=device)
    elif list_checkpoints(trial.folder / "checkpoints"):
        run = train(trial.folder, device=device, resume=True)
    else:
        run = train(trial.recipe, trial.folder, overrides=trial.overrides, device=device)
    if run.data.tests:
        evaluate(run)
    write_card(run)


def visible_devices(device: str, jobs: int = 1) -> list[str]:
    """Return the devices to train on, each as often as it has trials at once: all GPUs for "auto", if there are any."""
    found = [device]
    if device in ("auto", "cuda") and torch.cuda.is_available():
        found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if jobs > 1 and not mps_is_running():
            note("no MPS daemon: the kernels of the trials take turns; start it with: nvidia-cuda-mps-control -d")
    return [one for _ in range(jobs) for one in found]


def mps_is_running() -> bool:
    """Whether NVIDIA's Multi-Process Service listens on this machine."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()

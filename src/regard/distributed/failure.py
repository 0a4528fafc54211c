"""Failure handling: one rank prints the cause of a failed job, the others exit silently; heartbeats find frozen ranks.

A process that dies takes its connections with it, and the other ranks fail at once. A frozen process keeps them; therefore every
rank counts up a heartbeat in torchrun's store every other second, and watches that of the next rank.
"""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from regard.distributed.rank import rank, world_size

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

HEARTBEAT_SECONDS = 2.0
HEARTBEAT_TIMEOUT = 20.0
"""Seconds without a heartbeat after which a rank counts as frozen; REGARD_RANK_TIMEOUT overrides it. torchrun needs 30 more to
end a frozen process."""


def connect_store(timeout: timedelta = timedelta(seconds=5)) -> "Store | None":
    """Connect to torchrun's key-value store for this attempt of the job; return None while there is none."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False, timeout=timeout
        )
        return PrefixStore(f"regard {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except RuntimeError:
        return None


def report_failure(cause: str, store: "Store | None" = None) -> bool:
    """Print why the job failed, unless another rank already has; return whether it was printed.

    The rank that knows the cause reports it before its connections close, and only then can other ranks notice that it is gone.
    """
    store = store or connect_store()
    try:
        if store is not None and store.add("cause", 1) > 1:
            return False
    except RuntimeError:
        pass
    print(f"regard: {cause}", file=sys.__stderr__, flush=True)
    return True


def report_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an uncaught exception once for all ranks (a `sys.excepthook`), and exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it once the first rank has gone
    lines = str(error).strip().splitlines() or [""]
    if issubclass(kind, KeyboardInterrupt):
        exit_process(130)
    elif is_secondary_failure(error):
        report_failure(
            f"rank {rank()} lost the connection to another rank, which was killed or whose machine is gone; "
            "torchrun names it below"
        )
    elif report_failure(f"rank {rank()} failed: {kind.__name__}: {lines[0]}"):
        traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    exit_process(1)


def is_secondary_failure(error: BaseException) -> bool:
    """Return whether a process failed because another one did."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL"))
    )


def exit_process(status: str | int | None) -> NoReturn:
    """Exit. One of several processes exits without Python's shutdown: after a failure the other ranks may never answer, and
    torch's threads may abort the process while the interpreter is torn down."""
    if world_size() > 1 and not isinstance(status, str):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)


class HeartbeatMonitor(threading.Thread):
    """Count up this rank's heartbeat; end the process when the next rank's heartbeat stops."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="regard-heartbeat")
        self.started, self.stopped = threading.Event(), threading.Event()
        self.timeout = float(os.environ.get("REGARD_RANK_TIMEOUT") or HEARTBEAT_TIMEOUT)

    def stop(self) -> None:
        self.stopped.set()
        self.join(2 * HEARTBEAT_SECONDS)

    def run(self) -> None:
        store = connect_store()
        while store is None and not self.stopped.wait(HEARTBEAT_SECONDS / 4):
            store = connect_store()
        if store is None:
            return
        neighbour, last, since = (rank() + 1) % world_size(), 0, 0.0
        while not (self.started.is_set() and self.stopped.wait(HEARTBEAT_SECONDS)):
            try:
                store.add(f"alive {rank()}", 1)
                self.started.set()
                beats, gone = store.add(f"alive {neighbour}", 0), store.add(f"gone {neighbour}", 0)
            except RuntimeError:  # torchrun itself is gone
                return
            if beats != last or not beats or gone:
                last, since = beats, time.monotonic()
            elif time.monotonic() - since > self.timeout:
                report_failure(
                    f"rank {neighbour} has sent no heartbeat for {self.timeout:.0f} s: it is frozen, or its machine is gone; "
                    "all ranks stop",
                    store,
                )
                os._exit(1)
        with suppress(RuntimeError):  # the process that held the store may have exited first
            store.add(f"gone {rank()}", 1)

"""Of a job that fails one cause is printed, by the first process that knows it; the others leave without a word."""

import os
import signal
import sys
import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

from regard.distributed.rank import rank, world_size


def connect_store(patience: timedelta = timedelta(seconds=5)) -> Any:
    """torchrun's store, of this attempt; None while there is none."""
    import torch.distributed as dist

    try:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False, timeout=patience
        )
        return dist.PrefixStore(f"regard {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except RuntimeError:
        return None


def report_failure(cause: str, store: Any = None) -> bool:
    """Print why the job failed, unless another process has. One that knows the cause says so before its connections close, and
    only then can others notice that it is gone."""
    store = store or connect_store()
    try:
        if store is not None and store.add("cause", 1) > 1:
            return False
    except RuntimeError:
        pass
    print(f"regard: {cause}", file=sys.__stderr__, flush=True)
    return True


def report_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What an exception that nobody caught says, in the place of Python's traceback on every process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which has seen the first one go
    lines = str(error).strip().splitlines() or [""]
    if issubclass(kind, KeyboardInterrupt):
        exit_process(130)
    elif is_secondary_failure(error):
        report_failure(
            f"rank {rank()} lost another one in the middle of its work, which was killed, or its machine is gone; "
            "torchrun names it below"
        )
    elif report_failure(f"rank {rank()} failed: {kind.__name__}: {lines[0]}"):
        traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    exit_process(1)


def is_secondary_failure(error: BaseException) -> bool:
    """Whether a process fails because another one did."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL"))
    )


def exit_process(status: str | int | None) -> NoReturn:
    """Leave. One of several at once: where the job failed the others may never answer, and where it did not, torch's threads may
    still abort the process while Python takes it apart."""
    if world_size() > 1 and not isinstance(status, str):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)
    sys.exit(status)

"""Coming and going."""

import atexit
import os
import sys
from datetime import timedelta
from typing import Any

from regard.distributed.collectives import wait
from regard.distributed.failure import open_store, tell_cause
from regard.distributed.heartbeat import BEAT, Watch
from regard.distributed.rank import count, local_rank, rank
from regard.errors import Mistake

LONGEST = timedelta(hours=1)
"""What one process may do alone while the others wait for it, such as training a tokenizer."""
watch: Watch | None = None


def join() -> None:
    """Meet the other processes, where there are any; again is nothing."""
    global watch
    if count() == 1 or watch is not None:
        return
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if torch.cuda.is_available():
        if local_rank() >= torch.cuda.device_count():
            raise Mistake(
                f"torchrun started {os.environ.get('LOCAL_WORLD_SIZE')} processes on a machine with "
                f"{torch.cuda.device_count()} GPUs; use --nproc-per-node {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local_rank())
        backend = "cpu:gloo,cuda:nccl"
    watch = Watch()
    watch.start()
    atexit.register(watch.end)
    sys.excepthook = tell_cause
    if not dist.is_initialized():
        meet: dict[str, Any] = {}
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # where those of the last attempt left addresses
            meet = {"store": open_store(LONGEST), "rank": rank(), "world_size": count()}
        dist.init_process_group(backend, timeout=LONGEST, **meet)
    watch.begun.wait(5 * BEAT)  # one that froze before its first sign would never be missed


def leave() -> None:
    """Part from the others after the last word; what this process still does it does alone."""
    global watch
    if watch is None:
        return
    import torch.distributed as dist

    wait()  # nobody goes while another may still need it
    watch.end()
    watch = None
    dist.destroy_process_group()

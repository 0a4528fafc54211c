"""Coming and going."""

import atexit
import os
import sys
from datetime import timedelta
from typing import Any

from regard.distributed.collectives import barrier
from regard.distributed.failure import connect_store, report_exception
from regard.distributed.heartbeat import HEARTBEAT_SECONDS, HeartbeatMonitor
from regard.distributed.rank import local_rank, rank, world_size
from regard.errors import UserError

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""What one process may do alone while the others wait for it, such as training a tokenizer."""
watch: HeartbeatMonitor | None = None


def init_process_group() -> None:
    """Meet the other processes, where there are any; again is nothing."""
    global watch
    if world_size() == 1 or watch is not None:
        return
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if torch.cuda.is_available():
        if local_rank() >= torch.cuda.device_count():
            raise UserError(
                f"torchrun started {os.environ.get('LOCAL_WORLD_SIZE')} processes on a machine with "
                f"{torch.cuda.device_count()} GPUs; use --nproc-per-node {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local_rank())
        backend = "cpu:gloo,cuda:nccl"
    watch = HeartbeatMonitor()
    watch.start()
    atexit.register(watch.end)
    sys.excepthook = report_exception
    if not dist.is_initialized():
        meet: dict[str, Any] = {}
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # where those of the last attempt left addresses
            meet = {"store": connect_store(COLLECTIVE_TIMEOUT), "rank": rank(), "world_size": world_size()}
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, **meet)
    watch.begun.wait(5 * HEARTBEAT_SECONDS)  # one that froze before its first sign would never be missed


def destroy_process_group() -> None:
    """Part from the others after the last word; what this process still does it does alone."""
    global watch
    if watch is None:
        return
    import torch.distributed as dist

    barrier()  # nobody goes while another may still need it
    watch.end()
    watch = None
    dist.destroy_process_group()

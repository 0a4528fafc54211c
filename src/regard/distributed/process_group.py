"""Join and leave torch.distributed's process group."""

import atexit
import os
import sys
from datetime import timedelta
from typing import Any

from regard.distributed.collectives import barrier
from regard.distributed.failure import HEARTBEAT_SECONDS, HeartbeatMonitor, connect_store, report_exception
from regard.distributed.rank import local_rank, rank, world_size
from regard.errors import UserError

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""How long one rank may work alone while the others wait, for example to train a tokenizer."""
monitor: HeartbeatMonitor | None = None


def init_process_group() -> None:
    """Join the other ranks, if there are any; a second call does nothing."""
    global monitor
    if world_size() == 1 or monitor is not None:
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
    monitor = HeartbeatMonitor()
    monitor.start()
    atexit.register(monitor.stop)
    sys.excepthook = report_exception
    if not dist.is_initialized():
        rendezvous: dict[str, Any] = {}
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # a prefix apart from the last attempt's addresses
            rendezvous = {"store": connect_store(COLLECTIVE_TIMEOUT), "rank": rank(), "world_size": world_size()}
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, **rendezvous)
    monitor.started.wait(5 * HEARTBEAT_SECONDS)  # a rank frozen before its first heartbeat would never be missed


def destroy_process_group() -> None:
    """Leave the group after the last collective; from here on this process works alone."""
    global monitor
    if monitor is None:
        return
    import torch.distributed as dist

    barrier()  # no rank leaves while another may still need it
    monitor.stop()
    monitor = None
    dist.destroy_process_group()

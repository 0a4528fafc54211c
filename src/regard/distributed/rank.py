"""Rank and world size, from the environment variables that torchrun sets."""

import os

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """Return the number of processes; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in TORCHRUN_VARIABLES) else 1


def rank() -> int:
    """Return this process's number among all processes."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_main() -> bool:
    """Return whether this is rank 0, the process that writes files and prints."""
    return rank() == 0


def local_rank() -> int:
    """Return this process's number on its machine, which is the number of its GPU."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0


def is_restarted() -> bool:
    """Return whether torchrun has restarted the job after a failure (--max-restarts)."""
    return world_size() > 1 and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

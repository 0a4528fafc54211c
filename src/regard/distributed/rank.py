"""Which of how many processes this is, as torchrun tells it."""

import os

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in TORCHRUN_VARIABLES) else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def local_rank() -> int:
    """Among those of this machine: which GPU is this one's."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0


def is_restarted() -> bool:
    """Whether torchrun has started the job again after a failure (--max-restarts)."""
    return world_size() > 1 and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

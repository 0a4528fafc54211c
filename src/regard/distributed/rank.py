"""Which of how many processes this is, as torchrun tells it."""

import os

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def count() -> int:
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in NEEDED) else 1


def rank() -> int:
    return int(os.environ["RANK"]) if count() > 1 else 0


def first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def local_rank() -> int:
    """Among those of this machine: which GPU is this one's."""
    return int(os.environ["LOCAL_RANK"]) if count() > 1 else 0


def restarted() -> bool:
    """Whether torchrun has started the job again after a failure (--max-restarts)."""
    return count() > 1 and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

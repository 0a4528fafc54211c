"""The processes of one job, as torchrun starts them: which of how many this is, and what they tell one another.

Everything may import this; it imports nothing of ours but errors. With one process nothing here does anything, and torch is not
even imported.
"""

from regard.distributed.collectives import filled, gathered, highest, one_by_one, share, told, told_each, total, turn, wait
from regard.distributed.failure import end, say, tell_cause
from regard.distributed.interrupts import breakable
from regard.distributed.process_group import join, leave
from regard.distributed.rank import count, first, local_rank, rank, restarted

__all__ = [
    "breakable",
    "count",
    "end",
    "filled",
    "first",
    "gathered",
    "highest",
    "join",
    "leave",
    "local_rank",
    "one_by_one",
    "rank",
    "restarted",
    "say",
    "share",
    "tell_cause",
    "told",
    "told_each",
    "total",
    "turn",
    "wait",
]

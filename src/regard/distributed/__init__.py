"""The processes of one job, as torchrun starts them: which of how many this is, and what they tell one another.

Everything may import this; it imports nothing of ours but errors. With one process nothing here does anything, and torch is not
even imported.
"""

from regard.distributed.collectives import (
    all_gather,
    all_reduce_max,
    all_reduce_sum,
    barrier,
    broadcast,
    broadcast_each,
    local_first,
    merge_shards,
    one_local_rank_at_a_time,
    shard,
)
from regard.distributed.failure import exit_process, report_exception, report_failure
from regard.distributed.interrupts import interruptible
from regard.distributed.process_group import destroy_process_group, init_process_group
from regard.distributed.rank import is_main, is_restarted, local_rank, rank, world_size

__all__ = [
    "all_gather",
    "all_reduce_max",
    "all_reduce_sum",
    "barrier",
    "broadcast",
    "broadcast_each",
    "destroy_process_group",
    "exit_process",
    "init_process_group",
    "interruptible",
    "is_main",
    "is_restarted",
    "local_first",
    "local_rank",
    "merge_shards",
    "one_local_rank_at_a_time",
    "rank",
    "report_exception",
    "report_failure",
    "shard",
    "world_size",
]

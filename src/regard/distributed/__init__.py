"""The processes of one torchrun job: rank and world size, collectives over small values, failure handling.

Every module may import this package; it imports nothing of regard but `errors`. With one process every function returns at once
and torch is not imported.
"""

from regard.distributed.collectives import (
    all_gather,
    all_reduce_max,
    all_reduce_sum,
    barrier,
    broadcast,
    broadcast_each,
    interruptible,
    local_first,
    merge_shards,
    one_local_rank_at_a_time,
    shard,
)
from regard.distributed.failure import exit_process, report_exception, report_failure
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

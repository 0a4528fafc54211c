"""Signs of life. A process that dies takes its connections with it, and the others fail at once; one that is frozen keeps them.
So each gives a sign every other second, in the store that torchrun keeps, and looks for those of the next one.
"""

import os
import threading
import time

from regard.distributed.failure import connect_store, report_failure
from regard.distributed.rank import rank, world_size

HEARTBEAT_SECONDS = 2.0
"""Seconds between two signs of life."""
HEARTBEAT_TIMEOUT = 20.0
"""Seconds without one after which a process counts as frozen; REGARD_RANK_TIMEOUT says otherwise. torchrun takes 30 more to end
a frozen one."""


class HeartbeatMonitor(threading.Thread):
    """Signs of life; ends the process when the next one gives none."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="regard-watch")
        self.begun, self.over = threading.Event(), threading.Event()
        self.silence = float(os.environ.get("REGARD_RANK_TIMEOUT") or HEARTBEAT_TIMEOUT)

    def end(self) -> None:
        self.over.set()
        self.join(2 * HEARTBEAT_SECONDS)

    def run(self) -> None:
        store = connect_store()
        while store is None and not self.over.wait(HEARTBEAT_SECONDS / 4):
            store = connect_store()
        mine, next_one = rank(), (rank() + 1) % world_size()
        last, since = 0, 0.0
        while store is not None and not (self.begun.is_set() and self.over.wait(HEARTBEAT_SECONDS)):
            try:
                store.add(f"alive {mine}", 1)
                self.begun.set()
                heard = store.add(f"alive {next_one}", 0)
                gone = store.add(f"gone {next_one}", 0)
            except RuntimeError:  # torchrun itself is gone: there is nobody to ask
                return
            if heard != last or not heard or gone:
                last, since = heard, time.monotonic()
            elif time.monotonic() - since > self.silence:
                report_failure(
                    f"rank {next_one} has given no sign of life for {self.silence:.0f} s: it is frozen, or its machine is gone; "
                    "all stop",
                    store,
                )
                os._exit(1)
        try:
            if store is not None:
                store.add(f"gone {mine}", 1)
        except RuntimeError:  # the one that kept the store was faster
            pass

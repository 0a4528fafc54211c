"""The processes of one job, as torchrun starts them: which of how many this is, and what they tell one another.

Everything may import this module; it imports nothing of ours. With one process nothing here does anything, and torch is not
even imported. What is told is JSON or numbers, over gloo, so that no device is waited for.

A process that dies takes its connections with it, and the others fail at once; one that is frozen keeps them. So each process
gives a sign of life every other second, in the store that torchrun keeps, and looks for those of the next one. Of a job that
fails one cause is printed, by the first process that knows it; the others leave without a word.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Protocol, TypeVar

from regard.errors import Interrupted, Mistake

Item = TypeVar("Item")
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
BEAT = 2.0
"""Seconds between two signs of life."""
SILENCE = 20.0
"""Seconds without one after which a process counts as frozen; REGARD_RANK_TIMEOUT says otherwise. torchrun takes 30 more to end
a frozen one."""
LONGEST = timedelta(hours=1)
"""What one process may do alone while the others wait for it, such as training a tokenizer."""
watch: "Watch | None" = None
breaking: "Breaking | None" = None
"""Where all may be broken off."""


# who is who

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


# coming and going

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
            raise Mistake(f"torchrun started {os.environ.get('LOCAL_WORLD_SIZE')} processes on a machine with "
                          f"{torch.cuda.device_count()} GPUs; use --nproc-per-node {torch.cuda.device_count()}")
        torch.cuda.set_device(local_rank())
        backend = "cpu:gloo,cuda:nccl"
    watch = Watch()
    watch.start()
    atexit.register(watch.end)
    sys.excepthook = tell_cause
    if not dist.is_initialized():
        meet: dict[str, Any] = {}
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":              # where those of the last attempt left addresses
            meet = {"store": open_store(LONGEST), "rank": rank(), "world_size": count()}
        dist.init_process_group(backend, timeout=LONGEST, **meet)
    watch.begun.wait(5 * BEAT)                        # one that froze before its first sign would never be missed


def leave() -> None:
    """Part from the others after the last word; what this process still does it does alone."""
    global watch
    if watch is None:
        return
    import torch.distributed as dist

    total(0)                                          # nobody goes while another may still need it
    watch.end()
    watch = None
    dist.destroy_process_group()


def end(status: int) -> None:
    """Leave a job that failed: at once, since the others may never answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    if count() > 1:
        os._exit(status)
    sys.exit(status)


# what is told

def total(x: Any) -> Any:
    """The sum over all processes of a number, an array or a tensor of any device."""
    if count() == 1:
        return x
    import numpy as np
    import torch
    import torch.distributed as dist

    with meeting():
        if isinstance(x, torch.Tensor):
            found = x.clone()
            dist.all_reduce(found)
            return found
        array = np.array(x)
        dist.all_reduce(torch.from_numpy(array))
        return array if isinstance(x, np.ndarray) else array.item()


def highest(x: int) -> int:
    if count() == 1:
        return x
    with meeting():
        return largest(x)


def largest(x: int) -> int:
    import torch
    import torch.distributed as dist

    found = torch.tensor(x)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def gathered(x: Any) -> list[Any]:
    """What each process has, as JSON can say it, in their order."""
    if count() == 1:
        return [x]
    import torch
    import torch.distributed as dist

    data = torch.frombuffer(bytearray(json.dumps(x).encode()), dtype=torch.uint8)
    sizes = torch.zeros(count(), dtype=torch.long)
    sizes[rank()] = len(data)
    with meeting():
        sizes = total(sizes)
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        mine[:len(data)] = data
        parts = [torch.empty_like(mine) for _ in range(count())]
        dist.all_gather(parts, mine)
    return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]


def told(x: Item) -> Item:
    """What the first process has, as JSON can say it."""
    return gathered(x if first() else None)[0]


def told_each(items: Iterable[Item]) -> Iterator[Item]:
    """What the first process finds, one by one: only one of them can read standard input."""
    if count() == 1:
        yield from items
        return
    found = iter(items) if first() else iter(())
    while (item := told(next(found, None))) is not None:
        yield item


def wait() -> None:
    """For all others."""
    total(0)


@contextmanager
def turn() -> Iterator[None]:
    """The first process of a machine does this before the others of it, which then find what it left in the cache."""
    if count() > 1 and local_rank():
        wait()
    yield
    if count() > 1 and not local_rank():
        wait()
    wait()


@contextmanager
def one_by_one() -> Iterator[None]:
    """The processes of a machine do this one after another, where it takes much of its memory."""
    for number in range(highest(local_rank()) + 1):
        if number == local_rank():
            yield
        wait()


# who does what

def share(items: Iterable[Item]) -> Iterator[Item]:
    """Every n-th of the items, for work that is divided; `total` of arrays that are zero elsewhere puts it together again."""
    return islice(items, rank(), None, count())


def filled(found: Sequence[Item | None]) -> list[Item]:
    """A list of which each process has filled its own places, as JSON can say it."""
    if count() == 1:
        return list(found)  # type: ignore[arg-type]
    whole: list[Any] = [None] * len(found)
    for places in gathered([[place, item] for place, item in enumerate(found) if item is not None]):
        for place, item in places:
            whole[place] = item
    return whole


# what a signal to one of them breaks off for all

class Signals(Protocol):
    """What catches them (training/signals.py): the first one's number is kept, and raised `at_once` where it may be."""

    number: int | None
    at_once: bool

    def interrupting(self) -> AbstractContextManager[None]: ...
    def holding(self) -> AbstractContextManager[None]: ...


class Breaking:
    """Whoever is interrupted says so once, and everybody else asks wherever they meet: so all hear of it in the same meeting."""

    def __init__(self, signals: Signals):
        self.signals, self.known, self.meeting = signals, False, False

    def ask(self) -> None:
        if number := largest(self.signals.number or 0):
            self.known = True
            raise Interrupted(number)


@contextmanager
def breakable(signals: Signals) -> Iterator[None]:
    """What all do here is broken off by a signal to any of them: for itself at once, for the others where they meet next."""
    global breaking
    if count() == 1:
        with signals.interrupting():
            yield
        return
    breaking = here = Breaking(signals)
    try:
        with signals.interrupting():
            yield
            signals.at_once = False                   # what comes from here on is said outside
            here.ask()
    except Interrupted as interruption:
        if not here.known:
            largest(interruption.number)
        raise
    finally:
        breaking = None


@contextmanager
def meeting() -> Iterator[None]:
    """All tell one another something: signals wait meanwhile, and those that came before are heard of first."""
    here = breaking
    if here is None or here.meeting:
        yield
        return
    with here.signals.holding():
        here.meeting = True
        try:
            here.ask()
            yield
        finally:
            here.meeting = False


# when something goes wrong

class Watch(threading.Thread):
    """Signs of life; ends the process when the next one gives none."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="regard-watch")
        self.begun, self.over = threading.Event(), threading.Event()
        self.silence = float(os.environ.get("REGARD_RANK_TIMEOUT") or SILENCE)

    def end(self) -> None:
        self.over.set()
        self.join(2 * BEAT)

    def run(self) -> None:
        store = open_store()
        while store is None and not self.over.wait(BEAT / 4):
            store = open_store()
        mine, next_one = rank(), (rank() + 1) % count()
        last, since = 0, 0.0
        while store is not None and not (self.begun.is_set() and self.over.wait(BEAT)):
            try:
                store.add(f"alive {mine}", 1)
                self.begun.set()
                heard = store.add(f"alive {next_one}", 0)
                gone = store.add(f"gone {next_one}", 0)
            except RuntimeError:                      # torchrun itself is gone: there is nobody to ask
                return
            if heard != last or not heard or gone:
                last, since = heard, time.monotonic()
            elif time.monotonic() - since > self.silence:
                say(f"rank {next_one} has given no sign of life for {self.silence:.0f} s: it is frozen, or its machine is gone; "
                    "all stop", store)
                os._exit(1)
        try:
            if store is not None:
                store.add(f"gone {mine}", 1)
        except RuntimeError:                          # the one that kept the store was faster
            pass


def open_store(patience: timedelta = timedelta(seconds=5)) -> Any:
    """torchrun's store, of this attempt; None while there is none."""
    import torch.distributed as dist

    try:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                              wait_for_workers=False, timeout=patience)
        return dist.PrefixStore(f"regard {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except RuntimeError:
        return None


def say(cause: str, store: Any = None) -> bool:
    """Print why the job failed, unless another process has. One that knows the cause says so before its connections close, and
    only then can others notice that it is gone."""
    store = store or open_store()
    try:
        if store is not None and store.add("cause", 1) > 1:
            return False
    except RuntimeError:
        pass
    print(f"regard: {cause}", file=sys.__stderr__, flush=True)
    return True


def tell_cause(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What an exception that nobody caught says, in the place of Python's traceback on every process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)     # torchrun's, which has seen the first one go
    lines = str(error).strip().splitlines() or [""]
    if issubclass(kind, KeyboardInterrupt):
        end(130)
    elif is_aftershock(error):
        say(f"rank {rank()} lost another one in the middle of its work, which was killed, or its machine is gone; "
            "torchrun names it below")
    elif say(f"rank {rank()} failed: {kind.__name__}: {lines[0]}"):
        traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    end(1)


def is_aftershock(error: BaseException) -> bool:
    """Whether a process fails because another one did."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError)
                                                 and any(word in str(error) for word in ("gloo", "Gloo", "NCCL")))

"""Write checkpoints in a thread of their own: training waits for a copy of its tensors, not for hashes and the disk."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Files = dict[str, dict[str, Tensor]]
"""Tensors by file and name."""


class CheckpointWriter:
    """Write one checkpoint at a time from a copy in host memory, which takes as much memory again as the checkpoint.

    What a write raises is raised by `wait` or `raise_error`, whichever is called first. As a context manager it waits at the end
    of the block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._pinned: Files = {}
        """The copy of tensors on a GPU: pinned memory is slow to allocate, so that the next copy uses it again."""

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.wait()
        elif self._writing is not None:
            self._writing.exception()  # waits; the error in flight came first
        self._pinned = {}

    def submit(self, tensors: Files, write: Callable[[Files], None]) -> None:
        """Copy the tensors as they are now, and call `write` with the copy in the thread; waits for the write before."""
        self.wait()
        copy = {file: {name: self._copy(file, name, x) for name, x in named.items()} for file, named in tensors.items()}
        for device in {x.device for named in tensors.values() for x in named.values() if x.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # until the copies have arrived
        self._writing = self._thread.submit(write, copy)

    def wait(self) -> None:
        """Wait until the last checkpoint is complete."""
        if (writing := self._writing) is not None:
            writing.exception()
            self.raise_error()

    def raise_error(self) -> None:
        """Raise what the last write raised, if it has ended; does not wait."""
        if self._writing is not None and self._writing.done():
            ended, self._writing = self._writing, None
            ended.result()

    def _copy(self, file: str, name: str, x: Tensor) -> Tensor:
        """Return a copy on the host, which on a GPU may still be on its way."""
        if not x.is_cuda:
            return x.detach().to("cpu", copy=True)
        kept = self._pinned.setdefault(file, {})
        if name not in kept or kept[name].shape != x.shape or kept[name].dtype != x.dtype:
            kept[name] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        return kept[name].copy_(x, non_blocking=True)

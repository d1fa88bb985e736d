"""Prepared images held by this process: made by several threads, once, and kept as long as their source lives."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from doubtless.cores import usable_cores

MEMORY_BUDGET = 4 << 30
"""Prepared images up to this many bytes are kept in memory, each set as one tensor, and all together."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def decoding_threads() -> int:
    """Threads that decode images: Pillow and torch do so outside the interpreter's lock; some wait for the disk."""
    return min(16, usable_cores() + 2)


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """A function's results in the order of the items, computed by several threads a little ahead of the reader.

    With one thread it is the caller's own.

    >>> list(in_threads(lambda number: number**2, range(4)))
    [0, 1, 4, 9]
    """
    threads = decoding_threads() if threads is None else threads
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    running: deque[Future[Result]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > 2 * threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:  # also where the reader has seen enough, or an image cannot be read
        pool.shutdown(cancel_futures=True)


def room_on(device: torch.device) -> int:
    """Bytes of images that may be held on a device: on a GPU half of what is free, on the CPU a fixed number."""
    if device.type != "cuda":
        return MEMORY_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min((free + unused) // 2, max(MEMORY_BUDGET, _free_memory() // 4))  # they come through memory


def _free_memory() -> int:
    """Bytes of memory that nobody uses, where the system says so."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


class Shelf:
    """Tensors kept while their owner lives; where room is short, those asked for least recently go first.

    >>> class Owner: pass
    >>> shelf, owner = Shelf(), Owner()
    >>> shelf.put(owner, "name", torch.zeros(3), room=100)
    >>> shelf.get(owner, "name")
    tensor([0., 0., 0.])
    >>> del owner
    >>> len(shelf)
    0
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, Hashable], Tensor] = OrderedDict()
        self._owners: set[int] = set()
        self._lock = threading.RLock()  # an owner may be collected while this thread has the lock

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, owner: object, key: Hashable) -> Tensor | None:
        """What was put there, if it still is."""
        with self._lock:
            kept = self._kept.get((id(owner), key))
            if kept is not None:
                self._kept.move_to_end((id(owner), key))
            return kept

    def put(self, owner: object, key: Hashable, tensor: Tensor, *, room: int) -> None:
        """Keeps a tensor; others on its device make room, so that no more than `room` bytes are kept there."""
        with self._lock:
            if id(owner) not in self._owners:
                self._owners.add(id(owner))
                weakref.finalize(owner, self._forget, id(owner)).atexit = False
            self._kept.pop((id(owner), key), None)
            used = tensor.nbytes
            if used > room:
                return
            for other in reversed(list(self._kept)):  # from the last one used
                if self._kept[other].device == tensor.device:
                    used += self._kept[other].nbytes
                    if used > room:
                        del self._kept[other]
            self._kept[id(owner), key] = tensor

    def _forget(self, identity: int) -> None:
        with self._lock:
            self._owners.discard(identity)
            for key in [key for key in self._kept if key[0] == identity]:
                del self._kept[key]


SHELF = Shelf()
"""Of this process: prepared images by source, preparation, rows and device."""

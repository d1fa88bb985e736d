"""Memory that was freed stays with the process, for the next batch.

A network on a CPU asks for the same hundreds of megabytes with every batch and frees them. glibc gives blocks of
that size back to the system at once, which clears each of their pages before it hands it out again: on a virtual
machine that can take longer than the network does (`benchmarks/speed/memory.py`).

A server keeps less (`SERVING`): with what 50 million pixels take beside its batches it grew from 560 MB to 2,130.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TRIM, MAPPED, ARENAS = -1, -3, -8
"""What glibc's malloc.h calls M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX."""
SAID = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)
"""Variables by which somebody has chosen how memory is managed."""


@dataclass(frozen=True)
class Kept:
    """What is kept.

    largest   bytes of a block that still is; larger ones are given back at once
    unused    bytes that lie unused at the end before some are given back
    """

    largest: int
    unused: int


WORKING = Kept(largest=2**30, unused=2**31 - 1)
"""Batches are smaller, what an index holds may be larger; the second is the largest number that can be said."""
SERVING = Kept(largest=2**26, unused=2**28)
"""For a process that strangers send pictures to: batches of a few, and no large picture."""
EARLIER = 2**25
"""The largest block that glibc before 2.35 lets itself be told of."""


def keep_freed(environment: Mapping[str, str] = os.environ, *, kept: Kept = WORKING) -> bool:
    """Keeps freed memory in this process; False where somebody has chosen otherwise, or this is not glibc.

    It changes the whole process, so the command line calls it, and importing the library does not. In a program of
    your own that embeds or trains on a CPU, call it before the first batch.

    >>> keep_freed({"LD_PRELOAD": "libjemalloc.so.2"})
    False
    """
    if not sys.platform.startswith("linux") or any(environment.get(name) for name in SAID):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return change is not None and told(change, kept)


def told(change: Callable[[int, int], int], kept: Kept) -> bool:
    """Tells malloc by its `mallopt`; nothing more where it refuses the first thing.

    Any of these ends malloc's own way of learning which blocks to keep: without the first, it would keep none.
    """
    if not (change(MAPPED, kept.largest) or change(MAPPED, min(kept.largest, EARLIER))):
        return False
    # Threads share one arena: those of their own would map large blocks whatever is said here.
    return all([change(TRIM, kept.unused), change(ARENAS, 1)])

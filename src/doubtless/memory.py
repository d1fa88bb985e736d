"""Memory that was freed stays with the process, for the next batch.

A network on a CPU asks for the same hundreds of megabytes with every batch and frees them. glibc gives blocks of
that size back to the system at once, which clears each of their pages before it hands it out again: on a virtual
machine that can take longer than the network does (`benchmarks/speed/memory.py`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

TRIM, MAPPED, ARENAS = -1, -3, -8
"""What glibc's malloc.h calls M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX."""
LARGEST = 2**30
"""Bytes of a block that is still kept: batches are smaller, what an index holds may be larger."""
MOST = 2**31 - 1
"""Bytes that lie unused before some are given back; the largest number that can be said."""
SAID = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)
"""Variables by which somebody has chosen how memory is managed."""


def keep_freed(environment: Mapping[str, str] = os.environ) -> bool:
    """Keeps freed memory in this process; False where somebody has chosen otherwise, or this is not glibc.

    It changes the whole process, so the command line calls it, and importing the library does not. In a program of
    your own that embeds or trains on a CPU, call it before the first batch.

    >>> keep_freed({"LD_PRELOAD": "libjemalloc.so.2"})
    False
    """
    if not sys.platform.startswith("linux") or any(environment.get(name) for name in SAID):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is None:
        return False
    # Threads share one arena: those of their own would map large blocks whatever is said here.
    return all([change(MAPPED, LARGEST), change(TRIM, MOST), change(ARENAS, 1)])

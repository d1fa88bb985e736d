"""Prepared images kept on disk from run to run, below the cache folder; every process maps the same pages.

A file is a `.npy` of bytes: the pixels one after the other, then a checksum (CRC-32) of each piece of them. Whoever
opens it is going to read all of it, so the checksums cost little, and a damaged file is made again. All together
are bounded: those that were used least recently go first.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.data.holding import decoding_threads
from doubtless.errors import FileError, InputError
from doubtless.files import atomic_writer

PIECE = 4 << 20
"""Bytes that one checksum is of."""
LIMIT = 8.0
"""Gigabytes of images that are kept where $DOUBTLESS_CACHE_LIMIT says nothing."""
ABANDONED = 24 * 3600.0
"""Seconds after which a file that was never finished belongs to nobody."""


def cache_folder() -> Path:
    """$DOUBTLESS_CACHE, or the user's cache folder."""
    own = os.environ.get("DOUBTLESS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "doubtless"


def cache_limit() -> int:
    """Bytes of images that are kept: $DOUBTLESS_CACHE_LIMIT in gigabytes, 0 for none."""
    written = os.environ.get("DOUBTLESS_CACHE_LIMIT", "") or str(LIMIT)
    try:
        limit = float(written)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < math.inf:
        raise InputError(f"DOUBTLESS_CACHE_LIMIT must be a number of gigabytes, such as 8, got {written!r}.")
    return int(limit * 2**30)


def cached_pixels(key: str, shape: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
    """Bytes of a shape, mapped from disk; `make` gives them where they are not there, and they are kept.

    Of several processes that want the same, one makes it and the others wait. Where nothing can be written, it goes
    without.
    """
    path = cache_folder() / "images" / f"{key}.npy"
    if math.prod(shape) > cache_limit():
        return make()
    kept = read_pixels(path, shape)
    if kept is not None:
        return kept
    with _one_at_a_time(path):
        kept = read_pixels(path, shape)  # another process may have made it meanwhile
        if kept is not None:
            return kept
        pixels = make()
        try:
            write_pixels(path, pixels)
        except FileError:  # a full disk, or a folder of someone else's
            return pixels
    remove_oldest(path.parent, cache_limit(), keep=path)
    return pixels


def write_pixels(path: Path, pixels: Tensor) -> None:
    """Writes bytes and their checksums; checksums and not the disk say later whether all of it arrived."""
    content = pixels.contiguous().numpy().reshape(-1)
    checksums = _checksums(content)
    with atomic_writer(path, durable=False) as file:
        size = len(content) + checksums.nbytes
        header = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(content.data)
        file.write(checksums.tobytes())


def read_pixels(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """What was written, mapped; None where there is no such file, or a damaged one."""
    try:
        # Copy on write: who changes the tensor changes nobody else's.
        stored = np.load(path, mmap_mode="c", allow_pickle=False)
        os.utime(path)  # used now: others go first when there is no room
    except (OSError, ValueError, EOFError):
        return None
    size = math.prod(shape)
    content, checksums = stored[:size], stored[size:]
    whole = stored.dtype == np.uint8 and stored.ndim == 1 and len(checksums) == 4 * -(-size // PIECE)
    if not whole or _checksums(content).tobytes() != checksums.tobytes():
        return None
    return torch.from_numpy(content).view(shape)


def remove_oldest(folder: Path, limit: int, *, keep: Path) -> None:
    """Removes the images used least recently until at most `limit` bytes are left, and what was never finished."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("*.npy*"):
        with contextlib.suppress(OSError):  # another process may be removing, too
            about = path.stat()
            if path.suffix == ".npy":
                found.append((about.st_mtime, about.st_size, path))
            elif time.time() - about.st_mtime > ABANDONED:
                path.unlink()
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            return
        if path != keep:
            with contextlib.suppress(OSError):  # who has it mapped keeps its pages
                path.unlink()
            total -= size


def _checksums(content: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """A CRC-32 of each piece, in threads."""
    pieces = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
    with ThreadPoolExecutor(decoding_threads()) as pool:
        return np.array(list(pool.map(zlib.crc32, pieces)), dtype="<u4")


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Within it, no other process makes the same file; where files cannot be locked, several may."""
    handle = None
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        # One of sixteen, never removed: to remove a lock that someone waits for would lock nothing.
        handle = os.open(path.parent / f".lock-{path.name[0]}", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)

"""A small disk of its own, that can be filled: a file system in memory, mounted for as long as a test takes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mounted at a folder that it makes; skips the test where that is not allowed."""
    if not sys.platform.startswith("linux"):
        pytest.skip("Only Linux has file systems in memory that can be mounted so.")
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"A small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def free(disk: Path) -> int:
    """Bytes that are left."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Takes all that is left but so many bytes; gives the file that takes it."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while (rest := free(disk) - leave) > 0:
            file.write(bytes(min(rest, 1 << 20)))
    return filler

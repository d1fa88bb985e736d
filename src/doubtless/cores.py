"""How many processor cores this process may use, and how many threads it should start.

To be asked before torch is imported: OpenMP libraries read the environment once, when they are loaded.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

BESIDE_A_GPU = 4
"""Threads where a GPU does the work: what is left is short, and more of them would fight with other runs'."""

GPUS = Path("/dev/nvidiactl")
CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process is allowed, at least 1; a container's share counts, not the machine it is on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, round(quota)))


def limit_threads(environment: MutableMapping[str, str] = os.environ, *, gpus: Path = GPUS) -> bool:
    """Says in the environment how many threads a library may start; False where somebody has said so already.

    >>> limit_threads({"OMP_NUM_THREADS": "3"})
    False
    """
    wait_asleep(environment)
    if "OMP_NUM_THREADS" in environment:
        return False
    threads = min(usable_cores(), BESIDE_A_GPU) if gpus.exists() else usable_cores()
    environment["OMP_NUM_THREADS"] = str(threads)
    return True


def wait_asleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Says in the environment that threads which wait for each other sleep, unless somebody has said otherwise.

    They would else keep their cores busy with waiting, and a thread that shares a core with another process's waits
    for its turn at every step: two such processes are many times slower than one after the other.
    """
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _quota(cgroup: Path) -> float | None:
    """Cores' worth of time that a container gets; None where there is no limit."""
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return None if quota in {"max", "-1"} else int(quota) / int(period)
    except (OSError, ValueError):
        return None

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

    Beside a GPU threads sleep while they wait: runs side by side would else spend their cores on waiting.

    >>> limit_threads({"OMP_NUM_THREADS": "3"})
    False
    """
    if "OMP_NUM_THREADS" in environment:
        return False
    threads = usable_cores()
    if gpus.exists():
        threads = min(threads, BESIDE_A_GPU)
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment["OMP_NUM_THREADS"] = str(threads)
    return True


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

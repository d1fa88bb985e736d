"""The best of several rounds in which ways to do something take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Took(NamedTuple):
    """Seconds by the clock, and of processors."""

    wall: float
    cpu: float


def best_of_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Took]:
    """Best seconds of each way: a machine that others use too slows all alike."""
    best = dict.fromkeys(ways, Took(float("inf"), float("inf")))
    for _ in range(rounds):
        for name, way in ways.items():
            began, used = time.perf_counter(), time.process_time()
            way()
            took = time.perf_counter() - began, time.process_time() - used
            best[name] = Took(min(best[name].wall, took[0]), min(best[name].cpu, took[1]))
    return best

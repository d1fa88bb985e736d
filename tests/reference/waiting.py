"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], object], seconds: float) -> None:
    """Returns as soon as something is true; a failed assertion where that takes longer."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "It did not come to that."
        time.sleep(0.02)

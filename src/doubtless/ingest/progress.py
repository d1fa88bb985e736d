"""How bulk work goes: images done, their rate, the time left. Live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LINE_EVERY = 10.0  # seconds, where there is no terminal
LIVE_EVERY = 0.2


class BulkProgress:
    """A `Meter` that writes to standard error.

    >>> with BulkProgress() as meter:
    ...     meter.start(total=10, done=4)
    ...     meter.advance(6, bad=1)
    >>> meter.line()
    '10 of 10 images, 1 bad'
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        from doubtless.terminal import Terminal

        self.console = Terminal(stderr=True)
        self.clock = clock
        self.total, self.before, self.done, self.bad = 0, 0, 0, 0
        self.began = self.shown = clock()
        self.live: Any = None

    def start(self, total: int, done: int) -> None:
        """`done` of them a run before has done: they count, but not for the rate."""
        self.total, self.before, self.done, self.bad = total, done, done, 0
        self.began = self.shown = self.clock()

    def advance(self, images: int, bad: int) -> None:
        """Counts images, and shows where they stand now and then."""
        self.done += images
        self.bad += bad
        now = self.clock()
        if now - self.shown < (LIVE_EVERY if self.console.is_terminal else LINE_EVERY):
            return
        self.shown = now
        if self.live is not None:
            self.live.update(self.line())
        else:
            self.console.print(self.line(), highlight=False)

    def line(self) -> str:
        """How many, how fast, how long still."""
        return progress_line(
            done=self.done,
            total=self.total,
            before=self.before,
            seconds=self.clock() - self.began,
            bad=self.bad,
        )

    def __enter__(self) -> BulkProgress:
        if self.console.is_terminal:
            self.live = self.console.status("listing images").__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()


def progress_line(*, done: int, total: int, before: int, seconds: float, bad: int) -> str:
    """One line: how many, how fast, how long still.

    >>> progress_line(done=3000, total=9000, before=1000, seconds=10.0, bad=2)
    '3,000 of 9,000 images, 200 images/s, 30 s left, 2 bad'
    """
    pieces = [f"{done:,} of {total:,} images"]
    if seconds > 0 and done > before and done < total:
        rate = (done - before) / seconds
        pieces += [f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.1f} images/s"]
        pieces += [f"{duration((total - done) / rate)} left"]
    if bad:
        pieces.append(f"{bad:,} bad")
    return ", ".join(pieces)


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.4, 59.7, 61, 3599.9, 7300, 200_000)]
    ['0 s', '1 min 0 s', '1 min 1 s', '1 h 0 min', '2 h 1 min', '2 d 7 h']
    """
    whole = round(seconds)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {smaller}"
    return f"{whole} s"

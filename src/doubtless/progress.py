"""How far something has come, and where its time went.

Progress bars on the terminal, a plain line now and then where there is none; and a stopwatch that whoever runs a
whole command starts, and whatever takes a while within it names its part of: `with phase("tuning"):`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


def bar(items: Iterable[Item], text: str, total: int | None = None) -> Iterator[Item]:
    """Wraps an iterable in a bar on standard error with rate and time left.

    >>> sum(bar(range(3), "adding", 3))
    3
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from doubtless.terminal import Terminal

    console = Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, description=text, total=total)


@contextlib.contextmanager
def spinner(text: str) -> Iterator[None]:
    """Shows that something without a known length is under way."""
    from doubtless.terminal import Terminal

    console = Terminal(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


class Stopwatch:
    """Seconds by phase. A phase within a phase is taken off the outer one, so that all of them add up to the total.

    >>> watch = Stopwatch()
    >>> with watch.phase("training"), watch.phase("validation"):
    ...     pass
    >>> list(watch.seconds)
    ['start', 'training', 'validation']
    """

    def __init__(self, *, before: float = 0.0) -> None:
        """`before`: seconds that had passed already. Until the first phase begins all counts as `start`."""
        self.seconds: dict[str, float] = {"start": before}
        self._inside = ["start"]
        self._since = time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds since it was started, those before included."""
        self._charge()
        return sum(self.seconds.values())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what is done within as `name`."""
        self._charge()
        if self._inside == ["start"]:
            self._inside = ["other"]  # from now on: between phases
        self.seconds.setdefault(name, 0.0)
        self._inside.append(name)
        try:
            yield
        finally:
            self._charge()
            self._inside.pop()

    def _charge(self) -> None:
        """Adds what has passed to the phase that is under way."""
        _wait_for_device()
        now, name = time.perf_counter(), self._inside[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_running: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


def running() -> Stopwatch | None:
    """The stopwatch that this thread's work is measured with, if any."""
    return _running.get()


@contextlib.contextmanager
def measuring(watch: Stopwatch) -> Iterator[Stopwatch]:
    """Has `phase` count on this stopwatch, whoever calls it, until the end."""
    token = _running.set(watch)
    try:
        yield watch
    finally:
        _running.reset(token)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Counts what is done within as `name`, where somebody measures; also a decorator.

    >>> with measuring(Stopwatch()) as watch:
    ...     with phase("tuning"):
    ...         pass
    >>> list(watch.seconds)
    ['start', 'tuning']
    """
    watch = _running.get()
    with watch.phase(name) if watch is not None else contextlib.nullcontext():
        yield


def process_age() -> float:
    """Seconds since this process was started, where the system tells; else 0."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


def describe_seconds(seconds: float) -> str:
    """A duration as one says it.

    >>> describe_seconds(0.4), describe_seconds(41.3), describe_seconds(552), describe_seconds(11_000)
    ('0.4 s', '41 s', '9 min', '3 h 3 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def describe_phases(seconds: Mapping[str, float]) -> str:
    """Where the time went, in a line: the total, and every phase that took long enough to be seen.

    >>> describe_phases({"start": 4.0, "training": 30.2, "report": 0.01})
    '34 s: start 4.0 s, training 30 s'
    """
    total = sum(seconds.values())
    shown = [f"{name} {describe_seconds(part)}" for name, part in seconds.items() if part >= 0.01 * total]
    return f"{describe_seconds(total)}: {', '.join(shown)}"


def _wait_for_device() -> None:
    """A GPU works while Python goes on: what it was given in a phase is that phase's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()

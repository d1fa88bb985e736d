"""Progress bars on the terminal; a plain line now and then where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def bar(items: Iterable[Item], text: str, total: int | None = None) -> Iterator[Item]:
    """Wraps an iterable in a bar on standard error with rate and time left.

    >>> sum(bar(range(3), "adding", 3))
    3
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, description=text, total=total)


@contextlib.contextmanager
def spinner(text: str) -> Iterator[None]:
    """Shows that something without a known length is under way."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield

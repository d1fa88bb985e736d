"""`Terminal`: tables and sentences on a terminal, with words of strangers in them (`doubtless.screen`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from doubtless.screen import harmless


class Terminal(Console):
    """A console of rich that takes nothing for markup, and shows control characters.

    >>> from io import StringIO
    >>> terminal = Terminal(file=StringIO())
    >>> terminal.print("[red]leek\\x1b[2J")
    >>> terminal.file.getvalue()
    '[red]leek␛[2J\\n'
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, **named: Any) -> None:
        super().__init__(stderr=stderr, file=file, markup=False, **named)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich makes of it, harmless; what it says to the terminal itself is left."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))

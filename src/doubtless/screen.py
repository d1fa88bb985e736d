"""Words of strangers on a terminal: ids, labels and names of files are shown, and never obeyed.

What a terminal takes for a command begins with a control character: it can change its title, wipe lines, answer in
place of whoever sits there. Such characters are shown as pictures of themselves (␛), in tables by
`doubtless.terminal`, everywhere else by `Screen`. Where no terminal is behind it nothing is changed: programs want
what was stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

PICTURES = 0x2400
"""Where Unicode has pictures of control characters, in their order."""
HARMLESS = (
    {code: PICTURES + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # these begin commands, too, and have no pictures
    | dict.fromkeys(
        [*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
    )  # which turn what follows around
)


def harmless(text: str) -> str:
    """Text that a terminal shows and does not obey; lines and tabs stay.

    >>> harmless("leek\\x1b[2J")
    'leek␛[2J'
    """
    return text.translate(HARMLESS)


class Screen:
    """A stream in place of one that ends in a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # as rich calls what its own words are written to, past this

    def write(self, text: str) -> int:
        """Writes what is harmless of it."""
        self.rich_proxied_file.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self.rich_proxied_file, name)


def shield_terminal() -> None:
    """Puts a `Screen` before standard output and standard error, where these are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Screen) and stream.isatty():
            setattr(sys, name, cast(TextIO, Screen(stream)))

"""Errors a user can act on. Each message is a sentence: what was wrong, what was got, what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class DoubtlessError(Exception):
    """Base of every error this library raises on purpose; the command line prints it without a traceback."""


class InputError(DoubtlessError, ValueError):
    """A value, file or option from outside cannot be used."""


class FileError(DoubtlessError):
    """A file or folder cannot be read or written."""


class RunError(FileError):
    """A run folder or checkpoint cannot be read or written."""


class StoreError(FileError):
    """An index cannot be opened, read or written."""


class DiskFullError(StoreError):
    """No room is left on a disk, or it fails; what was stored before is whole."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: what was probably meant, ``"; did you mean 'margin'?"``, or all that is known.

    >>> nearest("margn", ["margin", "name"])
    "; did you mean 'margin'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; accepted: {', '.join(names)}."


def nearest_few(word: str, known: Iterable[str], few: int = 5) -> str:
    """The end of a sentence where too much is known to be listed: the names nearest to a word, nearest first.

    >>> nearest_few("resnet5", ["resnet50", "resnet18", "vit"], 2)
    "; the nearest are 'resnet50' and 'resnet18'."
    """
    close = difflib.get_close_matches(word, sorted(known), n=few, cutoff=0.0)
    *first, last = map(repr, close)
    return f"; the nearest are {', '.join(first)} and {last}." if first else f"; there is {last}."


def listed(names: Sequence[str]) -> str:
    """A few of them, and how many more.

    >>> listed(["a", "b", "c", "d", "e"])
    "'a', 'b', 'c' and 2 more"
    """
    shown = ", ".join(repr(name) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown

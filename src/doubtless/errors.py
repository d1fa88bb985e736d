"""Errors a user can act on. Each message is a sentence: what was wrong, what was got, what is accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: what was probably meant, ``"; did you mean 'margin'?"``, or all that is known.

    >>> nearest("margn", ["margin", "name"])
    "; did you mean 'margin'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; accepted: {', '.join(names)}."

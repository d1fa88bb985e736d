"""`LanceIndex`: an index in a folder of LanceDB. docs/stores.md says what is not promised."""

from __future__ import annotations

from pathlib import Path

from doubtless.index.lance.driver import LanceDriver, folder_of
from doubtless.index.remote.index import RemoteIndex


class LanceIndex(RemoteIndex):
    """An index in LanceDB; calls, rows and sentences are those of `Index`.

    >>> with LanceIndex.create("lancedb:pets", family="point", dim=3) as index:  # starts threads  # doctest: +SKIP
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    """

    driver = LanceDriver

    @classmethod
    def place(cls, name: str | Path) -> str:
        """The folder."""
        return str(folder_of(name).resolve())

    @classmethod
    def beside(cls, name: str | Path, ending: str) -> Path:
        """A hidden folder for work on this index, beside its own."""
        folder = folder_of(name)
        return folder.with_name(f".{folder.name}.{ending}")

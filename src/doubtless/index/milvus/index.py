"""`MilvusIndex`: an index in Milvus, Lite in a file or a server. docs/milvus.md says what is not promised."""

from __future__ import annotations

from pathlib import Path

from doubtless.index.milvus.connection import MILVUS
from doubtless.index.milvus.driver import MilvusDriver
from doubtless.index.remote.index import RemoteIndex


class MilvusIndex(RemoteIndex):
    """An index in Milvus.

    >>> with MilvusIndex.create("milvus:pets", family="point", dim=3) as index:  # starts Milvus  # doctest: +SKIP
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    ...     hits = index.search(animals[:1], 2)

    Calls, rows and sentences are those of `Index`.
    """

    driver = MilvusDriver

    @classmethod
    def place(cls, name: str | Path) -> str:
        """Server or file, and collection."""
        return MILVUS.parse(name).place

    @classmethod
    def beside(cls, name: str | Path, ending: str) -> Path:
        """A hidden folder for work on this index: beside its file, or for a server where the command runs."""
        return MILVUS.parse(name).beside(ending)

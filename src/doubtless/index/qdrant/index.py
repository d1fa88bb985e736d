"""`QdrantIndex`: an index in Qdrant, a folder or a server. docs/stores.md says what is not promised."""

from __future__ import annotations

from pathlib import Path

from doubtless.index.qdrant.connection import QDRANT
from doubtless.index.qdrant.driver import QdrantDriver
from doubtless.index.remote.index import RemoteIndex


class QdrantIndex(RemoteIndex):
    """An index in Qdrant; calls, rows and sentences are those of `Index`.

    >>> address = "qdrant:http://localhost/pets"
    >>> with QdrantIndex.create(address, family="point", dim=3) as index:  # needs a server  # doctest: +SKIP
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    """

    driver = QdrantDriver

    @classmethod
    def place(cls, name: str | Path) -> str:
        """Server or folder, and collection."""
        return QDRANT.parse(name).place

    @classmethod
    def beside(cls, name: str | Path, ending: str) -> Path:
        """A hidden folder for work on this index: beside its folder, or for a server where the command runs."""
        return QDRANT.parse(name).beside(ending)

"""One function for every INDEX: a folder, `milvus:PATH` (Milvus Lite) or `milvus:http://host:port` (a server)."""

from __future__ import annotations

from pathlib import Path

from doubtless.retrieval.index import Index
from doubtless.retrieval.interface import AnyIndex
from doubtless.retrieval.milvus.address import Address, is_milvus
from doubtless.retrieval.schema import IndexScore, Kind


def open_index(name: str | Path, *, writable: bool = False) -> AnyIndex:
    """Opens an index to search it or, with `writable`, to change it as well.

    >>> open_index("gallery")                                                   # doctest: +SKIP
    >>> open_index("milvus:gallery.db", writable=True)                          # doctest: +SKIP
    >>> open_index("milvus:http://localhost:19530")                             # doctest: +SKIP
    """
    if is_milvus(name):
        from doubtless.retrieval.milvus.index import MilvusIndex

        return MilvusIndex.open(str(name), writable=writable)
    return Index.open(name, writable=writable)


def folder_beside(name: str | Path) -> Path:
    """Where lists that belong to an index lie: in its folder; for Milvus in NAME.lists, here or beside its file."""
    if not is_milvus(name):
        return Path(name)
    folder = Address.parse(str(name)).beside("lists")
    return folder.with_name(folder.name.removeprefix("."))


def create_index_at(
    name: str | Path,
    *,
    family: str,
    dim: int,
    variances: int | None = None,
    kind: Kind = "auto",
    model: str | None = None,
    score: IndexScore = "direction",
) -> AnyIndex:
    """A new, empty index, open for writing, where there is nothing; arguments as of `Index.create`."""
    make = Index.create
    if is_milvus(name):
        from doubtless.retrieval.milvus.index import MilvusIndex

        make = MilvusIndex.create  # type: ignore[assignment]
    return make(name, family=family, dim=dim, variances=variances, kind=kind, model=model, score=score)

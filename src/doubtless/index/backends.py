"""The registry of backends, and every index by its name: a folder, `milvus:…`, or a plugin's `scheme:…`.

Another package adds a backend, a subclass of `doubtless.index.base.Index`, by an entry point of the group
doubtless.indexes, whose name is the scheme.
"""

from __future__ import annotations

import re
from pathlib import Path

from doubtless.errors import InputError, StoreError
from doubtless.index.base import Index
from doubtless.index.folder import FolderIndex
from doubtless.index.lance.index import LanceIndex
from doubtless.index.milvus.index import MilvusIndex
from doubtless.index.postgres.index import PostgresIndex
from doubtless.index.qdrant.index import QdrantIndex
from doubtless.index.settings import IndexScore, Kind
from doubtless.registry import Registry


def _check(name: str, backend: object) -> None:
    if not (isinstance(backend, type) and issubclass(backend, Index)):
        raise InputError(f"The index backend {name!r} must be a subclass of Index, got {backend!r}.")


INDEXES: Registry[type[Index]] = Registry(
    "index backend",
    group="doubtless.indexes",
    check=_check,
    hint="A folder whose name looks like an address is written ./NAME.",
)
"""Scheme → class: `memory:NAME` is an index of the class registered as "memory"."""

INDEXES.register("folder", FolderIndex)
INDEXES.register("milvus", MilvusIndex)
INDEXES.register("postgres", PostgresIndex)
INDEXES.register("qdrant", QdrantIndex)
INDEXES.register("lancedb", LanceIndex)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]+):")  # two letters at least: C:\\ is a drive


def backend_of(name: str | Path) -> tuple[type[Index], str | Path]:
    """The class that keeps an index of this name, and the name it knows it by.

    >>> backend_of("gallery")
    (<class 'doubtless.index.folder.FolderIndex'>, 'gallery')
    >>> backend_of("milvus:gallery.db")
    (<class 'doubtless.index.milvus.index.MilvusIndex'>, 'milvus:gallery.db')
    """
    scheme = _SCHEME.match(name) if isinstance(name, str) else None
    if scheme is None or (scheme[1] not in INDEXES and Path(name).exists()):
        return FolderIndex, name
    return INDEXES.get(scheme[1]), str(name).removeprefix("folder:")


def open_index(name: str | Path, *, writable: bool = False) -> Index:
    """Opens an index to search it or, with `writable`, to change it as well.

    >>> with open_index("gallery") as index:
    ...     len(index)
    160
    >>> index = open_index("milvus:http://localhost:19530", writable=True)  # needs a server  # doctest: +SKIP
    """
    backend, known_as = backend_of(name)
    index = backend.open(known_as, writable=writable)
    if (reason := index.unfinished) is not None:
        index.close()
        raise StoreError(f"{name} is not finished: {reason}")
    return index


def create_index_at(
    name: str | Path,
    *,
    family: str,
    dim: int,
    variances: int | None = None,
    kind: Kind = "auto",
    model: str | None = None,
    score: IndexScore = "direction",
) -> Index:
    """A new, empty index, open for writing, where there is nothing; arguments as of `Index.create`."""
    backend, known_as = backend_of(name)
    return backend.create(
        known_as, family=family, dim=dim, variances=variances, kind=kind, model=model, score=score
    )


def folder_beside(name: str | Path) -> Path:
    """The folder where lists that belong to an index lie, of bad images for example."""
    backend, known_as = backend_of(name)
    return backend.lists(known_as)

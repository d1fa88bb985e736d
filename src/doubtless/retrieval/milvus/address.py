"""Where an index of Milvus lies: `milvus:PATH`, a file of Milvus Lite, or `milvus:http://host:port`, a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from doubtless.errors import InputError

PREFIX = "milvus:"
COLLECTION = "doubtless"
"""The collection where the address names none."""

_SERVER = re.compile(r"https?://", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


@dataclass(frozen=True)
class Address:
    """An address, taken apart: a server's, or the path of a file."""

    name: str
    """As it was given."""
    server: str | None
    file: Path | None
    collection: str = COLLECTION

    @classmethod
    def parse(cls, name: str) -> Address:
        """
        >>> Address.parse("milvus:http://localhost:19530/shoes").collection
        'shoes'
        >>> Address.parse("milvus:gallery.db").file
        PosixPath('gallery.db')
        """
        rest = name.removeprefix(PREFIX)
        if not rest:
            raise InputError(f"{name!r} names no place; accepted: milvus:PATH or milvus:http://host:port.")
        if not _SERVER.match(rest):
            return cls(name, None, Path(rest))
        parts = urlsplit(rest)
        collection = parts.path.strip("/") or COLLECTION
        if not parts.hostname or parts.query or parts.fragment or not _NAME.fullmatch(collection):
            raise InputError(
                f"{name!r} is no address of an index in Milvus; accepted: milvus:http://host:port or "
                "milvus:http://host:port/COLLECTION, its name of letters, digits and _."
            )
        return cls(name, f"{parts.scheme}://{parts.netloc}", None, collection)

    @property
    def parts(self) -> str:
        """The collection that holds what is no item: settings, label names, calibrator, doubt."""
        return f"{self.collection}_parts"

    def beside(self, ending: str) -> Path:
        """A hidden folder for work on this index: beside its file, or for a server where the command runs."""
        if self.file is not None:
            return self.file.with_name(f".{self.file.name}.{ending}")
        assert self.server is not None
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", urlsplit(self.server).netloc.rpartition("@")[2])
        return Path(f".milvus-{host}-{self.collection}.{ending}")


def is_milvus(name: object) -> bool:
    """Whether an INDEX is an address of Milvus, and not the path of a folder."""
    return isinstance(name, str) and name.startswith(PREFIX)

"""An image on its way to the model: who it is, where its bytes are. What every stream of images gives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PARQUET_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class ImageRecord:
    """One image, not yet decoded."""

    id: str
    data: bytes | Path | Tensor | None
    """Its file, what is in it, or its pixels, uint8 (C, H, W); None: it cannot be had, and `problem` says why."""
    label: str | None = None
    path: str | None = None
    """Where it came from: a file, or `shard.tar#member`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Columns:
    """Columns by name; None: found by their usual names, images also by their type."""

    image: str | None = None
    label: str | None = None
    id: str | None = None


class ImageStream(Protocol):
    """Images in a fixed order. A value: it can be cut into pieces, and sent to another process."""

    @property
    def name(self) -> str:
        """Where they come from."""

    def __len__(self) -> int: ...

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""

    def fingerprint(self) -> str:
        """Changes when the images, as far as their files' names, sizes and times of change tell, do."""

    def slice(self, start: int, stop: int) -> ImageStream:
        """Images start … stop − 1 alone."""

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""


def file_fingerprint(path: Path) -> str:
    """Changes when a file's name, size or time of change does."""
    stat = path.stat()
    return hashlib.sha256(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; file systems allow others."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_metadata(values: Mapping[Any, Any]) -> dict[str, Any]:
    """What an index can keep and filter by: texts, finite numbers and truth values under plain names.

    >>> plain_metadata({"shop": "Oslo", "price": float("nan"), "tags": [1], "label": "has its own place"})
    {'shop': 'Oslo'}
    """
    return {key: value for key, value in values.items() if _is_name(key) and _is_plain(value)}


def _is_name(key: Any) -> bool:
    return (
        isinstance(key, str) and _is_plain(key) and bool(key) and key != "label" and not set(key) & set('"\\')
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return is_text(value) and "\0" not in value
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))

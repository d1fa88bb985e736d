"""Whether a gallery is where somebody says, looked at without importing what is needed to open one."""

from __future__ import annotations

import re
from pathlib import Path

from doubtless.errors import StoreError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_-]+:")


def must_be_there(place: str | Path) -> str:
    """The place itself; a sentence for a folder that is not there. What is behind an address is not looked at.

    >>> must_be_there("gallery"), must_be_there("milvus:gallery.db")
    ('gallery', 'milvus:gallery.db')
    """
    if _SCHEME.match(str(place)) is not None:
        return str(place)
    try:
        there = Path(place).exists()
    except (
        OSError,
        ValueError,
    ) as error:  # a name that no file can have, or a folder that may not be looked into
        raise StoreError(f"The gallery {str(place)[:200]!r} cannot be opened: {error}.") from error
    if not there:
        raise StoreError(f"There is no gallery {place}; `doubtless create` makes one.")
    return str(place)

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
    if _SCHEME.match(str(place)) is None and not Path(place).exists():
        raise StoreError(f"There is no gallery {place}; `doubtless create` makes one.")
    return str(place)

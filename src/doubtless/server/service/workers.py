"""`DecodingProcess`: another process that decodes pictures, one at a time, and is ended when it takes too long."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from doubtless.data import pixels
from doubtless.server.service import decode_worker, headers

CHUNK = 1 << 20
"""Bytes that are sent or received in one go, and that a pipe holds where the system lets it."""
BEHIND = 10
"""How far a process or a thread that yields goes behind those of usual priority, as `nice` counts it."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class DecodingProcess:
    """Started when it is first asked; one thread at a time asks it.

    yields: it gets what the others on this machine leave of the processors
    """

    def __init__(self, *, yields: bool = False) -> None:
        self._yields = yields
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def number(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    def ask(self, data: bytes, asked: Mapping[str, Any], *, until: float) -> tuple[dict[str, Any], Bytes]:
        """What it says of a file, and pixels (3, H, W); TimeoutError and EOFError where it had to be ended."""
        try:
            process = self._started()
            said = json.dumps({"bytes": len(data), **asked}).encode()
            self._send(process, struct.pack("<I", len(said)) + said, until)
            self._send(process, data, until)
            (length,) = struct.unpack("<I", self._received(process, 4, until).tobytes())
            record = json.loads(self._received(process, length, until).tobytes())
            count = 0 if "error" in record else 3 * record["width"] * record["height"]
            return record, self._received(process, count, until)
        except BaseException:  # what it still says would be taken for the next answer
            self.end()
            raise

    def end(self) -> None:
        """Whatever it is at."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            files = [str(Path(str(module.__file__))) for module in (decode_worker, pixels, headers)]
            one_arena = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}  # what is reserved counts as used
            self._process = subprocess.Popen(
                [sys.executable, "-P", *files, str(behind(self._yields))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **one_arena},
                bufsize=0,
                # Ctrl-C is for the service, which ends it when it is done. No session of its own: Linux shares
                # processors out among sessions first, and `nice` would count within it alone.
                process_group=0,
            )
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                _widen(pipe.fileno())
        return self._process

    def _send(self, process: subprocess.Popen[bytes], data: bytes, until: float) -> None:
        assert process.stdin is not None
        rest, handle = memoryview(data), process.stdin.fileno()
        while rest:
            try:
                rest = rest[os.write(handle, rest[:CHUNK]) :]
            except BlockingIOError:
                _wait(handle, select.POLLOUT, until)
            except BrokenPipeError:
                raise EOFError from None

    def _received(self, process: subprocess.Popen[bytes], count: int, until: float) -> Bytes:
        assert process.stdout is not None
        # Not a bytearray: it would be filled with zeros first, and all threads of the service wait meanwhile.
        found, handle, done = np.empty(count, np.uint8), process.stdout.fileno(), 0
        view = found.data
        while done < count:
            try:
                got = os.readv(handle, [view[done : done + CHUNK]])
            except BlockingIOError:
                _wait(handle, select.POLLIN, until)
                continue
            if not got:
                raise EOFError
            done += got
        return found


def yield_to_others() -> None:
    """Has this thread, and what it starts, take what others leave; where a thread has a priority of its own.

    It prepares large pictures for the model, which takes half a second of a processor.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), behind(True))


def behind(yields: bool) -> int:
    """A priority as `nice` counts it: this process's, or behind it."""
    own = os.getpriority(os.PRIO_PROCESS, os.getpid()) if sys.platform != "win32" else 0
    return own + BEHIND if yields else own


def _widen(handle: int) -> None:
    """Lets a pipe hold more at once: every turn of reader and writer costs the service."""
    try:
        import fcntl

        fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, CHUNK)
    except (ImportError, AttributeError, OSError):  # another system, or one that has given out enough
        return


def _wait(handle: int, event: int, until: float) -> None:
    waiting = select.poll()
    waiting.register(handle, event)
    left = until - time.monotonic()
    if left <= 0 or not waiting.poll(1000 * left):
        raise TimeoutError

"""`DecodingProcess`: another process that decodes pictures, one at a time, and is ended when it takes too long."""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doubtless.data import pixels
from doubtless.server.service import decode_worker, headers

CHUNK = 1 << 20


class DecodingProcess:
    """Started when it is first asked; one thread at a time asks it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def number(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    def ask(self, data: bytes, asked: Mapping[str, Any], *, until: float) -> tuple[dict[str, Any], bytearray]:
        """What it says of a file, and pixels (3, H, W); TimeoutError and EOFError where it had to be ended."""
        try:
            process = self._started()
            said = json.dumps({"bytes": len(data), **asked}).encode()
            self._send(process, struct.pack("<I", len(said)) + said, until)
            self._send(process, data, until)
            (length,) = struct.unpack("<I", self._received(process, 4, until))
            record = json.loads(self._received(process, length, until))
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
                [sys.executable, "-P", *files],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **one_arena},
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the service, which ends it when it is done
            )
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
        return self._process

    def _send(self, process: subprocess.Popen[bytes], data: bytes, until: float) -> None:
        assert process.stdin is not None
        rest, handle = memoryview(data), process.stdin.fileno()
        while rest:
            _wait(handle, selectors.EVENT_WRITE, until)
            try:
                rest = rest[os.write(handle, rest[:CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError from None

    def _received(self, process: subprocess.Popen[bytes], count: int, until: float) -> bytearray:
        assert process.stdout is not None
        found, handle, done = bytearray(count), process.stdout.fileno(), 0
        view = memoryview(found)
        while done < count:
            _wait(handle, selectors.EVENT_READ, until)
            try:
                got = os.readv(handle, [view[done : done + CHUNK]])
            except BlockingIOError:
                continue
            if not got:
                raise EOFError
            done += got
        return found


def _wait(handle: int, event: int, until: float) -> None:
    left = until - time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(handle, event)
        if left <= 0 or not selector.select(left):
            raise TimeoutError

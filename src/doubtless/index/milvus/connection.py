"""Where an index of Milvus lies, and the way to it: a client of a server, or of Milvus Lite in a file.

`milvus:PATH` is a file of Milvus Lite, served on a socket of its owner's, `milvus:http://host:port` a server.

A file of Milvus Lite belongs to one process at a time. All indexes of a process share the one server it runs for a
file; the last one that closes stops it, which writes what is in memory and gives the file back.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doubtless.errors import InputError, StoreError
from doubtless.index.remote.address import Address, Scheme
from doubtless.index.remote.driver import NothingThere
from doubtless.index.settings import DATABASE

PATIENCE = 30.0  # seconds for one call
TOKEN = "DOUBTLESS_MILVUS_TOKEN"
"""The environment's variable with a server's token, "user:password" or an API key."""
MILVUS = Scheme("milvus", "Milvus", letters="_", secret=TOKEN)


class Connection:
    """A client of one address; every call is one of pymilvus's `MilvusClient`, its errors made sentences."""

    def __init__(self, address: Address, *, may_create: bool = False) -> None:
        self.address = address
        client = _pymilvus().MilvusClient
        self._server = None
        if address.local is not None:
            self._server = _LiteServer.of(address.local, may_create=may_create)
        uri = address.server if self._server is None else self._server.uri
        try:
            with self._translated():
                self._client = client(uri=uri, token=os.environ.get(TOKEN, ""), timeout=PATIENCE)
        except BaseException:
            self._release()
            raise

    def call(self, verb: str, /, *arguments: Any, **named: Any) -> Any:
        """`MilvusClient.verb(…)`."""
        with self._translated():
            return getattr(self._client, verb)(*arguments, **named)

    def close(self) -> None:
        """Lets go of it; the last one of a file stops its server."""
        with contextlib.suppress(Exception):
            self._client.close()
        self._release()

    def _release(self) -> None:
        if self._server is not None:
            self._server.leave()
            self._server = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        import grpc  # type: ignore[import-untyped]

        try:
            yield
        except (_pymilvus().MilvusException, grpc.RpcError) as error:
            message = getattr(error, "message", None) or str(error)
            raise StoreError(
                f"Milvus at {self.address.name} did not do what was asked ({message.strip()}); nothing that was "
                "stored before is lost. Is the server there, and has its disk space?"
            ) from error


class _LiteServer:
    """A server of Milvus Lite over one file, for all indexes of this process.

    It knows no users, so it listens on a Unix socket in a folder that nobody else may enter; where a system has no
    such sockets, on a free port of loopback.
    """

    _running: dict[Path, _LiteServer] = {}
    _mutex = threading.Lock()

    def __init__(self, file: Path) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread  # type: ignore[import-untyped]
        from milvus_lite.exceptions import DataDirLockedError  # type: ignore[import-untyped]

        self.file, self._users = file, 0
        self._folder = tempfile.mkdtemp(prefix="doubtless-") if hasattr(socket, "AF_UNIX") else None
        host = "127.0.0.1" if self._folder is None else f"unix:{self._folder}/milvus"
        try:
            self._server, self._database, port = start_server_in_thread(str(file), host=host)
        except DataDirLockedError:
            self._remove_folder()
            raise StoreError(
                f"The index milvus:{file} is open in another process; a file of Milvus Lite belongs to one at a "
                "time. Wait until it is done, or serve the file to several with `milvus-lite server`."
            ) from None
        except OSError as error:
            self._remove_folder()
            raise StoreError(
                f"The index milvus:{file} cannot be opened: {error.strerror or error}."
            ) from error
        # Milvus Lite writes the port it was asked for behind a socket's name
        self.uri = f"http://{host}:{port}" if self._folder is None else f"{host}:0"

    @classmethod
    def of(cls, file: Path, *, may_create: bool) -> _LiteServer:
        """The one that runs, or a new one; each `of` is ended by a `leave`."""
        file = file.absolute()
        _refuse_other_things(file, may_create=may_create)
        with cls._mutex:
            if file not in cls._running:
                cls._running[file] = cls(file)
            cls._running[file]._users += 1
            return cls._running[file]

    def leave(self) -> None:
        """One user less; the last one stops it."""
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                del self._running[self.file]
                self.stop()

    def stop(self) -> None:
        """Writes what is in memory and gives the file back."""
        self._server.stop(grace=2).wait()
        self._database.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Of the socket."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@atexit.register
def _stop_all() -> None:
    """What a process forgot to close is written when it ends."""
    for server in list(_LiteServer._running.values()):
        server.stop()


def _refuse_other_things(file: Path, *, may_create: bool) -> None:
    if (file / DATABASE).exists():
        raise InputError(
            f"{file} is an index of its own, not of Milvus; open it by its path alone, or copy it with "
            "`doubtless migrate`."
        )
    if file.exists() and (not file.is_dir() or (any(file.iterdir()) and not (file / "LOCK").exists())):
        raise InputError(f"{file} exists and is nothing of Milvus Lite's (version 3, which keeps a folder).")
    if not file.exists() and not may_create:
        raise NothingThere(f"milvus:{file} is no index: there is nothing.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent} cannot be made: {error.strerror or error}.") from error


def _pymilvus() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise InputError(
            "An index in Milvus needs pymilvus; install the extra: pip install 'doubtless[milvus]'."
        ) from None
    # It prints every error with its traceback before it raises it; what it raises becomes a sentence here.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus

"""Where an index of Qdrant lies, and the way to it: a client of a server, or the client's own store in a folder.

`qdrant:PATH` is a folder of qdrant-client's local mode, `qdrant:http://host:port` a server.

A folder belongs to one process at a time. All indexes of a process share one client of it; the last one that closes
gives it back. The client's local mode reads its folder with pickle: open folders of people you trust only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doubtless.errors import InputError, StoreError
from doubtless.index.remote.address import Address, Scheme
from doubtless.index.remote.driver import NothingThere

META = "meta.json"
"""By this file a folder of the local mode is known."""
PATIENCE = 30  # seconds for one call
KEY = "DOUBTLESS_QDRANT_KEY"
"""The environment's variable with a server's API key."""
QDRANT = Scheme("qdrant", "Qdrant", letters="_-", secret=KEY)


class Connection:
    """A client of one address; every call is one of `QdrantClient`, its errors made sentences."""

    def __init__(self, address: Address, *, may_create: bool = False) -> None:
        self.address = address
        qdrant_client = client_package()
        self._shared: _Folder | None = None
        with self._translated():
            if address.local is None:
                self._client = qdrant_client.QdrantClient(
                    url=address.server,
                    api_key=os.environ.get(KEY),
                    timeout=PATIENCE,
                    check_compatibility=False,  # it would only warn, and ask once more
                )
                self._client.get_collections()  # a server that cannot be reached is told at once
            else:
                self._shared = _Folder.of(address.local, may_create=may_create)
                self._client = self._shared.client

    def call(self, verb: str, /, *arguments: Any, **named: Any) -> Any:
        """`QdrantClient.verb(…)`; the local mode does one thing at a time."""
        with self._translated(), contextlib.nullcontext() if self._shared is None else self._shared.busy:
            return getattr(self._client, verb)(*arguments, **named)

    def close(self) -> None:
        """Lets go of it; the last one of a folder gives it back."""
        if self._shared is not None:
            self._shared.leave()
            self._shared = None
        elif self.address.local is None:
            self._client.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (InputError, StoreError):
            raise
        # What a client of HTTP, its checks and SQLite raise has no common class but this one.
        except Exception as error:
            raise StoreError(
                f"Qdrant at {self.address.name} did not do what was asked ({str(error).strip()}); nothing that was "
                "stored before is lost. Is the server there, and has it disk space?"
            ) from error


class _Folder:
    """A client of the local mode over one folder, for all indexes of this process."""

    _open: dict[Path, _Folder] = {}
    _mutex = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder, self._users, self.busy = folder, 0, threading.RLock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a server would be faster for many
            try:
                self.client = client_package().QdrantClient(
                    path=str(folder), force_disable_check_same_thread=True
                )
            except RuntimeError as error:
                raise StoreError(
                    f"The index qdrant:{folder} is open in another process; a folder of Qdrant's local mode "
                    "belongs to one at a time. Wait until it is done, or run a server."
                ) from error

    @classmethod
    def of(cls, folder: Path, *, may_create: bool) -> _Folder:
        """The one that is open, or a new one; each `of` is ended by a `leave`."""
        folder = folder.resolve()  # two names of one folder are one
        _refuse_other_things(folder, may_create=may_create)
        with cls._mutex:
            if folder not in cls._open:
                cls._open[folder] = cls(folder)
            cls._open[folder]._users += 1
            return cls._open[folder]

    def leave(self) -> None:
        """One user less; the last one gives the folder back."""
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                del self._open[self.folder]
                self.client.close()


def client_package() -> Any:
    """qdrant_client, or a sentence that says how to get it."""
    try:
        import qdrant_client
    except ImportError:
        raise InputError(
            "An index in Qdrant needs qdrant-client; install the extra: pip install 'doubtless[qdrant]'."
        ) from None
    return qdrant_client


def _refuse_other_things(folder: Path, *, may_create: bool) -> None:
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / META).exists())):
        raise InputError(f"{folder} exists and is nothing of Qdrant's local mode.")
    if not folder.exists() and not may_create:
        raise NothingThere(f"qdrant:{folder} is no index: there is nothing.")

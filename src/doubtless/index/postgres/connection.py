"""Where an index of PostgreSQL lies, and the way to it.

`postgres://user@host:5432/database` is an address as libpq reads it; `?table=shoes` names the tables of an index.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from doubtless.errors import InputError, StoreError
from doubtless.index.remote.address import refuse_secrets

TABLE = "doubtless"
"""The table where the address names none."""
SECRET = "PGPASSWORD, or the file ~/.pgpass"
PATIENCE = 10  # seconds to connect
SILENCE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""A server that has vanished is given up after a minute, not after the two hours of the system."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")


@dataclass(frozen=True)
class Address:
    """An address, taken apart."""

    name: str
    """As it was given."""
    server: str
    """For libpq."""
    table: str = TABLE

    @classmethod
    def parse(cls, name: str | Path) -> Address:
        """Takes a name apart; what can be none is refused.

        >>> Address.parse("postgres://me@localhost/shop?table=shoes").table
        'shoes'
        """
        name = str(name)
        refuse_secrets(name, instead=SECRET)
        parts = urlsplit(name)
        options = parse_qsl(parts.query)
        table = dict(options).get("table", TABLE)
        if not name.startswith("postgres://") or not _NAME.fullmatch(table):
            raise InputError(
                f"{name!r} is no address of an index in PostgreSQL; accepted: "
                "postgres://user@host:port/database or postgres://…?table=NAME, its name of small letters, digits "
                "and _."
            )
        rest = urlencode(sorted(option for option in options if option[0] != "table"))
        return cls(name, urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")), table)

    @property
    def place(self) -> str:
        """The same for all names of one index."""
        return f"{self.server} {self.table}"


class Sessions:
    """Connections to one server: one per thread that is at it, kept when it is done. All is in transactions."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Any] = []
        self._mine = threading.local()
        self._is_open = True
        with self.transaction():
            pass  # a server that cannot be reached is told at once

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection inside of a transaction, the thread's own where one is under way; all see one moment."""
        current = getattr(self._mine, "connection", None)
        if current is not None:
            yield current
            return
        with self._translated(), contextlib.ExitStack() as stack:
            connection = self._begun(stack)
            self._mine.connection = connection
            try:
                yield connection
            finally:
                self._mine.connection = None

    def close(self) -> None:
        """All that are not in use; those that are go when they are done."""
        self._is_open = False
        while (connection := self._kept()) is not None:
            connection.close()

    def _begun(self, stack: contextlib.ExitStack) -> Any:
        """A connection whose transaction the stack ends. One that died while it was kept is replaced."""
        while (connection := self._kept()) is not None:
            with contextlib.suppress(_psycopg().OperationalError):
                return self._begin(connection, stack)
        return self._begin(self._connected(), stack)

    def _begin(self, connection: Any, stack: contextlib.ExitStack) -> Any:
        transaction = connection.transaction()
        try:
            transaction.__enter__()
        except BaseException:
            connection.close()
            raise
        stack.callback(self._keep, connection)
        stack.push(transaction)
        return connection

    def _kept(self) -> Any | None:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            return self._idle.pop()
        return None

    def _keep(self, connection: Any) -> None:
        if self._is_open and not connection.closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _connected(self) -> Any:
        psycopg = _psycopg()
        connection = psycopg.connect(
            self.address.server, connect_timeout=PATIENCE, autocommit=True, **self._silence()
        )
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def _silence(self) -> dict[str, int]:
        """What the address does not say itself."""
        said = dict(parse_qsl(urlsplit(self.address.server).query))
        return {name: value for name, value in SILENCE.items() if name not in said}

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _psycopg().Error as error:
            raise StoreError(
                f"PostgreSQL at {self.address.name} did not do what was asked ({str(error).strip()}); "
                "nothing that was stored before is lost. Is the server there, and has it pgvector and disk space?"
            ) from error


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise InputError(
            "An index in PostgreSQL needs psycopg; install the extra: pip install 'doubtless[postgres]'."
        ) from None
    return psycopg

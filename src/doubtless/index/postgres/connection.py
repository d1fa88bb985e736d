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

TABLE = "doubtless"
"""The table where the address names none."""
PATIENCE = 10  # seconds to connect

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")


@dataclass(frozen=True)
class Address:
    """An address, taken apart."""

    name: str
    """As it was given; it may hold a password."""
    server: str
    """For libpq."""
    table: str = TABLE

    @classmethod
    def parse(cls, name: str | Path) -> Address:
        """Takes a name apart; what can be none is refused.

        >>> Address.parse("postgres://me@localhost/shop?table=shoes").table
        'shoes'
        """
        parts = urlsplit(str(name))
        options = parse_qsl(parts.query)
        table = dict(options).get("table", TABLE)
        if not str(name).startswith("postgres://") or not _NAME.fullmatch(table):
            raise InputError(
                f"{shown(str(name))!r} is no address of an index in PostgreSQL; accepted: "
                "postgres://user@host:port/database or postgres://…?table=NAME, its name of small letters, digits "
                "and _."
            )
        rest = urlencode([option for option in options if option[0] != "table"])
        return cls(str(name), urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")), table)


def shown(name: str) -> str:
    """An address without its password."""
    return re.sub(r"(//[^/@:]*):[^/@]*@", r"\1@", name)


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
        with self._translated():
            connection = self._idle.pop() if self._idle else self._connected()
        self._mine.connection = connection
        try:
            with self._translated(), connection.transaction():
                yield connection
        finally:
            self._mine.connection = None
            if self._is_open and not connection.closed:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """All that are not in use; those that are go when they are done."""
        self._is_open = False
        while self._idle:
            self._idle.pop().close()

    def _connected(self) -> Any:
        psycopg = _psycopg()
        connection = psycopg.connect(self.address.server, connect_timeout=PATIENCE, autocommit=True)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _psycopg().Error as error:
            raise StoreError(
                f"PostgreSQL at {shown(self.address.name)} did not do what was asked ({str(error).strip()}); "
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

"""Where an index of a database lies: `scheme:PATH` on this machine, or `scheme:http://host:port/COLLECTION`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from doubtless.errors import InputError

COLLECTION = "doubtless"
"""The collection where the address names none."""
SECRETS = frozenset({"password", "sslpassword"})
"""Options of an address that nobody should read."""

_SERVER = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """An address, taken apart: a server's, or a path."""

    scheme: str
    name: str
    """As it was given."""
    server: str | None
    local: Path | None
    collection: str = COLLECTION

    @property
    def parts(self) -> str:
        """The collection that holds what is no item: settings, names of labels, attachments."""
        return f"{self.collection}_parts"

    @property
    def place(self) -> str:
        """The same for all names of one index."""
        return f"{self.server or ''}{'' if self.local is None else self.local.resolve()} {self.collection}"

    def beside(self, ending: str) -> Path:
        """A hidden folder for work on this index: beside its path, or for a server where the command runs."""
        if self.local is not None:
            return self.local.with_name(f".{self.local.name}.{ending}")
        assert self.server is not None
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", urlsplit(self.server).netloc.rpartition("@")[2])
        return Path(f".{self.scheme}-{host}-{self.collection}.{ending}")


@dataclass(frozen=True)
class Scheme:
    """How the addresses of one database read."""

    scheme: str
    product: str
    letters: str
    """Of which the name of a collection may be besides letters and digits."""
    secret: str
    """The environment's variable where a password or key belongs."""

    def parse(self, name: str | Path) -> Address:
        """Takes a name apart; what can be none is refused.

        >>> shops = Scheme("shops", "Shops", "_", "SHOPS_KEY")
        >>> shops.parse("shops:http://localhost:19530/shoes").collection
        'shoes'
        >>> shops.parse("shops:gallery").local
        PosixPath('gallery')
        """
        name, scheme = str(name), self.scheme
        rest = name.removeprefix(f"{scheme}:")
        if not rest:
            raise InputError(
                f"{name!r} names no place; accepted: {scheme}:PATH or {scheme}:http://host:port."
            )
        if not _SERVER.match(rest):
            return Address(scheme, name, None, Path(rest))
        refuse_secrets(rest, instead=f"the environment's variable {self.secret}")
        parts = urlsplit(rest)
        collection = parts.path.strip("/") or COLLECTION
        spelling = rf"[A-Za-z_][A-Za-z0-9{self.letters}]{{0,199}}"
        if not parts.hostname or parts.query or parts.fragment or not re.fullmatch(spelling, collection):
            raise InputError(
                f"{name!r} is no address of an index in {self.product}; accepted: {scheme}:http://host:port or "
                f"{scheme}:http://host:port/COLLECTION, its name of letters, digits and {' '.join(self.letters)}."
            )
        return Address(scheme, name, f"{parts.scheme}://{parts.netloc}", None, collection)


def refuse_secrets(address: str, *, instead: str) -> None:
    """An address is shown in sentences, logs and the list of processes, so nothing secret may be part of it.

    >>> refuse_secrets("postgres://me@host/shop", instead="PGPASSWORD")
    """
    try:
        parts = urlsplit(address)
        secret = parts.password is not None or any(key in SECRETS for key, _ in parse_qsl(parts.query))
    except ValueError:  # of something that is no address at all: shown by nobody either
        raise InputError(f"An address that starts {address[:8]!r} cannot be read.") from None
    if secret:
        raise InputError(
            f"Addresses are shown in messages and lists of processes: put the password into {instead} and leave "
            "it out of the address."
        )

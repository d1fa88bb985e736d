"""What there is at an address: an index, the beginnings of one, or something of somebody else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from doubtless.errors import InputError
from doubtless.retrieval.milvus.address import Address
from doubtless.retrieval.milvus.connecting import Connection
from doubtless.retrieval.milvus.shelf import Shelf, State
from doubtless.retrieval.milvus.tables import ITEM_FIELDS, PART_FIELDS, drop_collections


def state_at(connection: Connection) -> State | None:
    """Of the index at an address; None where there is none, or one whose creation was cut off at its start."""
    if not connection.call("has_collection", connection.address.parts):
        return None
    _refuse_foreign(connection)
    connection.call("load_collection", connection.address.parts)
    return Shelf(connection).read_state()


def refuse_existing(connection: Connection) -> None:
    address = connection.address
    names = [name for name in (address.collection, address.parts) if connection.call("has_collection", name)]
    if not names:
        return
    if address.parts in names and state_at(connection) is not None:
        raise InputError(f"{address.name} exists already; an index is only created where there is nothing.")
    _refuse_foreign(connection)
    drop_collections(connection)  # of a creation that was cut off before it was anything


def _refuse_foreign(connection: Connection) -> None:
    # Not by their description, which Milvus Lite forgets.
    both = {connection.address.collection: ITEM_FIELDS, connection.address.parts: PART_FIELDS}
    for name, fields in both.items():
        if connection.call("has_collection", name):
            found = {field["name"] for field in connection.call("describe_collection", name)["fields"]}
            if not found >= fields:
                raise InputError(
                    f"{connection.address.name} has a collection {name!r} that is none of doubtless's; name "
                    "another."
                )


def look_at(name: str) -> tuple[bool, str | None]:
    """Whether there is an index, and what is still to be done before anyone may open it."""
    address = Address.parse(name)
    if address.file is not None and not address.file.exists():
        return False, None
    with contextlib.closing(Connection(address)) as connection:
        state = state_at(connection)
        return state is not None, None if state is None else state.unfinished


def discard_unfinished(name: str) -> None:
    """Drops what a creation or migration left behind; a finished index is refused."""
    with contextlib.closing(Connection(Address.parse(name))) as connection:
        state = state_at(connection)
        if state is None or state.unfinished is None:
            raise InputError(f"{name} is finished, or nothing; it is not dropped.")
        drop_collections(connection)


@contextlib.contextmanager
def closed_on_failure(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise

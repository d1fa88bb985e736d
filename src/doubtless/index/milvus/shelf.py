"""Metadata and ids as numbers Milvus can look for: 63 bits of a hash for an id and for every "name = value".

Milvus's own comparisons of JSON differ between Lite and servers (true and 1, 2 and 2.0, quoting); whether a number
is in a list does not. Two values share a number with a chance of 1e-19; ids that are found are compared again.

`Shelf`: what an index in Milvus keeps beside its items: its state, names of labels, parts cut into pieces.

Milvus has no transactions, but one row is written whole or not at all. So what is long lies in pieces under a
stamp of its own, and one row that names the stamp, its length and checksum is written last.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from doubtless.errors import InputError, StoreError
from doubtless.index.filters import Where, accepted_values, label_codes
from doubtless.index.milvus.connection import Connection
from doubtless.index.milvus.tables import TEXT
from doubtless.index.settings import SCHEMA, Settings

NOTHING = "row < 0"
"""An expression no item fulfils."""


def key_of(*words: str) -> int:
    """63 bits of a hash of some words: Milvus Lite reads no minus in front of a number."""
    digest = hashlib.blake2b(digest_size=8)
    for word in words:
        encoded = word.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") >> 1


def facts_of(metadata: str | None) -> list[int]:
    """What can be asked of metadata (JSON): each name that is given, and its value where it is a plain one."""
    facts = []
    for name, value in json.loads(metadata or "{}").items():
        if value is not None:
            facts.append(_given(name))
        if isinstance(value, str | bool | int | float):
            facts.append(_fact(name, value))
    return facts


def expression(where: Where, label_names: Sequence[str]) -> str:
    """What `Index.search` takes as `where`, for Milvus.

    >>> expression({"label": ["cat", None]}, ["dog", "cat"])
    '(label in [-1, 1])'
    """
    clauses = []
    for name, wanted in where.items():
        values = accepted_values(name, wanted)
        if name == "label":
            codes = sorted(label_codes(values, list(label_names)))
            clauses.append(f"label in {codes}" if codes else NOTHING)
        else:
            clauses.append(_holds(name, values))
    return " and ".join(f"({clause})" for clause in clauses)


def _holds(name: str, values: list[Any]) -> str:
    facts = sorted({_fact(name, value) for value in values if value is not None})
    clauses = [f"array_contains_any(facts, {facts})"] if facts else []
    if None in values:
        clauses.append(f"not array_contains(facts, {_given(name)})")
    return " or ".join(clauses) or NOTHING


def _given(name: str) -> int:
    return key_of("given", name)


def _fact(name: str, value: str | bool | int | float) -> int:
    """2 and 2.0 are one value; true, 1 and "1" are three."""
    if isinstance(value, str):
        return key_of("text", name, value)
    if isinstance(value, bool):
        return key_of("truth", name, str(value))
    whole = isinstance(value, int) or value.is_integer()
    return key_of("number", name, str(int(value)) if whole else repr(value))


PIECE = TEXT // 4 * 3  # bytes a piece: as base64 they fill a text
TOGETHER = 64  # pieces read or written with one call
LABELS = 4_096  # names read or written with one call

Row = TypeVar("Row")


@dataclass(frozen=True)
class Pieces:
    """Where some bytes lie."""

    stamp: str
    count: int
    length: int
    checksum: int

    @property
    def keys(self) -> list[str]:
        return [f"piece/{self.stamp}/{number}" for number in range(self.count)]


@dataclass(frozen=True)
class State:
    """Where the index stands; one row, so that a change of it is the moment in which a change counts."""

    settings: Settings
    next_row: int = 0
    """Rows from here on are of an addition that was cut off: nobody sees them."""
    items: int = 0
    labels: int = 0
    writer: str = ""
    """Who opened it for writing last."""
    unfinished: str | None = None
    """What has to be done before anyone may search it."""
    removing: Pieces | None = None
    """Rows that count as removed and are still to be deleted."""


class Shelf:
    """The collection NAME_parts of an index."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._name = connection, connection.address.parts

    # -- the state -----------------------------------------------------------------------------------

    def read_state(self) -> State | None:
        found = self._read(["state"])
        if not found:
            return None
        plain = json.loads(found["state"])
        if plain.pop("schema") > SCHEMA:
            raise StoreError(
                f"The index {self._connection.address.name} was written by a newer doubtless; update doubtless "
                "to open it."
            )
        removing = plain.pop("removing")
        return State(
            Settings(**plain.pop("settings")),
            **plain,
            removing=None if removing is None else Pieces(**removing),
        )

    def write_state(self, state: State) -> None:
        self._write([("state", "state", 0, json.dumps({"schema": SCHEMA, **asdict(state)}))])

    # -- names of labels -----------------------------------------------------------------------------

    def label_names(self, codes: range) -> list[str]:
        keys = [f"label/{code}" for code in codes]
        return [text for some in groups(keys, LABELS) for text in self._whole(some)]

    def add_labels(self, names: Sequence[str], *, first: int) -> None:
        """Names that no state counts are overwritten by those that come next."""
        for name in names:
            refuse_long("the label", name)
        rows = [(f"label/{code}", "label", code, name) for code, name in enumerate(names, first)]
        for some in groups(rows, LABELS):
            self._write(some)

    # -- long things ---------------------------------------------------------------------------------

    def write_pieces(self, data: bytes) -> Pieces:
        count = -(-len(data) // PIECE)
        pieces = Pieces(secrets.token_hex(8), count, len(data), zlib.crc32(data))
        texts = (
            base64.b64encode(data[start : start + PIECE]).decode() for start in range(0, len(data), PIECE)
        )
        rows = [
            (key, "piece", place, text)
            for place, (key, text) in enumerate(zip(pieces.keys, texts, strict=True))
        ]
        for some in groups(rows, TOGETHER):
            self._write(some)
        return pieces

    def read_pieces(self, pieces: Pieces) -> bytes:
        texts = [text for some in groups(pieces.keys, TOGETHER) for text in self._whole(some)]
        data = b"".join(map(base64.b64decode, texts))
        if len(data) != pieces.length or zlib.crc32(data) != pieces.checksum:
            raise StoreError(
                f"The index {self._connection.address.name} is damaged: a part of it is not what was stored."
            )
        return data

    def drop_pieces(self, pieces: Pieces) -> None:
        for some in groups(pieces.keys, TOGETHER):
            self._connection.call("delete", self._name, ids=some)

    # -- parts ---------------------------------------------------------------------------------------

    def attach(self, name: str, tensors: bytes, record: str) -> None:
        refuse_long("the name of the part", name)
        before, plain = self._part(name), record.encode()
        pieces = self.write_pieces(plain + tensors)
        head = {"name": name, "record": len(plain), "pieces": asdict(pieces)}
        self._write([(_part_key(name), "part", 0, json.dumps(head))])
        if before is not None:
            self.drop_pieces(Pieces(**before["pieces"]))

    def part(self, name: str) -> tuple[bytes, str] | None:
        head = self._part(name)
        if head is None:
            return None
        data = self.read_pieces(Pieces(**head["pieces"]))
        return data[head["record"] :], data[: head["record"]].decode()

    def parts(self) -> list[str]:
        return sorted(head["name"] for head in self._heads())

    def clean(self, state: State) -> None:
        """Deletes pieces that nothing names: of a process that was cut off."""
        named = {head["pieces"]["stamp"] for head in self._heads()}
        if state.removing is not None:
            named.add(state.removing.stamp)
        found = self._query("kind == 'piece'", ["key"])
        stray = [row["key"] for row in found if row["key"].split("/")[1] not in named]
        for some in groups(stray, TOGETHER):
            self._connection.call("delete", self._name, ids=some)

    # -- inside --------------------------------------------------------------------------------------

    def _part(self, name: str) -> dict[str, Any] | None:
        found = self._read([_part_key(name)])
        return json.loads(found[_part_key(name)]) if found else None

    def _heads(self) -> list[dict[str, Any]]:
        return [json.loads(row["text"]) for row in self._query("kind == 'part'", ["text"])]

    def _whole(self, keys: Sequence[str]) -> list[str]:
        """Texts of keys, all of which must be there."""
        found = self._read(keys)
        missing = [key for key in keys if key not in found]
        if missing:
            raise StoreError(
                f"The index {self._connection.address.name} is damaged: {missing[0]} and perhaps more is missing."
            )
        return [found[key] for key in keys]

    def _read(self, keys: Sequence[str]) -> dict[str, str]:
        rows = self._query(f"key in {json.dumps(list(keys))}", ["key", "text"]) if keys else []
        return {row["key"]: row["text"] for row in rows}

    def _query(self, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._connection.call(
            "query", self._name, filter=condition, output_fields=fields
        )
        return found

    def _write(self, rows: Iterable[tuple[str, str, int, str]]) -> None:
        names = ("key", "kind", "number", "text")
        data = [{**dict(zip(names, row, strict=True)), "nothing": [0.0, 0.0]} for row in rows]
        self._connection.call("upsert", self._name, data)


def refuse_long(what: str, text: str) -> None:
    """Milvus cuts nothing off, and takes nothing longer."""
    if len(text.encode()) > TEXT:
        raise InputError(
            f"{what} that starts {text[:40]!r} has {len(text.encode()):,} bytes; Milvus takes up to {TEXT:,}."
        )


def _part_key(name: str) -> str:
    return f"part/{key_of(name)}"


def groups(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Some at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]

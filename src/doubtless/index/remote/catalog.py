"""`Catalog`: what an index in a database keeps beside its items: its state, names of labels, attachments in pieces.

Not every database has transactions, but one row is written whole or not at all. So what is long lies in pieces
under a stamp of its own, and one row that names the stamp, its length and checksum is written last.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from doubtless.errors import StoreError
from doubtless.index.remote.driver import Driver, Part, groups
from doubtless.index.remote.facts import key_of
from doubtless.index.settings import SCHEMA, Settings

TOGETHER = 64  # pieces read or written with one call
LABELS = 4_096  # names read or written with one call


@dataclass(frozen=True)
class Pieces:
    """Where some bytes lie."""

    stamp: str
    count: int
    length: int
    checksum: int

    @property
    def keys(self) -> list[str]:
        """Of their rows."""
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


class Catalog:
    """The parts of an index."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._piece = driver.text_bytes // 4 * 3  # bytes per piece: as base64 they fill a text

    # -- the state -----------------------------------------------------------------------------------

    def read_state(self) -> State | None:
        """The state; None where none was written yet."""
        texts = self._read(["state"])
        if not texts:
            return None
        plain = json.loads(texts["state"])
        if plain.pop("schema") > SCHEMA:
            raise StoreError(
                f"The index {self._driver.name} was written by a newer doubtless; update doubtless "
                "to open it."
            )
        removing = plain.pop("removing")
        return State(
            Settings(**plain.pop("settings")),
            **plain,
            removing=None if removing is None else Pieces(**removing),
        )

    def write_state(self, state: State) -> None:
        """Writes the state, in one row."""
        self._write([Part("state", "state", 0, json.dumps({"schema": SCHEMA, **asdict(state)}))])

    # -- names of labels -----------------------------------------------------------------------------

    def label_names(self, codes: range) -> list[str]:
        """Names of labels by their codes."""
        keys = [f"label/{code}" for code in codes]
        return [text for some in groups(keys, LABELS) for text in self._whole(some)]

    def add_labels(self, names: Sequence[str], *, first: int) -> None:
        """Names that no state counts are overwritten by those that come next."""
        for name in names:
            self._driver.refuse_long("The label", name)
        rows = [Part(f"label/{code}", "label", code, name) for code, name in enumerate(names, first)]
        for some in groups(rows, LABELS):
            self._write(some)

    # -- long things ---------------------------------------------------------------------------------

    def write_pieces(self, data: bytes) -> Pieces:
        """Writes bytes of any length and says where they lie."""
        count = -(-len(data) // self._piece)
        pieces = Pieces(secrets.token_hex(8), count, len(data), zlib.crc32(data))
        texts = (
            base64.b64encode(data[start : start + self._piece]).decode()
            for start in range(0, len(data), self._piece)
        )
        rows = [
            Part(key, "piece", place, text)
            for place, (key, text) in enumerate(zip(pieces.keys, texts, strict=True))
        ]
        for some in groups(rows, TOGETHER):
            self._write(some)
        return pieces

    def read_pieces(self, pieces: Pieces) -> bytes:
        """The bytes again."""
        texts = [text for some in groups(pieces.keys, TOGETHER) for text in self._whole(some)]
        data = b"".join(map(base64.b64decode, texts))
        if len(data) != pieces.length or zlib.crc32(data) != pieces.checksum:
            raise StoreError(
                f"The index {self._driver.name} is damaged: something in it is not what was stored."
            )
        return data

    def drop_pieces(self, pieces: Pieces) -> None:
        """Deletes them."""
        for some in groups(pieces.keys, TOGETHER):
            self._driver.delete_parts(some)

    # -- attachments ---------------------------------------------------------------------------------

    def attach(self, name: str, tensors: bytes, record: str) -> None:
        """Keeps an attachment in place of what was there."""
        self._driver.refuse_long("The name of the attachment", name)
        before, plain = self._head(name), record.encode()
        pieces = self.write_pieces(plain + tensors)
        head = {"name": name, "record": len(plain), "pieces": asdict(pieces)}
        self._write([Part(_attachment_key(name), "part", 0, json.dumps(head))])
        if before is not None:
            self.drop_pieces(Pieces(**before["pieces"]))

    def attachment(self, name: str) -> tuple[bytes, str] | None:
        """Tensors and record under a name."""
        head = self._head(name)
        if head is None:
            return None
        data = self.read_pieces(Pieces(**head["pieces"]))
        return data[head["record"] :], data[: head["record"]].decode()

    def attachments(self) -> list[str]:
        """Names of all attachments, sorted."""
        return sorted(head["name"] for head in self._heads())

    def clean(self, state: State) -> None:
        """Deletes pieces that nothing names: of a process that was cut off."""
        named = {head["pieces"]["stamp"] for head in self._heads()}
        if state.removing is not None:
            named.add(state.removing.stamp)
        stray = [key for key in self._driver.parts_of("piece") if key.split("/")[1] not in named]
        for some in groups(stray, TOGETHER):
            self._driver.delete_parts(some)

    # -- inside --------------------------------------------------------------------------------------

    def _head(self, name: str) -> dict[str, Any] | None:
        texts = self._read([_attachment_key(name)])
        return json.loads(texts[_attachment_key(name)]) if texts else None

    def _heads(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self._driver.parts_of("part").values()]

    def _whole(self, keys: Sequence[str]) -> list[str]:
        """Texts of keys, all of which must be there."""
        texts = self._read(keys)
        missing = [key for key in keys if key not in texts]
        if missing:
            raise StoreError(
                f"The index {self._driver.name} is damaged: {missing[0]} and perhaps more is missing."
            )
        return [texts[key] for key in keys]

    def _read(self, keys: Sequence[str]) -> dict[str, str]:
        return self._driver.read_parts(keys) if keys else {}

    def _write(self, parts: Sequence[Part]) -> None:
        self._driver.write_parts(parts)


def _attachment_key(name: str) -> str:
    return f"part/{key_of(name)}"

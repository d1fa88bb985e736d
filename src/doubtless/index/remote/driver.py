"""`Driver`: what a database must be able to do so that an index can lie in it. A backend is one subclass of it.

Two tables: items, one row per version of an item, and parts, texts by key (the state, names of labels, attachments
in pieces). No transactions are needed; where there are some, `changing` and `reading` are them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, NamedTuple, Self, TypeVar

from doubtless.errors import InputError, StoreError
from doubtless.index.filters import Where
from doubtless.index.forms import Floats
from doubtless.index.items import Fields
from doubtless.index.settings import IndexScore, Settings

Row = TypeVar("Row")

ITEMS, PARTS = "items", "parts"
"""The two tables."""


class NothingThere(StoreError):  # noqa: N818  it is a state of things, and a sentence like others
    """There is no index under a name."""


class Record(NamedTuple):
    """What a search needs of an item: row, code of its label (−1 without), numbers (width,)."""

    row: int
    label: int
    numbers: Floats


class Wanted(NamedTuple):
    """What a search is for, whatever its queries are."""

    most: int
    """Items per query."""
    settings: Settings
    score: IndexScore
    where: Where | None
    """Only items that it holds for."""
    label_names: Sequence[str]
    """Code → name, of the labels that `where` may name."""
    before: int | None = None
    """Only rows below this one."""


class Part(NamedTuple):
    """A text by its key; kind: "state", "label", "piece" or "part"."""

    key: str
    kind: str
    number: int
    text: str


class Driver(ABC):
    """A connection to the two tables of one index."""

    product: ClassVar[str]
    """What the database is called in sentences."""
    text_bytes: ClassVar[int] = 65_535
    """The longest text it takes."""
    deepest: ClassVar[int] = 16_384
    """The most neighbours of one query."""
    sent_bytes: ClassVar[int] = 8_000_000
    """Bytes of numbers sent or received with one call, about."""
    looked_up: ClassVar[int] = 8_192
    """Rows or ids asked for with one call."""
    name: str
    """The index's, as it was given."""

    # -- the tables ----------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def connect(cls, name: str | Path, *, may_create: bool = False) -> Self:
        """A connection to where an index lies or, with `may_create`, is to lie."""

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether one of its two tables is there; one of somebody else is refused."""

    @abstractmethod
    def create(self, settings: Settings) -> None:
        """Makes both, empty."""

    @abstractmethod
    def drop(self) -> None:
        """Both; parts, which have the state, go first, so that what is left of a cut-off drop is no index."""

    def load(self) -> None:  # noqa: B027  most are ready when they are there
        """Makes both ready to be asked."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of it."""

    def changing(self) -> AbstractContextManager[None]:
        """All calls inside are one change, and no other changes anything meanwhile; where it can."""
        return contextlib.nullcontext()

    def reading(self) -> AbstractContextManager[None]:
        """All calls inside see one moment; where it can."""
        return contextlib.nullcontext()

    @classmethod  # noqa: B027
    def check(cls, settings: Settings) -> None:
        """Refuses an index it could not keep."""

    def searched_by(self, settings: Settings) -> str:
        """How it looks for neighbours: "flat", which is exact, "hnsw" or "ivf"."""
        return "flat" if settings.kind == "auto" else settings.kind

    def compact(self) -> None:  # noqa: B027
        """Gives the space of deleted rows back, or asks for it."""

    def size(self) -> int | None:
        """Bytes it takes, where that can be known."""
        return None

    # -- parts ---------------------------------------------------------------------------------------

    @abstractmethod
    def read_parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → text, of those that are there."""

    @abstractmethod
    def parts_of(self, kind: str) -> dict[str, str]:
        """Key → text, of a kind."""

    @abstractmethod
    def write_parts(self, parts: Sequence[Part]) -> None:
        """In place of what has their keys; a single one whole or not at all."""

    @abstractmethod
    def delete_parts(self, keys: Sequence[str]) -> None:
        """Those that are there."""

    # -- items ---------------------------------------------------------------------------------------

    def check_fields(self, field: Fields) -> None:
        """Refuses what it cannot keep of an item."""
        texts = {"id": field.id, "path": field.path or "", "metadata": field.metadata or ""}
        for name, text in texts.items():
            self.refuse_long(f"The {name} of item {field.id[:40]!r}", text)

    @abstractmethod
    def insert(self, first: int, fields: Sequence[Fields], vectors: Mapping[str, Floats]) -> None:
        """New items in rows from `first` on; vectors: name → (n, ·), "numbers" among them."""

    @abstractmethod
    def delete_rows(self, rows: Sequence[int]) -> None:
        """Those that are there."""

    @abstractmethod
    def delete_from(self, row: int) -> None:
        """All rows from this one on."""

    @abstractmethod
    def rows_named(self, ids: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Id and row of all rows that have one of the ids."""

    @abstractmethod
    def labels(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Row and label code, −1 without, of all rows in a range, in any order."""

    @abstractmethod
    def fields(self, rows: Sequence[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, of those that are there."""

    @abstractmethod
    def records(self, rows: Sequence[int], settings: Settings) -> Iterable[Record]:
        """Labels and numbers, of those that are there."""

    @abstractmethod
    def search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        """The best for queries (n, ·), which are those of an exact search, best first."""

    # -- for all -------------------------------------------------------------------------------------

    def refuse_long(self, what: str, text: str) -> None:
        """Nothing is cut off."""
        if len(text.encode()) > self.text_bytes:
            raise InputError(
                f"{what} that starts {text[:40]!r} has {len(text.encode()):,} bytes; {self.product} takes up to "
                f"{self.text_bytes:,}."
            )


def groups(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Some at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]

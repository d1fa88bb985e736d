"""`QdrantDriver`: the two collections of an index in Qdrant.

NAME          one point per item, its number the row; payload: id, key (of the id), label, path, metadata (JSON as
              text), facts (numbers that filters look for); vectors: `direction` and `expected` are searched,
              `numbers` are the stored distributions
NAME_parts    all else, as text: the state, names of labels, attachments in pieces
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from doubtless.errors import InputError
from doubtless.index.forms import Floats
from doubtless.index.items import Fields
from doubtless.index.proposals import CARE, LINKS
from doubtless.index.qdrant.connection import QDRANT, Connection
from doubtless.index.remote.driver import ITEMS, Driver, Part, Record, Wanted, groups
from doubtless.index.remote.facts import Clause, clauses, filter_keys_of, key_of
from doubtless.index.remote.vectors import FIELD_OF, is_lifted, kind_of, searching_vectors, widths
from doubtless.index.settings import Settings

WIDEST = 65_535  # numbers per vector of Qdrant
EFFORT = 128  # candidates HNSW keeps
TOGETHER = 4_096  # points read with one call
EVERYTHING = 100_000_000
FEW = 16  # ids that the local mode looks for by a filter


class QdrantDriver(Driver):
    """A client of one address, and its collections NAME and NAME_parts."""

    product = "Qdrant"
    text_bytes = 250_000  # 64 of these fit into one request
    deepest = 1_000_000
    sent_bytes = 4_000_000  # as JSON five times as many; a server takes 32 MiB

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.name = connection.address.name
        self._items = connection.address.collection
        self._parts = connection.address.parts

    @classmethod
    def connect(cls, name: str | Path, *, may_create: bool = False) -> Self:
        """A client of a server, or of a folder."""
        return cls(Connection(QDRANT.parse(name), may_create=may_create))

    # -- the collections -----------------------------------------------------------------------------

    def has(self, table: str) -> bool:
        """Known by its vectors."""
        name = self._items if table == ITEMS else self._parts
        if not self._connection.call("collection_exists", name):
            return False
        vectors = self._connection.call("get_collection", name).config.params.vectors
        ours = {"numbers", "direction"} if table == ITEMS else {"nothing"}
        if not (isinstance(vectors, dict) and vectors.keys() >= ours):
            raise InputError(
                f"{self.name} has a collection {name!r} that is none of doubtless's; name another."
            )
        return True

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Vectors that are too long, and IVF, which Qdrant has none of."""
        if settings.kind == "ivf":
            raise InputError("An index in Qdrant is 'auto', 'flat' or 'hnsw', got kind 'ivf'.")
        widest = max(settings.width, *widths(settings).values())
        if widest > WIDEST:
            raise InputError(f"Qdrant takes at most {WIDEST:,} numbers per vector, got {widest:,}.")

    def create(self, settings: Settings) -> None:
        """Makes both, empty."""
        from qdrant_client import models

        unlinked = models.HnswConfigDiff(m=0)
        linked = models.HnswConfigDiff(m=LINKS, ef_construct=CARE)
        vectors = {
            "numbers": models.VectorParams(
                size=settings.width, distance=models.Distance.DOT, hnsw_config=unlinked
            )
        }
        wanted = widths(settings)
        for score, name in FIELD_OF.items():
            if name in wanted:
                lifted = is_lifted(settings, score)
                vectors[name] = models.VectorParams(
                    size=wanted[name],
                    distance=models.Distance.EUCLID if lifted else models.Distance.DOT,
                    hnsw_config=linked if kind_of(settings) == "hnsw" else unlinked,
                )
        nothing = models.VectorParams(size=1, distance=models.Distance.DOT, hnsw_config=unlinked)
        self._connection.call("create_collection", self._items, vectors_config=vectors)
        self._connection.call("create_collection", self._parts, vectors_config={"nothing": nothing})
        if self._connection.address.local is None:  # the local mode has no indexes of payload
            for table, name, kind in (
                (self._items, "key", "integer"),
                (self._items, "label", "integer"),
                (self._items, "row", "integer"),
                (self._items, "facts", "integer"),
                (self._parts, "kind", "keyword"),
            ):
                self._connection.call("create_payload_index", table, name, field_schema=kind, wait=True)

    def drop(self) -> None:
        """Both."""
        for name in (self._parts, self._items):
            if self._connection.call("collection_exists", name):
                self._connection.call("delete_collection", name)

    def close(self) -> None:
        """Lets go of Qdrant."""
        self._connection.close()

    def searched_by(self, settings: Settings) -> str:
        """The local mode looks at every item whatever was asked for."""
        return "flat" if self._connection.address.local is not None else super().searched_by(settings)

    def size(self) -> int | None:
        """Of a folder."""
        folder = self._connection.address.local
        return (
            None if folder is None else sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
        )

    # -- parts ---------------------------------------------------------------------------------------

    def read_parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → text, of those that are there."""
        wanted = [key_of(key) for key in keys]
        found = self._connection.call("retrieve", self._parts, ids=wanted, with_payload=["key", "text"])
        return {point.payload["key"]: point.payload["text"] for point in found}

    def parts_of(self, kind: str) -> dict[str, str]:
        """Key → text, of a kind."""
        found = self._scroll(self._parts, _filter(must=[_matches("kind", [kind])]), ["key", "text"])
        return {point.payload["key"]: point.payload["text"] for point in found}

    def write_parts(self, parts: Sequence[Part]) -> None:
        """In place of what has their keys."""
        from qdrant_client import models

        points = [
            models.PointStruct(id=key_of(part.key), vector={"nothing": [1.0]}, payload=part._asdict())
            for part in parts
        ]
        self._connection.call("upsert", self._parts, points=points, wait=True)

    def delete_parts(self, keys: Sequence[str]) -> None:
        """Those that are there."""
        self._delete(self._parts, [key_of(key) for key in keys])

    # -- items ---------------------------------------------------------------------------------------

    def insert(self, first: int, fields: Sequence[Fields], vectors: Mapping[str, Floats]) -> None:
        """What is not there is left out of the payload, the label but, which is −1."""
        from qdrant_client import models

        lists = {name: matrix.tolist() for name, matrix in vectors.items()}
        points = [
            models.PointStruct(
                id=first + place,
                vector={name: rows[place] for name, rows in lists.items()},
                payload=_payload(first + place, field),
            )
            for place, field in enumerate(fields)
        ]
        self._connection.call("upsert", self._items, points=points, wait=True)

    def delete_rows(self, rows: Sequence[int]) -> None:
        """Those that are there."""
        self._delete(self._items, list(rows))

    def delete_from(self, row: int) -> None:
        """All rows from this one on."""
        from qdrant_client import models

        stray = models.FilterSelector(filter=_filter(must=[_between(row, None)]))
        self._connection.call("delete", self._items, points_selector=stray, wait=True)

    def rows_named(self, ids: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Found by the keys of the ids, so perhaps a few others, or in a folder all.

        The local mode compares each item with each key: of many ids it is quicker to look at every item once.
        """
        if self._connection.address.local is not None and len(ids) > FEW:
            keys = None
        else:
            keys = _filter(must=[_matches("key", [key_of(name) for name in ids])])
        return [(point.payload["id"], point.id) for point in self._scroll(self._items, keys, ["id"])]

    def labels(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Row and label code of all rows in a range."""
        found = self._scroll(self._items, _filter(must=[_between(start, stop)]), ["label"])
        return [(point.id, point.payload["label"]) for point in found]

    def fields(self, rows: Sequence[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, of those that are there."""
        wanted = ["id", "label", "path", "metadata"]
        found = self._connection.call("retrieve", self._items, ids=list(rows), with_payload=wanted)
        return {point.id: _fields(point.payload) for point in found}

    def records(self, rows: Sequence[int], settings: Settings) -> Iterable[Record]:
        """Labels and numbers, of those that are there."""
        found = self._connection.call(
            "retrieve", self._items, ids=list(rows), with_payload=["label"], with_vectors=["numbers"]
        )
        return [_record(point) for point in found]

    def search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        """One call for all queries."""
        from qdrant_client import models

        conditions: list[Any] = [_said(clause) for clause in clauses(wanted.where or {}, wanted.label_names)]
        conditions += [] if wanted.before is None else [_between(None, wanted.before)]
        linked = kind_of(wanted.settings) == "hnsw"
        care = max(EFFORT, wanted.most) if linked else None
        effort: Any = models.SearchParams(exact=not linked, hnsw_ef=care)
        if self._connection.address.local is not None:
            effort = None  # the local mode looks at every item, and warns of a wish for anything else
        requests = [
            models.QueryRequest(
                query=vector.tolist(),
                using=FIELD_OF[wanted.score],
                filter=_filter(must=conditions) if conditions else None,
                params=effort,
                limit=wanted.most,
                with_payload=["label"],
                with_vector=["numbers"],
            )
            for vector in searching_vectors(vectors, wanted.settings, wanted.score)
        ]
        found = self._connection.call("query_batch_points", self._items, requests=requests)
        return [[_record(point) for point in response.points] for response in found]

    # -- inside --------------------------------------------------------------------------------------

    def _scroll(self, table: str, condition: Any, payload: list[str]) -> Iterator[Any]:
        """The local mode goes through all points for every page, so it gives one."""
        offset, together = None, TOGETHER if self._connection.address.local is None else EVERYTHING
        while True:
            points, offset = self._connection.call(
                "scroll",
                table,
                scroll_filter=condition,
                limit=together,
                offset=offset,
                with_payload=payload,
            )
            yield from points
            if offset is None:
                return

    def _delete(self, table: str, points: list[int]) -> None:
        """The local mode refuses points that are not there; a server does not."""
        from qdrant_client import models

        for some in groups(points, TOGETHER):
            there = [
                point.id
                for point in self._connection.call("retrieve", table, ids=list(some), with_payload=False)
            ]
            if there:
                selected = models.PointIdsList(points=there)
                self._connection.call("delete", table, points_selector=selected, wait=True)


def _payload(row: int, field: Fields) -> dict[str, Any]:
    texts = {"path": field.path, "metadata": field.metadata}
    return {
        "row": row,
        "id": field.id,
        "key": key_of(field.id),
        "label": -1 if field.label is None else field.label,
        "facts": filter_keys_of(field.metadata),
        **{name: text for name, text in texts.items() if text is not None},
    }


def _fields(payload: Mapping[str, Any]) -> Fields:
    label = payload["label"]
    return Fields(payload["id"], None if label < 0 else label, payload.get("path"), payload.get("metadata"))


def _record(point: Any) -> Record:
    return Record(point.id, point.payload["label"], np.asarray(point.vector["numbers"], np.float32))


# -- filters -----------------------------------------------------------------------------------------


def _filter(
    *, must: list[Any] | None = None, should: list[Any] | None = None, must_not: list[Any] | None = None
) -> Any:
    from qdrant_client import models

    return models.Filter(must=must, should=should, must_not=must_not)


def _matches(name: str, values: list[int] | list[str]) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchAny(any=values))


def _between(start: int | None, stop: int | None) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key="row", range=models.Range(gte=start, lt=stop))


def _said(clause: Clause) -> Any:
    """One must hold; where nothing can, a row below 0."""
    ways: list[Any] = []
    if clause.codes:
        ways.append(_matches("label", clause.codes))
    if clause.facts:
        ways.append(_matches("facts", clause.facts))
    if clause.lacking is not None:
        ways.append(_filter(must_not=[_matches("facts", [clause.lacking])]))
    return _filter(should=ways or [_between(None, 0)])

"""The two collections of an index in Milvus, and what its settings become there.

    NAME          one row per item: `row` (the key, never used again), `id`, `key` (of the id), `label`, `path`,
                  `metadata` (JSON as text), `facts` (keys that filters look for), and three vectors:
                  `direction` and `expected` are searched, `numbers` are the stored distributions
    NAME_parts    all else, as text: the state, names of labels, attachments in pieces

What is searched are the vectors of `stored_form`: inner products for `flat`, which is exact; for `hnsw` and `ivf`
the lifted ones of `approximate`, whose Euclidean distances rank alike.
"""

from __future__ import annotations

import re
from typing import Any

from doubtless.errors import InputError
from doubtless.index.forms import Floats
from doubtless.index.milvus.connection import Connection
from doubtless.index.proposals import CARE, LINKS
from doubtless.index.remote.driver import Wanted
from doubtless.index.remote.vectors import kind_of, searching_vectors, widths
from doubtless.index.settings import Settings

OURS = "An index of doubtless; change it with doubtless only."
TEXT = 65_535  # bytes: the longest text of Milvus
MOST_KEYS = 4_096  # the longest list of Milvus
WIDEST = 32_768  # the longest vector of Milvus
LISTS, PROBED, EFFORT = 1_024, 64, 128  # of IVF: lists per segment, and looked into; of HNSW: candidates kept

FILTER_KEYS = "facts"
"""The column of numbers that stand for an item's metadata."""

ITEM_FIELDS = frozenset(
    {"row", "key", "label", "id", "path", "metadata", FILTER_KEYS, "direction", "numbers"}
)
CATALOG_FIELDS = frozenset({"key", "kind", "number", "text", "nothing"})
"""By these a collection is known for one of doubtless."""


def check_width(settings: Settings) -> None:
    """Refuses vectors that are too long."""
    if settings.width > WIDEST or settings.dim >= WIDEST:
        raise InputError(
            f"Milvus keeps at most {WIDEST:,} numbers per vector; {settings.dim} dimensions with "
            f"{settings.variances} variances are {settings.width:,}."
        )


def create_collections(connection: Connection, settings: Settings) -> None:
    """Makes both, empty."""
    from pymilvus import DataType, MilvusClient

    address = connection.address
    _check_version(connection.call("get_server_version"), address.name)
    items = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=OURS)
    items.add_field("row", DataType.INT64, is_primary=True)
    items.add_field("key", DataType.INT64)
    items.add_field("label", DataType.INT64)
    for name in ("id", "path", "metadata"):
        items.add_field(name, DataType.VARCHAR, max_length=TEXT)
    items.add_field(FILTER_KEYS, DataType.ARRAY, element_type=DataType.INT64, max_capacity=MOST_KEYS)
    for name, width in _widths(settings).items():
        items.add_field(name, DataType.FLOAT_VECTOR, dim=width)
    _create(connection, address.collection, items, _indexes(settings))

    catalog = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=OURS)
    catalog.add_field("key", DataType.VARCHAR, max_length=512, is_primary=True)
    catalog.add_field("kind", DataType.VARCHAR, max_length=16)
    catalog.add_field("number", DataType.INT64)
    catalog.add_field("text", DataType.VARCHAR, max_length=TEXT)
    catalog.add_field("nothing", DataType.FLOAT_VECTOR, dim=2)  # Milvus wants a vector in every collection
    _create(connection, address.parts, catalog, {"nothing": {"index_type": "FLAT", "metric_type": "L2"}})


def _check_version(server: str, name: str) -> None:
    """Milvus keeps several vectors of an item since 2.4; Lite, which does too, has versions of its own."""
    found = re.match(r"v?(\d+)\.(\d+)", server)
    if found and (int(found[1]), int(found[2])) < (2, 4):
        raise InputError(
            f"{name} is a Milvus {server}, which keeps one vector of an item; accepted are 2.4 and newer."
        )


def drop_collections(connection: Connection) -> None:
    """Both; the one with the state goes first, so that what is left of a cut-off drop is no index."""
    for name in (connection.address.parts, connection.address.collection):
        if connection.call("has_collection", name):
            connection.call("drop_collection", name)


def query_parameters(vectors: Floats, wanted: Wanted) -> tuple[Floats, dict[str, Any]]:
    """Queries as the field of the score wants them, and Milvus's parameters of the search."""
    settings = wanted.settings
    vectors = searching_vectors(vectors, settings, wanted.score)
    effort = {"flat": {}, "hnsw": {"ef": max(EFFORT, wanted.most)}, "ivf": {"nprobe": PROBED}}[
        kind_of(settings)
    ]
    return vectors, {"metric_type": _metric(settings), "params": effort}


def _widths(settings: Settings) -> dict[str, int]:
    """Field → numbers of its vectors; Milvus wants at least 2."""
    return {name: max(2, width) for name, width in {"numbers": settings.width, **widths(settings)}.items()}


def _metric(settings: Settings) -> str:
    return "IP" if kind_of(settings) == "flat" else "L2"


def _indexes(settings: Settings) -> dict[str, dict[str, Any]]:
    """Field → how Milvus is to find in it."""
    ways: dict[str, dict[str, Any]] = {
        "flat": {"index_type": "FLAT", "params": {}},
        "hnsw": {"index_type": "HNSW", "params": {"M": LINKS, "efConstruction": CARE}},
        "ivf": {"index_type": "IVF_FLAT", "params": {"nlist": LISTS}},
    }
    way = ways[kind_of(settings)]
    return {
        **{field: {**way, "metric_type": _metric(settings)} for field in widths(settings)},
        "numbers": {"index_type": "FLAT", "metric_type": "L2"},  # not searched, but Milvus loads no other
        "key": {"index_type": "INVERTED"},
        "label": {"index_type": "INVERTED"},
    }


def _create(connection: Connection, name: str, schema: Any, indexes: dict[str, dict[str, Any]]) -> None:
    from pymilvus import MilvusClient

    wanted = MilvusClient.prepare_index_params()
    for field, how in indexes.items():
        wanted.add_index(field_name=field, **how)
    # Strong: a search sees everything that was acknowledged before it, whoever wrote it.
    connection.call("create_collection", name, schema=schema, consistency_level="Strong")
    # Without waiting: pymilvus would sleep half a second per index of an empty collection. Loading waits for them.
    connection.call("create_index", name, wanted, sync=False)
    connection.call("load_collection", name)

"""What is PostgreSQL's alone: transactions, filters that people write in SQL, a second writer, HNSW."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from doubtless.errors import InputError, StoreError
from doubtless.index.backends import create_index_at, open_index
from doubtless.index.postgres.connection import Address
from doubtless.index.postgres.index import PostgresDriver, PostgresIndex
from doubtless.index.remote.driver import Part
from tests.index.test_search import names
from tests.reference import postgres_server
from tests.reference.gallery import drawn

GALLERY = drawn("gaussian-scalar", 40, dim=4, seed=1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server.serving() as address:
        yield address


@pytest.fixture
def name(server: str) -> str:
    return f"{server}&table=t_{uuid.uuid4().hex[:8]}"


def made(name: str, count: int = 10) -> PostgresIndex:
    index = PostgresIndex.create(name, family="gaussian", dim=4, variances=1)
    index.add(GALLERY[:count], names(count), metadata=[{"shelf": row % 3} for row in range(count)])
    return index


@pytest.mark.parametrize("step", ["insert", "write_parts", "delete_rows"])
def test_a_change_that_fails_anywhere_leaves_no_trace(
    name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike where there are no transactions, nobody has to clear anything away."""
    with made(name) as index:
        before = index.search(GALLERY, 10).row, index.ids()
        work = getattr(PostgresDriver, step)

        def cut(*given: object) -> None:
            work(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PostgresDriver, step, cut)
            with pytest.raises(KeyboardInterrupt):
                index.update(GALLERY[20:24], names(4))
        assert [row for row, _ in index._driver.labels(0, 99)] == list(range(10))
        assert torch.equal(index.search(GALLERY, 10).row, before[0])
        index.update(GALLERY[20:24], names(4))
        assert (len(index), index.rows.tolist()) == (10, [*range(4, 14)])


def test_metadata_can_be_asked_for_in_sql(name: str) -> None:
    import psycopg

    address = Address.parse(name)
    with made(name) as index, psycopg.connect(address.server) as connection:
        found = connection.execute(
            f"SELECT id FROM {address.table} WHERE (facts ->> 'shelf')::int = 2 ORDER BY row"
        ).fetchall()
        assert [one for (one,) in found] == index.ids(index.rows_where({"shelf": 2}))


def test_a_table_may_be_called_as_words_of_sql_are(server: str) -> None:
    with made(f"{server}&table=user") as index:
        assert (len(index), index.search(GALLERY[:1], 1).row.tolist()) == (10, [[0]])
    with PostgresIndex.open(f"{server}&table=user") as index:
        assert index.stats()["bytes"] > 0


def test_one_writer_the_last_whose_changes_wait_for_each_other(name: str) -> None:
    with made(name) as first, PostgresIndex.open(name, writable=True) as second:
        with pytest.raises(StoreError, match="was opened for writing by another since"):
            first.remove(["item 0"])
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda row: second.add(GALLERY[row : row + 1], names(1, row)), range(10, 30)))
        assert (len(first), first.rows.tolist()) == (30, list(range(30)))


def test_hnsw_finds_nearly_everything(name: str) -> None:
    gallery, queries = drawn("vmf", 2000, dim=16, seed=1), drawn("vmf", 50, dim=16, seed=2)
    with create_index_at(name, family="vmf", dim=16, kind="hnsw") as index:
        index.add(gallery, names(2000))
        for score in ("direction", "expected-distance"):
            hits = index.search(queries, 10, score=score)  # type: ignore[arg-type]
            values = queries.direction @ gallery.direction.T
            values = values * gallery.resultant if score == "expected-distance" else values
            exact = values.topk(10).indices
            pairs = zip(hits.row.tolist(), exact.tolist(), strict=True)
            assert sum(len(set(own) & set(wanted)) for own, wanted in pairs) >= 450
        assert (index.stats()["searched_by"], index.stats()["recall@10"]) == ("hnsw", None)


def test_what_it_cannot_be_or_take_is_refused(name: str) -> None:
    import psycopg

    for wrong in ("postgres:", "postgres:there", f"{name}-b", "postgres://h/d?table=A"):
        with pytest.raises(InputError, match="is no address of an index in PostgreSQL"):
            open_index(wrong)
    with pytest.raises(InputError, match="'auto', 'flat' or 'hnsw', got kind 'ivf'"):
        create_index_at(name, family="point", dim=4, kind="ivf")
    with pytest.raises(InputError, match="at most 16,000 numbers per vector"):
        create_index_at(name, family="point", dim=20_000)
    with pytest.raises(StoreError, match="did not do what was asked"):
        open_index("postgres://nobody@127.0.0.1:9/none")
    with made(name) as index, pytest.raises(InputError, match="zero character"):
        index.add(GALLERY[20:21], ["new"], metadata=[{"a": "\0"}])
    address = Address.parse(f"{name}_other")
    with psycopg.connect(address.server) as connection:
        connection.execute(f"CREATE TABLE {address.table} (mine int)")
    with pytest.raises(InputError, match="that is none of doubtless's"):
        create_index_at(f"{name}_other", family="point", dim=4)


@pytest.mark.parametrize(
    "address",
    [
        "postgres://me:secret@host/d",
        "postgres://host/d?user=me&password=secret",
        "qdrant:http://me:secret@host:1",
        "milvus:http://me:secret@host:1",
    ],
)
def test_no_address_has_a_password_in_it(address: str) -> None:
    """It would stand in sentences, logs and the list of processes."""
    with pytest.raises(InputError, match="put the password into") as refused:
        open_index(address)
    assert "secret" not in str(refused.value)


def test_names_of_one_index_are_one_place() -> None:
    one, other = "postgres://me@h/d?port=1&host=x", "postgres://me@h/d?host=x&table=doubtless&port=1"
    assert PostgresIndex.place(one) == PostgresIndex.place(other)
    assert PostgresIndex.place(one) != PostgresIndex.place(f"{one}&table=b")


def test_connections_that_died_while_nobody_used_them_are_replaced(name: str) -> None:
    """A server that was restarted is asked again, and nobody is told."""
    import psycopg

    with made(name) as index:
        with ThreadPoolExecutor(3) as threads:
            before = list(threads.map(lambda _: index.search(GALLERY, 10).row, range(12)))
        with psycopg.connect(Address.parse(name).server, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchone()
        assert ended is not None
        assert ended[0] >= 1
        assert torch.equal(index.search(GALLERY, 10).row, before[0])
        index.add(GALLERY[20:21], ["new"])
        assert len(index) == 11


def test_a_connection_that_dies_within_a_change_takes_the_change_with_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = PostgresDriver.write_parts

    def cut(self: PostgresDriver, parts: Sequence[Part]) -> None:
        with self._sessions.transaction() as connection:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        work(self, parts)

    with made(name) as index:
        with monkeypatch.context() as patch:
            patch.setattr(PostgresDriver, "write_parts", cut)
            with pytest.raises(StoreError, match="nothing that was stored before is lost"):
                index.update(GALLERY[20:24], names(4))
        assert [row for row, _ in index._driver.labels(0, 99)] == list(range(10))
        index.update(GALLERY[20:24], names(4))
        assert (len(index), index.rows.tolist()) == (10, [*range(4, 14)])

"""A server whose disk is full: it answers, removes, says what it cannot store, and is ready when there is room."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from doubtless.gallery.safekeeping import check
from doubtless.server.service.service import Service
from tests.reference.small_disk import fill, free, small_disk
from tests.server.asking import asked, check_problem


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 80) as mounted:
        yield mounted


@pytest.fixture
def service(served_index: Path, disk: Path) -> Iterator[Service]:
    with Service.open(shutil.copytree(served_index, disk / "index")) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore:The cache of the index")
def test_it_goes_on_and_takes_things_out(service: Service, disk: Path, picture: bytes) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        async def store(id: str) -> httpx.Response:
            return await client.post("/v1/items", files={"image": picture}, data={"id": id})

        for id in ("one", "two"):
            assert (await store(id)).status_code == 201
        filler = fill(disk)
        assert free(disk) == 0
        problem = check_problem(await store("three"), 507)
        assert "no room left" in problem["detail"]
        found = await client.post("/v1/search", files={"image": picture}, data={"k": "5"})
        assert found.status_code == 200
        said = {"answer": found.json()["id"], "said": "right"}
        check_problem(await client.post("/v1/feedback", json=said), 507)
        check_problem(await client.post("/v1/items/two/label", json={"label": "class-1"}), 507)
        assert "disk is full" in check_problem(await client.get("/readyz"), 503)["detail"]
        assert (await client.delete("/v1/items/one")).status_code == 204
        fill(disk)
        first = (await client.get("/v1/items?limit=1")).json()["items"][0]["id"]
        assert (await client.delete(f"/v1/items/{first}")).status_code == 204
        assert (await client.get("/v1/items/two/image")).content == picture
        filler.unlink()
        assert (await store("three")).status_code == 201

    asked(service, talk)
    assert len(service.gallery) == 120 + 2 - 1
    service.close()
    index = disk / "index"
    assert not [file for file in (index / "images").rglob("*") if file.name.startswith(".")]
    assert len([file for file in (index / "images").glob("??/*") if file.is_file()]) == 2
    assert check(index, thorough=True).is_whole

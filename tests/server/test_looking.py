"""Looking through a gallery over HTTP: pages, labels, one item, small pictures, examples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.server.service.service import Service
from doubtless.server.service.thumbnails import Thumbnails, encoded, fitted
from tests.server.asking import asked, check_problem, send


@pytest.fixture(scope="module")
def looked_at(served_index: Path) -> Any:
    with Service.open(served_index, read_only=True) as opened:
        yield opened


def get(service: Service, address: str, **query: Any) -> Any:
    reply = send(service, "GET", address, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_pages_hold_every_item_once_in_order(looked_at: Service) -> None:
    async def turn(client: httpx.AsyncClient) -> list[dict[str, Any]]:
        pages, after = [], {}
        while True:
            pages.append((await client.get("/v1/items", params={"limit": 50, **after})).json())
            if pages[-1]["next"] is None:
                return pages
            after = {"after": pages[-1]["next"]}

    pages = asked(looked_at, turn)
    assert [len(page["items"]) for page in pages] == [50, 50, 20]
    assert {page["total"] for page in pages} == {120}
    ids = [item["id"] for page in pages for item in page["items"]]
    assert ids == [item.id for item in looked_at.gallery.items()]
    assert all(item["has_image"] for page in pages for item in page["items"])


def test_items_are_found_by_label_text_and_metadata(service: Service, picture: bytes) -> None:
    service.add(
        "Straße-1",
        picture,
        label="Käse 100%",
        metadata={"shelf": 3, "tags": ["Ökologisch", {"x": "deep_er"}]},
    )
    service.add("b", picture, label=None, metadata={"shelf": 33, "sold": True, "shelf_name": "other"})
    found = {
        "käse": ["Straße-1"], "STRASSE": [], "straß": ["Straße-1"], "100%": ["Straße-1"], "1%0": [],
        "öko": ["Straße-1"], "deep_er": ["Straße-1"], "deepxer": [], "shelf_name": [], "OTHER": ["b"], "33": ["b"],
        "true": [], "'": [], '"': [], "\\": [],
    }  # fmt: skip
    for text, ids in found.items():
        told = get(service, "/v1/items", text=text)
        assert [item["id"] for item in told["items"] if item["id"] in ("Straße-1", "b")] == ids, text
    assert get(service, "/v1/items", label="class-2")["total"] == 20
    assert get(service, "/v1/items", label=["class-2", "class-3"])["total"] == 40
    assert get(service, "/v1/items", text="CLASS-2")["total"] == 20
    assert get(service, "/v1/items", where='{"shelf": [3, 33]}')["total"] == 2
    both = get(service, "/v1/items", where='{"shelf": [3, 33]}', text="käse")
    assert (both["total"], both["items"][0]["metadata"]["shelf"]) == (1, 3)
    service.remove(["b"])
    assert get(service, "/v1/items", where='{"shelf": [3, 33]}')["total"] == 1


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0}, {"limit": 201}, {"after": "x"}, {"after": "-1"}, {"where": "{"}, {"where": "[1]"},
        {"where": '{"x": [[1]]}'}, {"text": "a\0"}, {"label": "a", "where": '{"label": "b"}'}, {"limit": "many"},
    ],
)  # fmt: skip
def test_what_cannot_be_listed_is_a_problem(looked_at: Service, query: dict[str, Any]) -> None:
    check_problem(send(looked_at, "GET", "/v1/items", params=query), 422)


def test_labels_are_counted_and_searched(looked_at: Service) -> None:
    told = get(looked_at, "/v1/labels")
    assert (told["total"], {one["count"] for one in told["labels"]}) == (6, {20})
    assert get(looked_at, "/v1/labels", text="S-4") == {
        "labels": [{"label": "class-4", "count": 20}],
        "total": 1,
    }
    assert len(get(looked_at, "/v1/labels", limit=2)["labels"]) == 2


def test_an_item_is_told_of_as_if_it_were_not_there(looked_at: Service) -> None:
    item = looked_at.gallery.items({"label": "class-1"})[3]
    told = get(looked_at, f"/v1/items/{item.id}/about", k=5)
    expected = looked_at.gallery.neighbours(item.id, 5)
    assert told["label"] == "class-1"
    assert [one["id"] for one in told["neighbours"]] == [hit.id for hit in expected.hits]
    assert item.id not in {one["id"] for one in told["neighbours"]}
    assert told["answer"]["decision"] == expected.decision
    assert told["doubt"] == pytest.approx(expected.doubt)
    assert set(told["answer"]["unmeasured"]) == {"image", "model", "gallery", "distance", "novelty"} - set(
        told["parts"]
    )
    own = {one["label"]: one["probability"] for one in told["answer"]["labels"]}["class-1"]
    assert told["own_probability"] == pytest.approx(own)
    check_problem(send(looked_at, "GET", "/v1/items/nothing/about"), 404)


def test_the_only_item_has_no_neighbour(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "one", embedding=Embedding.point(torch.eye(1, 8)), ids=["a/b"]) as gallery:
        service = Service(gallery)
        told = get(service, "/v1/items/a%2Fb/about")
        assert (told["id"], told["answer"], told["neighbours"]) == ("a/b", None, [])
        assert get(service, "/v1/examples") == {"items": [], "pictures": []}
        check_problem(send(service, "GET", "/v1/items/a%2Fb/thumbnail"), 404)
        service.close()


def photo(kind: str, width: int, height: int, **how: Any) -> bytes:
    file = io.BytesIO()
    ramp = np.linspace(0, 255, width, dtype=np.uint8)[None, :, None].repeat(height, 0).repeat(3, 2)
    Image.fromarray(ramp).save(file, kind, **how)
    return file.getvalue()


def shown(reply: httpx.Response) -> Image.Image:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "image/webp"
    return Image.open(io.BytesIO(reply.content))


def test_thumbnails_fit_and_are_never_enlarged(service: Service) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # lies on its side
    service.add("wide", photo("JPEG", 1000, 500))
    service.add("turned", photo("JPEG", 1000, 500, exif=turned))
    service.add("small", photo("PNG", 40, 30))
    clear = io.BytesIO()
    Image.new("RGBA", (300, 300), (0, 0, 0, 0)).save(clear, "PNG")
    service.add("clear", clear.getvalue())
    sizes = {}
    for id in ("wide", "turned", "small"):
        for size in (96, 192, 384):
            sizes[id, size] = shown(
                send(service, "GET", f"/v1/items/{id}/thumbnail", params={"size": size})
            ).size
    assert [sizes["wide", size] for size in (96, 192, 384)] == [(96, 48), (192, 96), (384, 192)]
    assert sizes["turned", 96] == (48, 96)
    assert {sizes["small", size] for size in (96, 192, 384)} == {(40, 30)}
    light = shown(send(service, "GET", "/v1/items/clear/thumbnail")).convert("RGB").getpixel((50, 50))
    assert min(light) > 250  # on white, as the model sees it
    check_problem(send(service, "GET", "/v1/items/wide/thumbnail", params={"size": 100}), 422)
    check_problem(send(service, "GET", "/v1/items/nothing/thumbnail"), 404)


def test_a_browser_keeps_a_thumbnail_until_the_image_changes(service: Service, picture: bytes) -> None:
    service.add("one", picture)
    first = send(service, "GET", "/v1/items/one/thumbnail")
    assert first.headers["cache-control"].startswith("private")
    kept = {"If-None-Match": first.headers["etag"]}
    again = send(service, "GET", "/v1/items/one/thumbnail", headers=kept)
    assert (again.status_code, again.content) == (304, b"")
    service.remove(["one"])
    service.add("one", photo("PNG", 60, 60))
    changed = send(service, "GET", "/v1/items/one/thumbnail", headers=kept)
    assert shown(changed).size == (60, 60)


def test_what_is_no_image_has_no_thumbnail(service: Service, own_index: Path, picture: bytes) -> None:
    service.add("one", picture)
    path = own_index / str(service.items.get("one").path)
    path.write_bytes(b"GIF89a" + b"\0" * 100)
    check_problem(send(service, "GET", "/v1/items/one/thumbnail"), 404)
    path.unlink()
    check_problem(send(service, "GET", "/v1/items/one/thumbnail"), 404)
    assert not get(service, "/v1/items", text="one")["items"][-1]["has_image"]


def test_thumbnails_remember_so_many_bytes_and_no_more(service: Service) -> None:
    pixels = torch.randint(0, 256, (3, 90, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    size = len(encoded(fitted(pixels, 96)))
    small = Thumbnails(service.limits, most_bytes=3 * size)
    for number in range(5):
        small._remember((str(number), 96), b"x" * size)
    assert [small.known(str(number), 96) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    small.known("2", 96)
    small._remember(("5", 96), b"x" * size)
    assert small.known("2", 96) is not None
    assert small.known("3", 96) is None
    small.close()


def test_examples_are_of_different_labels(looked_at: Service) -> None:
    items = get(looked_at, "/v1/examples", limit=4)["items"]
    assert len({item["label"] for item in items}) == 4
    assert all(item["has_image"] for item in items)
    assert len(get(looked_at, "/v1/examples", limit=24)["items"]) == 6
    check_problem(send(looked_at, "GET", "/v1/examples/0/image"), 404)

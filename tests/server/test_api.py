"""The API in its usual course: searching, comparing, embedding, items, and who may do so."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.server.http.security import check_binding
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem, send

TOKEN = "a-token-that-nobody-guesses"


def test_a_search_is_what_the_answerer_says(
    service: Service, picture: bytes, tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "query.png").write_bytes(picture)
    wanted = Gallery(service.gallery.index, model=tiny_run).ask(tmp_path / "query.png", 3, confidence=0.8)
    found = send(
        service, "POST", "/v1/search", files={"image": picture}, data={"k": "3", "confidence": "0.8"}
    ).json()
    assert found["decision"] == wanted.decision
    assert [one["label"] for one in found["labels"]] == [one.label for one in wanted.labels]
    assert sum(one["probability"] for one in found["labels"]) + found["none"] == pytest.approx(1, abs=1e-6)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in wanted.hits]
    for hit, same in zip(found["hits"], wanted.hits, strict=True):
        assert hit["probability"] == pytest.approx(same.probability, abs=1e-6)
        assert hit["score"] == pytest.approx(same.score, abs=1e-5)
        assert "path" not in hit
    assert found["reason"] == wanted.reason
    assert found["covering_set"] == (None if wanted.covering_set is None else list(wanted.covering_set))


def test_an_image_and_its_embedding_find_the_same(service: Service, picture: bytes) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        by_image = await client.post("/v1/search", files={"image": picture})
        embedded = (await client.post("/v1/embed", files={"image": picture})).json()
        body = {"embedding": {"location": embedded["location"]}}
        return by_image, await client.post("/v1/search", json=body)

    by_image, by_embedding = asked(service, talk)
    assert by_image.status_code == by_embedding.status_code == 200
    assert [hit["id"] for hit in by_image.json()["hits"]] == [
        hit["id"] for hit in by_embedding.json()["hits"]
    ]


def test_filters_choose_what_is_searched(service: Service, picture: bytes) -> None:
    where = {"label": ["class-1", "class-2"]}
    found = send(
        service, "POST", "/v1/search", files={"image": picture}, data={"where": json.dumps(where)}
    ).json()
    assert {hit["label"] for hit in found["hits"]} <= set(where["label"])
    assert found["reason"].startswith("No probability: for the part that was searched there are 40 ")
    assert found["probability"] is None
    body = {"embedding": {"location": [1.0] * 8}, "where": {"nothing": 3}}
    empty = send(service, "POST", "/v1/search", json=body).json()
    assert empty["decision"] == "not-in-gallery"
    assert empty["hits"] == []


def test_photos_of_one_thing_are_one_question(service: Service, picture: bytes) -> None:
    files = [("image", picture), ("image", picture), ("image", picture)]
    answer = send(service, "POST", "/v1/together", files=files, data={"k": "4"}).json()
    assert len(answer["hits"]) == 4
    assert len({hit["id"] for hit in answer["hits"]}) == 4
    assert answer["labels"]
    body = {"embeddings": [{"location": [1.0] * 8}, {"location": [0.5] * 8}]}
    assert send(service, "POST", "/v1/together", json=body).json()["decision"]
    check_problem(send(service, "POST", "/v1/together", data={"k": "4"}, files={"other": picture}), 422)


def test_comparing_two_images(service: Service, picture: bytes) -> None:
    found = send(
        service, "POST", "/v1/compare", files={"first": picture, "second": picture}, data={"prior": "0.2"}
    ).json()
    assert found["decision"] == "cannot-tell"  # a handful of labels is too few to promise 5 %
    assert found["same"] is None
    assert "cannot be promised" in found["reason"]
    assert found["prior"] == 0.2
    assert found["cosine"] == pytest.approx(1, abs=1e-5)
    first, second = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).tolist()
    body = {"first": {"location": first}, "second": {"location": second}}
    found = send(service, "POST", "/v1/compare", json=body).json()
    one, other = Embedding.point(torch.tensor([first])), Embedding.point(torch.tensor([second]))
    assert found["expected_squared_distance"] == pytest.approx(
        float(one.expected_squared_distance(other)), rel=1e-4
    )


def test_an_item_of_an_image_is_found_shown_and_removed(service: Service, own_index: Path) -> None:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((12, 12)).save(file, "JPEG")

    async def talk(client: httpx.AsyncClient) -> None:
        data = {"id": "new/one?", "label": "stripe", "metadata": json.dumps({"shelf": 3})}
        stored = await client.post(
            "/v1/items", files={"image": ("../../evil.py", file.getvalue())}, data=data
        )
        assert stored.status_code == 201
        assert stored.json() == {"id": "new/one?", "image": "/v1/items/new%2Fone%3F/image"}
        found = (await client.post("/v1/search", files={"image": file.getvalue()}, data={"k": "1"})).json()
        assert found["hits"][0]["id"] == "new/one?"
        assert found["hits"][0]["metadata"] == {"shelf": 3}
        shown = await client.get(found["hits"][0]["image"])
        assert shown.content == file.getvalue()
        assert shown.headers["content-type"] == "image/jpeg"
        assert shown.headers["x-content-type-options"] == "nosniff"
        again = await client.post("/v1/items", files={"image": file.getvalue()}, data=data)
        check_problem(again, 409)
        assert (await client.delete("/v1/items/new%2Fone%3F")).status_code == 204
        check_problem(await client.get("/v1/items/new%2Fone%3F/image"), 404)
        check_problem(await client.delete("/v1/items/new%2Fone%3F"), 404)

    asked(service, talk)
    assert [path for path in (own_index / "images").rglob("*") if path.is_file()] == []
    assert not list(own_index.parent.rglob("evil*"))


def test_an_item_of_an_embedding_gets_an_id(service: Service) -> None:
    stored = send(service, "POST", "/v1/items", json={"embedding": {"location": [1.0] * 8}, "label": "x"})
    assert stored.status_code == 201
    assert service.items.get(stored.json()["id"]).label == "x"
    check_problem(send(service, "GET", f"/v1/items/{stored.json()['id']}/image"), 404)


def test_images_of_a_gallery_are_shown_by_id_only(service: Service, served_index: Path) -> None:
    id = service.gallery.index.ids()[0]
    file = served_index.parent / "pictures" / id
    assert send(service, "GET", f"/v1/items/{id}/image").content == file.read_bytes()
    for address in (
        "/v1/items/../../etc/passwd/image",
        "/v1/items/%2Fetc%2Fpasswd/image",
        f"/v1/items/{file}/image",
    ):
        check_problem(send(service, "GET", address), 404)


def test_only_images_below_the_root_are_shown(own_index: Path, served_index: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    outside = tmp_path / "outside.png"
    Image.new("L", (3, 3)).save(outside)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.png").symlink_to(outside)
    with FolderIndex.open(own_index, writable=True) as index:
        paths = [secret, outside, tmp_path / "root" / "link.png", "images/../../secret.txt"]
        index.add(Embedding.point(torch.eye(8)[:4]), ["a", "b", "c", "d"], paths=paths)
    with Service.open(own_index, image_root=tmp_path / "root") as service:
        for id in "abcd":
            check_problem(send(service, "GET", f"/v1/items/{id}/image"), 404)
    with Service.open(own_index) as service:  # no root: whoever made the index said where; but only images
        check_problem(send(service, "GET", "/v1/items/a/image"), 404)
        assert send(service, "GET", "/v1/items/b/image").status_code == 200


def test_info_says_what_is_served_and_names_no_path(service: Service, own_index: Path) -> None:
    found = send(service, "GET", "/v1/info")
    assert found.json()["items"] == 120
    assert found.json()["model"]["method"] == "deterministic"
    assert found.json()["calibrated"] is True
    assert str(own_index.parent) not in found.text
    assert send(service, "GET", "/healthz").json() == {"status": "ok"}


def test_a_read_only_service_changes_nothing(own_index: Path, picture: bytes) -> None:
    with (
        Service.open(own_index, read_only=True) as service,
        FolderIndex.open(own_index, writable=True) as writer,
    ):
        check_problem(send(service, "POST", "/v1/items", files={"image": picture}), 403)
        id = service.gallery.index.ids()[0]
        check_problem(send(service, "DELETE", f"/v1/items/{id}"), 403)
        check_problem(send(service, "POST", "/v1/recalibrate"), 403)
        assert len(service.gallery.index) == 120
        writer.remove([id])  # what another process changes is seen
        assert send(service, "GET", "/v1/info").json()["items"] == 119


def test_a_service_recalibrates_itself_and_goes_on(service: Service, picture: bytes) -> None:
    for number in range(60):
        location = torch.randn(8, generator=torch.Generator().manual_seed(number)).tolist()
        body = {"embedding": {"location": location}, "label": f"class-{number % 6}"}
        assert send(service, "POST", "/v1/items", json=body).status_code == 201
    info = send(service, "GET", "/v1/info").json()
    assert info["change"]["new"] == 60
    assert "withdrawn" in info["withdrawn"]
    done = send(service, "POST", "/v1/recalibrate").json()
    assert (done["items"], done["new"], done["gone"]) == (180, 60, 0)
    assert send(service, "GET", "/v1/info").json()["withdrawn"] is None
    asked = send(service, "POST", "/v1/search", files={"image": picture}).json()
    assert not any("withdrawn" in warning for warning in asked["warnings"])


def test_a_token_is_needed_where_there_is_one(service: Service, picture: bytes) -> None:
    def status(**headers: str | bytes) -> int:
        answer = send(service, "POST", "/v1/search", files={"image": picture}, headers=headers, token=TOKEN)
        if answer.status_code != 200:
            check_problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status_code

    assert status() == 401
    assert status(Authorization=f"Bearer {TOKEN}") == 200
    for wrong in (
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        TOKEN,
        "Bearer",
        "Basic !!!",
        "Bearer é".encode(),
    ):
        assert status(Authorization=wrong) == 401
    assert send(service, "GET", "/v1/info", auth=("anyone", TOKEN), token=TOKEN).status_code == 200
    assert send(service, "GET", "/v1/info", auth=("anyone", "wrong"), token=TOKEN).status_code == 401
    for address in ("/docs", "/openapi.json", "/v1/items/x/image", "/nowhere"):
        assert send(service, "GET", address, token=TOKEN).status_code == 401
    assert send(service, "GET", "/healthz", token=TOKEN).status_code == 200


def test_pages_of_strangers_cannot_ask(service: Service, picture: bytes) -> None:
    files = {"image": picture}
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        check_problem(send(service, "POST", "/v1/items", files=files, headers=headers), 403)
    own = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    assert send(service, "POST", "/v1/search", files=files, headers=own).status_code == 200
    check_problem(send(service, "GET", "/v1/info", base="http://evil.example"), 421)
    assert send(service, "GET", "/v1/info", base="http://localhost:8000").status_code == 200
    shown = send(service, "GET", "/v1/info", headers={"Origin": "https://evil.example"})
    assert not [name for name in shown.headers if name.startswith("access-control")]
    assert len(service.gallery.index) == 120


def test_other_hosts_need_a_token() -> None:
    check_binding("127.0.0.1", None)
    check_binding("::1", None)
    check_binding("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):
        with pytest.raises(InputError, match="DOUBTLESS_TOKEN"):
            check_binding(host, None)
    with pytest.raises(InputError, match="16"):
        check_binding("0.0.0.0", "short")


def test_an_index_of_vectors_is_served_without_a_model(tmp_path: Path, picture: bytes) -> None:
    with FolderIndex.create(tmp_path / "vectors", family="gaussian", dim=3) as index:
        index.add(Embedding.gaussian(torch.eye(3), torch.full((3, 3), 0.1)), ["a", "b", "c"])
    with Service.open(tmp_path / "vectors") as service:
        body = {"embedding": {"location": [1.0, 0.1, 0.0], "variance": [0.1, 0.1, 0.2]}, "k": 2}
        found = send(service, "POST", "/v1/search", json=body).json()
        assert [hit["id"] for hit in found["hits"]] == ["a", "b"]
        assert found["hits"][0]["probability"] is None
        assert "not calibrated" in found["warnings"][0]
        problem = check_problem(send(service, "POST", "/v1/search", files={"image": picture}), 422)
        assert "embeddings" in problem["detail"]
        lacking = {"embedding": {"location": [1.0, 0.1, 0.0]}}
        assert "variance" in check_problem(send(service, "POST", "/v1/search", json=lacking), 422)["detail"]


def test_the_documentation_needs_nothing_from_outside(service: Service) -> None:
    for address in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        found = send(service, "GET", address)
        assert found.status_code == 200
        assert "://" not in found.text.replace("http://www.w3.org", "")
        assert found.headers["content-security-policy"].startswith("default-src 'none'")
    document = send(service, "GET", "/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/search", "/v1/compare", "/v1/embed", "/v1/items", "/v1/items/{id}", "/v1/items/{id}/image", "/v1/info",
        "/v1/feedback", "/v1/status", "/healthz", "/metrics", "/readyz", "/v1/recalibrate", "/v1/together",
        "/v1/items/{id}/about",
        "/v1/items/{id}/thumbnail", "/v1/items/{id}/label", "/v1/labels", "/v1/examples", "/v1/map", "/v1/review",
        "/v1/examples/{number}/image", "/v1/calibration", "/v1/answers/{id}/image",
    }  # fmt: skip
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["description"]
            assert all(reply["description"] for reply in operation["responses"].values())
            for kind, body in operation.get("requestBody", {}).get("content", {}).items():
                assert kind == "multipart/form-data" or body["example"]

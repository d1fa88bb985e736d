"""A gallery seen as a whole over HTTP: map, calibration, review; and relabelling what a review finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.gallery.survey import mapped, risk_coverage, survey, unit_square
from doubtless.server.service.service import Service
from tests.ingest.pictures import png, tiny_images
from tests.server.asking import check_problem, send


@pytest.fixture(scope="module")
def seen(served_index: Path) -> Iterator[Service]:
    with Service.open(served_index, read_only=True) as opened:
        yield opened


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Service]:
    """Vectors without labels, images or calibration."""
    vectors = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    gallery = Gallery.create(tmp_path / "bare", embedding=Embedding.point(vectors))
    with Service(gallery) as service:
        yield service


def get(service: Service, address: str, **query: Any) -> Any:
    reply = send(service, "GET", address, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_the_map_shows_every_item_once_with_its_doubt(seen: Service) -> None:
    told = get(seen, "/v1/map")
    assert (told["sampled"], told["total"], told["by"]) == (120, 120, "probability")
    assert {point["id"] for point in told["points"]} == {item.id for item in seen.gallery.items()}
    places = np.array([[point["x"], point["y"]] for point in told["points"]])
    assert places.min() >= 0
    assert places.max() <= 1
    assert (places.max(0) - places.min(0)).max() == pytest.approx(1)
    point = told["points"][7]
    assert point["has_image"]
    assert point["doubt"] == pytest.approx(seen.gallery.neighbours(point["id"]).doubt, abs=1e-5)
    near = [_nearest_label(told["points"], place) for place in range(120)]
    assert np.mean([label == told["points"][place]["label"] for place, label in enumerate(near)]) > 0.5


def _nearest_label(points: list[dict[str, Any]], place: int) -> str:
    own = points[place]
    others = [one for number, one in enumerate(points) if number != place]
    return min(others, key=lambda one: (one["x"] - own["x"]) ** 2 + (one["y"] - own["y"]) ** 2)["label"]


def test_a_survey_draws_no_more_than_it_may(seen: Service) -> None:
    some = survey(seen.gallery, most=50)
    assert (len(some.items), len(some.doubt), some.total) == (50, 50, 120)
    assert len({item.id for item in some.items}) == 50
    assert len(mapped(seen.gallery, some, most=20).places) == 20
    doubts = some.doubt[some.least_certain(10)]
    assert list(doubts) == sorted(some.doubt, reverse=True)[:10]


def test_one_spot_stays_in_the_square() -> None:
    assert unit_square(np.zeros((3, 2))).tolist() == [[0.5, 0.5]] * 3


def test_calibration_tells_its_curves_and_its_promise(seen: Service) -> None:
    told = get(seen, "/v1/calibration")
    assert (told["calibrated"], told["by"]) == (True, "labels")
    points = told["reliability"]["points"]
    assert sum(point["share"] for point in points) == pytest.approx(1)
    assert all(0 <= point["probability"] <= 1 and 0 <= point["right"] <= 1 for point in points)
    assert told["reliability"]["queries"] == 120
    promised, risk = told["risk_coverage"]["promised"], told["risk_coverage"]
    assert promised["bound"] == told["promise"]["bound"]
    near = min(risk["points"], key=lambda one: abs(one["coverage"] - promised["coverage"]))
    assert near["wrong"] == pytest.approx(promised["wrong"], abs=0.02)  # it lies on its curve
    for curve in (risk["points"], risk["known"]):
        coverage = [point["coverage"] for point in curve]
        assert coverage == sorted(coverage)
    assert told["promise"]["sentence"]
    assert told["standing"] == "too little was said"
    assert told["withdrawn"] is None
    assert told["rests_on"]["queries"] == 120


def test_what_is_not_calibrated_has_no_curves(bare: Service) -> None:
    told = get(bare, "/v1/calibration")
    nothing = ("by", "reliability", "risk_coverage", "promise", "rests_on", "standing", "withdrawn", "change")
    assert not told["calibrated"]
    assert {told[name] for name in nothing} == {None}
    assert risk_coverage(bare.gallery) is None
    drawn = get(bare, "/v1/map")
    assert drawn["by"] == "distance"
    assert all(point["doubt"] is not None and not point["has_image"] for point in drawn["points"])
    review = get(bare, "/v1/review", limit=5)
    assert review["notes"] == ["Labels are judged once the gallery is calibrated on them."]
    assert len(review["least_certain"]) == 5


def test_an_empty_gallery_has_an_empty_map(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "none", embedding=Embedding.point(torch.zeros(0, 8)), ids=[])
    with Service(gallery) as service:
        assert get(service, "/v1/map") == {"points": [], "sampled": 0, "total": 0, "by": "distance"}
        assert get(service, "/v1/review")["questions"] == []
        assert get(service, "/v1/calibration")["reliability"] is None


def test_a_wrong_label_is_found_put_right_and_not_asked_for_again(
    service: Service, picture: bytes, tiny_npz: Path
) -> None:
    service.add("odd", picture, label="class-3")  # it shows class-0
    service.add("twin", picture, label="class-0")
    first = get(service, "/v1/review", limit=50)
    asked = [
        one for one in first["questions"] if "odd" in (one["id"].removeprefix("item:"), _id(one["other"]))
    ]
    assert asked, first["questions"]
    assert {one["kind"] for one in asked} <= {"label", "duplicate"}
    assert all(one["item"] is not None and one["answer"] is None for one in asked)
    assert first["found"]["answer"] == 0
    doubts = [one["doubt"] for one in first["least_certain"]]
    assert doubts == sorted(doubts, reverse=True)

    known = next(one for one in first["questions"] if one["kind"] == "duplicate")
    own = send(service, "POST", f"/v1/items/{known['item']['id']}/label", json={"label": known["label"]})
    assert own.json()["label"] == known["label"]
    again = get(service, "/v1/review", limit=50)
    assert known["id"] not in {one["id"] for one in again["questions"] if one["label"] == known["label"]}

    done = send(service, "POST", "/v1/items/odd/label", json={"label": "class-0"})
    assert done.status_code == 200, done.text
    assert done.json() == {"id": "odd", "label": "class-0", "metadata": {}, "has_image": True}
    assert service.items.get("odd").label == "class-0"
    assert service.image_of("odd").data == picture
    later = get(service, "/v1/review", limit=50)
    assert all(one["label"] != "class-3" for one in later["questions"] if one["id"] == "item:odd")


def _id(item: dict[str, Any] | None) -> str | None:
    return None if item is None else item["id"]


def test_what_cannot_be_relabelled_is_a_problem(service: Service, served_index: Path) -> None:
    check_problem(send(service, "POST", "/v1/items/nothing/label", json={"label": "class-0"}), 404)
    for body in ({}, {"label": " "}, {"label": 3}, {"label": "a", "more": 1}):
        check_problem(send(service, "POST", "/v1/items/nothing/label", json=body), 422)
    check_problem(send(service, "POST", "/v1/items/nothing/label", data={"label": "a"}), 415)
    id = service.gallery.items(count=1)[0].id
    assert send(service, "POST", f"/v1/items/{id}/label", json={"label": None}).json()["label"] is None
    with Service.open(served_index, read_only=True) as other:
        check_problem(send(other, "POST", f"/v1/items/{id}/label", json={"label": "a"}), 403)


def test_it_is_worked_out_once_for_every_state(service: Service, picture: bytes) -> None:
    first, looked = service.overview.map().result(), service.overview.looked().result()
    assert service.overview.map().result() is first
    assert service.overview.looked().result() is looked
    service.add("new", picture, label="class-0")
    second = service.overview.map().result()
    assert second is not first
    assert second.survey.total == 121
    service.recalibrate()
    assert service.overview.survey().result() is not second.survey


def test_answers_that_were_drawn_wait_with_their_picture(own_index: Path, tiny_npz: Path) -> None:
    pictures = [png(image) for image in tiny_images(tiny_npz, 12)[0]]
    with Service.open(own_index, audit=1.0) as service:
        service.answer_images(pictures)
        trial = send(service, "POST", "/v1/search", files={"image": pictures[0]}, data={"trial": "true"})
        assert trial.status_code == 200
        service.judgements.close()
        questions = [
            one for one in get(service, "/v1/review", limit=100)["questions"] if one["kind"] == "answer"
        ]
        assert 0 < len(questions) <= 12
        assert all(one["item"] is None and one["id"] == f"answer:{one['answer']}" for one in questions)
        kept = send(service, "GET", questions[0]["image"])
        assert (kept.headers["content-type"], kept.content in pictures) == ("image/png", True)
        check_problem(send(service, "GET", "/v1/answers/nothing/image"), 404)

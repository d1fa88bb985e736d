"""What callers say of answers over HTTP, and what the service makes of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.server.service import judgements
from doubtless.server.service.service import Service
from tests.ingest.pictures import png, tiny_images
from tests.server.asking import asked, check_problem, send

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture
def auditing(own_index: Path) -> Iterator[Service]:
    with Service.open(own_index, audit=1.0) as opened:
        yield opened


def test_an_answer_is_judged_by_its_id_and_status_counts_it(service: Service, picture: bytes) -> None:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        told = (await client.post("/v1/search", files={"image": picture})).json()
        return [
            await client.post("/v1/feedback", json={"answer": told["id"], "said": "wrong", "who": "Ada"}),
            await client.post("/v1/feedback", json={"answer": told["id"], "label": "class-3"}),
            await client.get("/v1/status"),
        ]

    first, second, status = asked(service, talk)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["verdict"] == "wrong"
    assert (second.json()["number"], second.json()["truth"]) == (2, "class-3")
    watch = status.json()["watch"]
    assert watch["standing"] == "too little was said"
    answered = service.gallery.judgements.entries()[0].shown.decision == "answer"
    assert (watch["volunteered"], watch["given"]) == ((1, 1) if answered else (0, 0))
    assert status.json()["promise"]["bound"] == watch["promised"]


def test_a_picture_or_an_embedding_is_judged_without_an_id(service: Service, picture: bytes) -> None:
    by_image = send(service, "POST", "/v1/feedback", files={"image": picture}, data={"label": "class-0"})
    assert by_image.status_code == 201, by_image.text
    located = service.embed([picture]).location[0].tolist()
    body = {"embedding": {"location": located}, "said": "right"}
    assert send(service, "POST", "/v1/feedback", json=body).json()["verdict"] == "right"
    entries = service.gallery.judgements.entries()
    assert entries[0].truth == "class-0"
    assert service.gallery.judgements.given(service.gallery.promise_name()) == 0  # nobody has asked


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"answer": "0123456789abcdef", "said": "right"}, 404),
        ({"said": "right"}, 422),
        ({"answer": "x", "said": "perhaps"}, 422),
        ({"answer": "x", "label": " "}, 422),
        ({"answer": "x", "said": "right", "more": 1}, 422),
    ],
)
def test_what_cannot_be_judged_is_a_problem(service: Service, body: dict[str, Any], status: int) -> None:
    check_problem(send(service, "POST", "/v1/feedback", json=body), status)
    assert service.gallery.judgements.entries() == []


def test_one_word_is_needed_and_one_only(service: Service, picture: bytes) -> None:
    for said in ({}, {"said": "right", "label": "class-0"}):
        check_problem(send(service, "POST", "/v1/feedback", files={"image": picture}, data=said), 422)


def test_tokens_and_read_only_hold_for_feedback_too(own_index: Path, picture: bytes) -> None:
    with Service.open(own_index, read_only=True) as service:
        body = {"answer": "x", "said": "right"}
        check_problem(send(service, "POST", "/v1/feedback", json=body, token=TOKEN), 401)
        check_problem(send(service, "GET", "/v1/status", token=TOKEN), 401)
        check_problem(send(service, "POST", "/v1/feedback", json=body), 403)
        assert send(service, "POST", "/v1/search", files={"image": picture}).status_code == 200
        assert not service.gallery.judgements.exists


def test_what_was_drawn_is_kept_with_its_picture_and_judged_after_a_restart(
    auditing: Service, own_index: Path, tiny_npz: Path
) -> None:
    pictures = [png(image) for image in tiny_images(tiny_npz, 12)[0]]
    answers = auditing.answer_images(pictures)
    auditing.answer_images(pictures, watched=False)  # looked at again, for a slider on the page
    auditing.close()
    with Gallery.open(own_index) as gallery:
        kept = gallery.judgements.answers()
        assert [shown.id for shown, _ in kept] == [answer.id for answer in answers]
        assert all(shown.drawn and shown.thinned for shown, _ in kept)
        assert gallery.judgements.picture(kept[0][0].id) == pictures[0]
        places = [shown.place for shown, _ in kept if shown.decision == "answer"]
        assert places == list(range(len(places)))
        done = CliRunner().invoke(
            app, ["review", str(own_index), "--pictures", str(own_index.parent / "asked")]
        )
        assert done.exit_code == 0, done.output
        waiting = gallery.review(kinds=["answer"])
        written = {path.stem: path.read_bytes() for path in (own_index.parent / "asked").glob("*.png")}
        assert set(written) == {one.id.removeprefix("answer:") for one in waiting}
        assert written[waiting[0].id.removeprefix("answer:")] in pictures
        assert gallery.accept(waiting[0].id, "right")
    with Service.open(own_index) as again:
        reply = send(again, "POST", "/v1/feedback", json={"answer": answers[1].id, "said": "wrong"})
        assert reply.status_code == 201, reply.text


def test_a_trial_is_answered_alike_and_neither_counted_nor_kept(auditing: Service, picture: bytes) -> None:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        files = {"image": picture}
        tried = await client.post("/v1/search", files=files, data={"trial": "true", "k": "3"})
        located = (await client.post("/v1/embed", files=files)).json()["location"]
        more = [
            await client.post("/v1/search", json={"embedding": {"location": located}, "trial": True}),
            await client.post("/v1/together", files=[("image", picture)] * 2, data={"trial": "true"}),
            await client.post(
                "/v1/compare", files={"first": picture, "second": picture}, data={"trial": "1"}
            ),
        ]
        return [tried, *more, await client.post("/v1/search", files=files, data={"k": "3"})]

    *tried, real = asked(auditing, talk)
    assert [one.status_code for one in (*tried, real)] == [200] * 5
    assert tried[0].json() == real.json()
    auditing.judgements.close()
    kept = auditing.gallery.judgements.answers()
    assert [shown.id for shown, _ in kept] == [real.json()["id"]]
    assert auditing.gallery.judgements.given(auditing.gallery.promise_name()) <= 1


def test_what_waits_for_a_slow_disk_keeps_no_more_than_it_must(
    service: Service, picture: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that are counted late are forgotten all the same, and their pictures are not kept for that."""
    monkeypatch.setattr(judgements, "REMEMBERED", 3)
    held, count = threading.Event(), service.gallery.judgements.count

    def slowly(promise: str) -> int:
        assert held.wait(30)
        return count(promise)

    monkeypatch.setattr(service.gallery.judgements, "count", slowly)
    answers, kept = service.answer_images([picture] * 20), bytes(bytearray(picture))
    before = sys.getrefcount(kept)
    for number, answer in enumerate(answers):
        service.judgements.note(replace(answer, id=f"late {number}", decision="answer"), kept)
    assert sys.getrefcount(kept) == before
    held.set()
    service.judgements.close()
    assert len(service.judgements._recent) == 3
    assert set(service.judgements._places) <= set(service.judgements._recent)
    assert service.gallery.judgements.given(service.gallery.promise_name()) >= 20


def test_pairs_of_a_gallery_without_labels_are_asked_for_and_answered(tmp_path: Path) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(80, 16, generator=torch.Generator().manual_seed(0)))
    with Gallery.create(tmp_path / "heap", embedding=Embedding.point(vectors)) as heap:
        heap.calibrate(unlabelled=True)
    with Service.open(tmp_path / "heap") as opened:
        told = send(
            opened, "POST", "/v1/search", json={"embedding": {"location": vectors[0].tolist()}}
        ).json()
        assert [one["code"] for one in told["warning_codes"]] == ["no-labels", "nothing-answered"]
        (first, *_) = send(opened, "GET", "/v1/review", params={"limit": 5}).json()["questions"]
        assert (first["kind"], first["answer"]) == ("pair", first["id"])
        assert first["item"]["id"] != first["other"]["id"]
        said = send(opened, "POST", "/v1/feedback", json={"answer": first["answer"], "said": "wrong"})
        assert (said.status_code, said.json()["verdict"]) == (201, "wrong")
        assert send(opened, "GET", "/v1/status").json()["promise"]["bound"] is None
        unknown = send(opened, "POST", "/v1/feedback", json={"answer": "pair:nobody", "said": "wrong"})
        check_problem(unknown, 422)

"""A gallery without labels: what it says before anybody answers, what it asks, and what it promises then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery

ITEMS, THINGS = 300, 60


def made_up(seed: int, count: int, noise: float = 0.5) -> tuple[Embedding, Tensor]:
    centre = torch.randn(THINGS, 24, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    thing = torch.arange(count) % THINGS
    return Embedding.point(centre[thing] + noise * torch.randn(count, 24, generator=generator)), thing


@pytest.fixture
def shop(tmp_path: Path) -> Gallery:
    shop = Gallery.create(
        tmp_path / "shop", embedding=made_up(0, ITEMS)[0], ids=[f"p{row}" for row in range(ITEMS)]
    )
    shop.calibrate(unlabelled=True, target_error=0.15)
    return shop


def answer_all(shop: Gallery, wanted: int) -> None:
    thing, answered = made_up(0, ITEMS)[1], 0
    while answered < wanted and (questions := shop.review(25, kinds=["pair"]).questions):
        for one in questions:
            assert one.other is not None
            same = thing[int(one.id.removeprefix("pair:p"))] == thing[int(one.other[1:])]
            shop.accept(one.id, "same" if same else "different")
            answered += 1


def test_every_answer_says_what_is_assumed_and_nothing_is_promised_yet(shop: Gallery) -> None:
    with shop:
        known, _ = made_up(1, 20)
        strange = Embedding.point(torch.randn(20, 24, generator=torch.Generator().manual_seed(5)))
        told, foreign = shop.ask(known), shop.ask(strange)
        for answers in (told, foreign):
            for one in answers:
                assert [word["code"] for word in one.to_json()["warning_codes"]] == [
                    "no-labels",
                    "nothing-answered",
                ]
                assert one.promised is None
                assert one.probability is not None
                assert (one.decision == "answer") == (one.probability >= 0.5)
        mean = [sum(one.probability or 0 for one in answers) / 20 for answers in (told, foreign)]
        assert mean[0] > mean[1] + 0.1
        chances = [hit.probability for hit in told[0].hits]
        assert chances == sorted(chances, reverse=True)
        promise = shop.status()["promise"]
        assert (promise["met"], promise["bound"], promise["unknown"]) == (False, None, None)
        assert shop.status()["calibration"]["assumes"].startswith("Calibrated without labels")
        assert shop.watch().standing is None
        json.dumps(shop.status())


def test_answers_become_a_promise_at_once_and_for_whoever_opens_it(shop: Gallery) -> None:
    with shop:
        answer_all(shop, 120)
        promise = shop.status()["promise"]
        assert promise["met"]
        assert promise["bound"] == 0.15
        assert promise["sentence"].startswith("At most 15.0% of accepted hits are not the same thing")
        answers = shop.ask(made_up(2, 60)[0])
        assert {one.promised for one in answers} == {0.15}
        assert [word["code"] for word in answers[0].to_json()["warning_codes"]] == ["no-labels"]
        assert 0 < answers.decisions().count("answer") <= 60
        place = shop.folder
    with Gallery.open(place) as again:
        assert again.status()["promise"] == promise
    with Gallery.open(place, target_error=0.3) as looser:
        told = looser.status()["promise"]
        assert (told["bound"], told["coverage"] >= promise["coverage"]) == (0.3, True)


def test_another_process_notices_what_was_said(shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doubtless.gallery.base.LOOK_EVERY", 0.0)
    with shop, Gallery.open(shop.folder) as other:
        assert "0 pairs" in other.status()["promise"]["sentence"]
        answer_all(shop, 1)
        assert "0 pairs" not in other.status()["promise"]["sentence"]


def test_pairs_are_asked_in_their_order_and_not_again(shop: Gallery) -> None:
    with shop:
        first = shop.review(6, kinds=["pair"])
        assert first.found == {"pair": 6}
        assert [one.id for one in shop.review(6, kinds=["pair"])] == [one.id for one in first]
        assert len({frozenset((one.id[5:], one.other)) for one in first}) == 6
        words = shop.accept(first[0].id, "cannot-tell", who="Ada")
        assert words == f"{first[0].id[5:]} and {first[0].other}: cannot-tell."
        assert shop.feedback(first[1].id, "right").verdict == "right"
        left = [one.id for one in shop.review(6, kinds=["pair"])]
        assert left[:4] == [one.id for one in first][2:]
        shop.accept(first[1].id, "different")  # the last word counts
        last = shop.judgements.answers("pairs")[-1][1]
        assert last is not None
        assert last.verdict == "wrong"


def test_what_was_said_stays_said_when_it_is_calibrated_again(shop: Gallery) -> None:
    with shop:
        answer_all(shop, 60)
        answered = shop.judge.calibrated.risk.answered  # type: ignore[union-attr]
        shop.calibrate(unlabelled=True, target_error=0.15, seed=1)
        assert shop.judge.calibrated.risk.answered == answered  # type: ignore[union-attr]
        shop.remove([shop.review(1, kinds=["pair"])[0].id[5:]])
        shop.reload()
        assert len(shop.review(5, kinds=["pair"])) == 5
        assert shop.ask(made_up(2, 3)[0])[0].promised in {None, 0.15}


def test_all_wrong_and_nothing_known_promise_nothing(shop: Gallery) -> None:
    with shop:
        for one in shop.review(60, kinds=["pair"]):
            shop.accept(one.id, "different")
        promise = shop.status()["promise"]
        assert (promise["met"], promise["bound"]) == (False, None)
        assert set(shop.ask(made_up(1, 20)[0]).decisions()) == {"abstain"}


def test_items_that_are_all_alike_are_told_apart_by_nothing(tmp_path: Path) -> None:
    vectors = torch.ones(60, 4)
    with Gallery.create(tmp_path / "alike", embedding=Embedding.point(vectors)) as alike:
        alike.calibrate(unlabelled=True)
        chances = {one.probability for one in alike.ask(Embedding.point(vectors[:3]))}
        assert len(chances) == 1
        assert len(alike.review(3, kinds=["pair"])) == 3


def test_refusals_are_sentences(shop: Gallery, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "one", embedding=Embedding.point(torch.ones(1, 4))) as one:
        with pytest.raises(InputError, match="needs 50 of them, got 1"):
            one.calibrate(unlabelled=True)
        assert one.review(3, kinds=["pair"]).found == {"pair": 0}
        with pytest.raises(InputError, match="calibrated without labels; this one was not"):
            one.accept("pair:0", "same")
    with shop:
        with pytest.raises(InputError, match="on its own items, and on nothing else"):
            shop.calibrate(unlabelled=True, pairs=[("p0", "p1", True)])
        with pytest.raises(InputError, match="one of same, different, cannot-tell, got 'maybe'"):
            shop.accept("pair:p0", "maybe")
        with pytest.raises(InputError, match="no item 'nobody'"):
            shop.accept("pair:nobody", "same")
        with pytest.raises(InputError, match="right or wrong, not which label"):
            shop.feedback("pair:p0", label="leek")


def test_labels_that_are_there_are_not_looked_at(tmp_path: Path) -> None:
    vectors, thing = made_up(0, ITEMS)
    told = []
    for name, labels in (("with", [f"thing {one}" for one in thing.tolist()]), ("without", None)):
        with Gallery.create(tmp_path / name, embedding=vectors, labels=labels) as shop:
            shop.calibrate(unlabelled=True)
            told.append([one.probability for one in shop.ask(made_up(1, 5)[0])])
    assert told[0] == told[1]

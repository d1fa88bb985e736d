"""A promise under filters and after a change: worked out anew, withdrawn or not given, never silently wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from doubtless.calibration.fit import Targets
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery, base
from doubtless.gallery.calibration import standing
from doubtless.gallery.calibration.calibrated import Calibrated

LABELS, PER, DIM = 20, 12, 12
CENTRE = torch.nn.functional.normalize(
    torch.randn(3 * LABELS, DIM, generator=torch.Generator().manual_seed(1)), dim=1
)


def photos(count: int, *, seed: int, first: int = 0, noise: float = 0.25) -> tuple[Embedding, list[str]]:
    """Of `LABELS` labels in turn, the first of which is `first`."""
    label = torch.arange(count) % LABELS + first
    apart = torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))
    return Embedding.point(CENTRE[label] + noise * apart), [f"thing {number}" for number in label.tolist()]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("standing") / "shop"
    embedding, labels = photos(LABELS * PER, seed=0)
    metadata = [{"shelf": (number // LABELS) % 2} for number in range(len(labels))]
    with Gallery.create(place, embedding=embedding, labels=labels, metadata=metadata) as gallery:
        gallery.calibrate(target_error=0.2)
    return place


@pytest.fixture
def shop(calibrated: Path, tmp_path: Path) -> Gallery:
    import shutil

    shutil.copytree(calibrated, tmp_path / "shop")
    return Gallery.open(tmp_path / "shop", writable=True)


def add(gallery: Gallery, count: int, *, seed: int, first: int = 0, noise: float = 0.25) -> None:
    embedding, labels = photos(count, seed=seed, first=first, noise=noise)
    gallery.add(embedding=embedding, ids=[f"{seed}/{n}" for n in range(count)], labels=labels)


def test_a_filter_has_a_judge_of_its_own_which_is_kept(shop: Gallery) -> None:
    asked, _ = photos(40, seed=7)
    whole, part = shop.ask(asked), shop.ask(asked, where={"shelf": 1})
    assert part.distribution is not None
    assert not any("calibrated on the whole" in warning for warning in part.warnings)
    assert shop.judge_of({"shelf": 1}) is not shop.judge_of()
    assert shop.judge_of({"shelf": 1}) is shop.judge_of({"shelf": 1})
    assert whole.terms != part.terms
    sure = part.distribution.sureness
    assert torch.equal(part.decision == 0, sure >= part.terms.least)


def test_of_a_part_with_too_little_in_it_nothing_is_said(shop: Gallery) -> None:
    answer = shop.ask(photos(1, seed=7)[0], where={"label": "thing 3"})[0]
    assert answer.decision == "abstain"
    assert answer.probability is None
    assert answer.label is None
    assert answer.reason == answer.warnings[0]
    assert "12 calibration queries of 1 label;" in answer.reason
    assert len(answer.hits) == 10


def test_filters_are_forgotten_beyond_a_number(shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "MOST_FILTERS", 2)
    first = shop.judge_of({"label": "thing 3"})
    shop.judge_of({"label": "thing 4"})
    shop.judge_of({"label": "thing 5"})
    assert shop.judge_of({"label": "thing 3"}) is not first


def test_a_replaced_gallery_loses_its_promise_at_once(shop: Gallery) -> None:
    shop.remove(shop.index.ids())
    add(shop, LABELS * PER, seed=9, first=LABELS, noise=0.5)
    answers = shop.ask(photos(3, seed=7)[0])
    assert "what was promised then is withdrawn" in answers[0].warnings[0]
    assert "(20 new labels, 20 vanished labels)" in answers[0].warnings[0]
    status = shop.status()
    assert status["withdrawn"] == answers[0].warnings[0]
    assert status["change"]["share"] == 1.0
    known = shop.judge_of().calibrated.promise
    assert known is not None
    assert known.outcomes is not shop.judge.calibrated.promise.outcomes  # type: ignore[union-attr]


def test_a_few_more_of_the_same_kind_are_no_alarm(shop: Gallery) -> None:
    for seed in range(20, 25):
        add(shop, 10, seed=seed)
        assert not shop.ask(photos(2, seed=7)[0]).warnings
    assert shop.change().new == 50  # type: ignore[union-attr]
    assert shop.status()["withdrawn"] is None
    assert shop.judge_of() is shop.judge


def test_canaries_notice_what_a_count_does_not(shop: Gallery) -> None:
    # A sixth more items, copies of what is there under the next label: answers are now wrong.
    rows = shop.index.rows[:40]
    wrong = [f"thing {(n + 1) % LABELS}" for n in range(40)]
    shop.add(embedding=shop.index.embedding(rows), ids=[f"copy {n}" for n in range(40)], labels=wrong)
    assert shop.change().share < standing.CHANGED  # type: ignore[union-attr]
    assert "withdrawn" in shop.ask(photos(1, seed=7)[0])[0].warnings[0]


def test_recalibration_gives_what_a_calibration_of_the_same_queries_would(shop: Gallery) -> None:
    shop.remove(shop.index.ids()[:30])
    add(shop, 60, seed=31, first=LABELS // 2)
    record = shop.recalibrate()
    assert record["recalibrated"] == {"new": 60, "gone": 30, "queries_searched": 60}
    assert record["items"] == LABELS * PER + 30
    assert shop.judge_of() is shop.judge
    assert shop.status()["change"]["share"] == 0.0
    followed = Calibrated.load(shop.index)
    shop.calibrate(target_error=0.2)
    anew = Calibrated.load(shop.index)
    assert followed.kept is not None
    assert anew.kept is not None
    one, other = followed.kept.searches, anew.kept.searches
    order, same = one.own.argsort(), other.own.argsort()
    assert torch.equal(one.own[order], other.own[same])
    assert torch.equal(one.present[order].row[:, :50], other.present[same].row[:, :50])
    assert torch.equal(one.absent[order].row[:, :50], other.absent[same].row[:, :50])


def test_recalibration_keeps_the_terms_and_does_not_test_the_old_promise_again(
    shop: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.calibrate(Targets(target_error=0.15, unknown=0.3, confidence=0.9))
    before = Calibrated.load(shop.index)
    tested: list[Outcomes] = []
    of = Promise.of.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Promise], outcomes: Outcomes, terms: Terms) -> Promise:
        tested.append(outcomes)
        return of(cls, outcomes, terms)  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(Promise, "of", classmethod(counted))
        shop.recalibrate()
    after = Calibrated.load(shop.index)
    assert len(tested) == 1
    assert before.promise is not None
    assert after.promise is not None
    assert after.promise.terms == before.promise.terms == Terms(0.15, 0.3, 0.9)
    assert after.doubt is not None
    assert before.doubt is not None
    assert after.doubt.record == before.doubt.record


def test_a_reader_takes_a_new_calibration_over(shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LOOK_EVERY", 0.05)
    with Gallery.open(shop.index.path) as reader:
        before = reader.judge
        add(shop, 100, seed=41)
        assert "withdrawn" in reader.ask(photos(1, seed=7)[0])[0].warnings[0]
        shop.recalibrate()
        time.sleep(0.1)
        assert not reader.ask(photos(1, seed=7)[0])[0].warnings
        assert reader.judge is not before


def test_what_keeps_no_queries_says_so(shop: Gallery) -> None:
    ids = shop.index.ids()
    shop.calibrate(pairs=[(ids[0], ids[LABELS], True), (ids[0], ids[1], False)] * 20)
    with pytest.raises(InputError, match="no queries were kept"):
        shop.recalibrate()
    assert shop.change() is None


def test_queries_from_outside_are_searched_within_the_part(shop: Gallery) -> None:
    embedding, labels = photos(100, seed=51)
    shop.calibrate(target_error=0.2, queries=embedding, labels=labels)
    part = shop.judge_of({"shelf": 1})
    assert part.instead is None
    assert part.calibrated.promise is not None
    assert len(part.calibrated.promise.outcomes.score) == 100
    add(shop, 40, seed=52)
    assert shop.recalibrate()["recalibrated"]["queries_searched"] == 0

"""Answers from a real index: decisions, reasons, warnings; calibrated parts saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubtless.calibration.fit import Targets, calibrate, random_split, trial
from doubtless.calibration.pairs.pairs import ATTACHMENT, PairCalibrator
from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.gallery.answer import NOT_IN_GALLERY
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.calibration.fit import calibration_queries
from doubtless.gallery.gallery import Gallery
from doubtless.gallery.judge import Judge
from doubtless.index.folder import FolderIndex
from doubtless.search.hits import Hits, without_itself
from tests.gallery.galleries import gallery, known


def fill(path: Path, embedding: Embedding, labels: Tensor) -> FolderIndex:
    variances = 0 if embedding.family == "point" else 1
    index = FolderIndex.create(path, family=embedding.family, dim=embedding.dim, variances=variances or None)
    names = [f"class {label}" for label in labels.tolist()]
    metadata = [{"parity": label % 2} for label in labels.tolist()]
    index.add(embedding, [f"item {row}" for row in range(len(labels))], labels=names, metadata=metadata)
    return index


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FolderIndex]:
    with fill(tmp_path_factory.mktemp("answers") / "index", *gallery(800, noise=0.65)) as index:
        Gallery(index).calibrate(Targets(target_error=0.1, confidence=0.9))
        yield index


def test_an_uncalibrated_index_answers_without_probability(tmp_path: Path) -> None:
    embedding, labels = gallery(50)
    with fill(tmp_path / "index", embedding, labels) as index:
        answer = Gallery(index).ask(embedding[:2], k=3)[0]
    assert answer.decision == "answer"
    assert [hit.probability for hit in answer.hits] == [None] * 3
    assert answer.covering_set is None
    assert answer.doubt is None
    assert "not calibrated" in answer.warnings[0]
    assert answer.hits[0].id == "item 0"


def test_decisions_follow_the_promise(calibrated: FolderIndex) -> None:
    queries, asked = gallery(2000, noise=0.65, seed=5)
    answers = Gallery(calibrated).ask(queries, k=5)
    assert len(answers) == 2000
    right = answers.hits.label[:, 0] == asked  # type: ignore[index]
    answered = answers.decision == 0
    assert 0.2 < float(answered.double().mean()) < 1
    assert float((~right[answered]).double().mean()) <= 0.12  # 10 %, and what 2,000 queries scatter
    assert float((~right).double().mean()) > 0.12  # abstaining is what keeps it
    assert float((answers.decision == NOT_IN_GALLERY).double().mean()) < 0.1
    strangers = Embedding.gaussian(
        20 * torch.randn(300, 8, generator=torch.Generator().manual_seed(0)), torch.full((300, 1), 60.0)
    )
    there = Gallery(calibrated).ask(strangers, k=5)
    assert float((there.decision == NOT_IN_GALLERY).double().mean()) > 0.3
    assert {answer.decision for answer in list(answers)[:300]} == {"answer", "abstain", "not-in-gallery"}


def test_an_answer_says_everything(calibrated: FolderIndex) -> None:
    queries, _ = gallery(300, noise=0.65, seed=5)
    answers = Gallery(calibrated).ask(queries, k=4, confidence=0.9)
    for decision, word in (("answer", " with probability"), ("abstain", "No answer: it lies between")):
        answer = answers[answers.decisions().index(decision)]  # type: ignore[arg-type]
        assert word in answer.reason
        assert answer.reason.endswith(".")
        assert len(answer.hits) == 4
        assert answer.doubt is not None
        assert set(answer.parts) == {"image", "gallery", "distance", "novelty"}  # no model was asked twice
        kept = torch.tensor(list(answer.parts.values()), dtype=torch.double)
        assert answer.doubt == pytest.approx(1 - float((1 - kept).prod()), abs=1e-6)
        assert answer.covering_set is not None
        names = [one.label for one in answer.labels]
        assert list(answer.covering_set[:4]) == names[: len(answer.covering_set)][:4]
        assert answer.warnings == ()
        assert json.loads(json.dumps(answer.to_json()))["decision"] == decision
        assert answer.hits[0].metadata.keys() == {"parity"}
        assert answer.hits[0].label == f"class {int(answer.hits[0].label.split()[1])}"  # type: ignore[union-attr]
    absent = answers[answers.decisions().index("not-in-gallery")]
    assert absent.reason.startswith("Not in the gallery")
    assert answers[-1] == answers[299]
    with pytest.raises(IndexError):
        answers[300]


def test_asking_for_more_than_can_be_promised(calibrated: FolderIndex) -> None:
    queries, _ = gallery(20, seed=5)
    answer = Gallery(calibrated, target_error=0.0001).ask(queries, confidence=0.9999)[0]
    assert answer.decision in ("abstain", "not-in-gallery")
    assert answer.covering_set is None
    assert any("cannot be promised" in warning for warning in answer.warnings)
    assert any("hits together do not contain" in warning for warning in answer.warnings)
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        Gallery(calibrated).ask(queries, confidence=1.5)
    with pytest.raises(InputError, match="k must be at least 1"):
        Gallery(calibrated).ask(queries, k=0)


def test_a_filter_and_a_grown_gallery_are_galleries_of_their_own(tmp_path: Path) -> None:
    embedding, labels = gallery(200)
    more, their = gallery(100, seed=3)
    with fill(tmp_path / "index", embedding, labels) as index:
        Gallery(index).calibrate()
        filtered = Gallery(index).ask(embedding[:1], where={"parity": 1})[0]
        assert not any("whole gallery" in warning for warning in filtered.warnings)
        assert all(hit.metadata["parity"] == 1 for hit in filtered.hits)
        index.add(more, [f"new {row}" for row in range(100)], labels=[str(label) for label in their.tolist()])
        warning = Gallery(index).ask(embedding[:1])[0].warnings[0]
        assert "100 of its 300 items are new" in warning
        assert "withdrawn" in warning


def test_samples_are_asked_about_as_they_are_stored(tmp_path: Path) -> None:
    """MC dropout and ensembles give samples; an index keeps the von Mises-Fisher distribution behind them."""
    embedding, labels = gallery(200, points=True)
    noise = 0.1 * torch.randn(6, 200, embedding.dim, generator=torch.Generator().manual_seed(1))
    samples = Embedding.empirical(torch.nn.functional.normalize(embedding.direction + noise, dim=-1))
    with Gallery.create(tmp_path / "g", embedding=samples, labels=[str(label) for label in labels]) as made:
        assert made.index.family == "vmf"
        made.calibrate(target_error=0.2)
        answers = made.ask(samples[:20])
        stored = made.ask(made.index.embedding(made.index.rows[:20]))
    assert answers.total_doubt is not None
    assert stored.total_doubt is not None
    torch.testing.assert_close(answers.total_doubt, stored.total_doubt)
    assert answers.decisions() == stored.decisions()
    with Gallery.open(tmp_path / "g", writable=True) as made:  # and calibrated on samples from outside alike
        made.calibrate(target_error=0.2, queries=samples, labels=[str(label) for label in labels])
        assert made.ask(samples[:20]).total_doubt is not None


def test_a_damaged_calibration_is_said_to_whoever_asks_and_nobody_else(tmp_path: Path) -> None:
    embedding, labels = gallery(60)
    with fill(tmp_path / "index", embedding, labels) as index:
        index.attach("calibrator", {}, {"foreign": True})
        with Gallery(index) as opened:
            opened.remove(["item 0"])
            with pytest.raises(StoreError, match=r"as its calibrator cannot be read .*; calibrate it again"):
                opened.ask(embedding[:1])
            opened.calibrate(target_error=0.3)
            assert opened.ask(embedding[:1])[0].probability is not None


def test_saved_parts_answer_alike_after_reopening(tmp_path: Path) -> None:
    embedding, labels = gallery(300, points=True)
    with fill(tmp_path / "index", embedding, labels) as index:
        record = Gallery(index).calibrate()
        before = Gallery(index).ask(embedding[:50])
        reasons = [answer.reason for answer in before]
    assert record["queries"] == 300
    assert record["items"] == 300
    assert record["doubt"] == "labels"
    assert record["labels"] == 30
    assert record["first_hit_right"] - 0.05 <= record["top1"] <= 1
    assert record["match_ece"] < 0.1
    assert record["none_auroc"] > 0.6
    with FolderIndex.open(tmp_path / "index") as index:
        opened = Gallery(index)
        after = opened.ask(embedding[:50])
        assert opened.status()["calibration"] == json.loads(json.dumps(record))
        assert before.probability is not None
        assert after.probability is not None
        assert torch.equal(before.probability, after.probability)
        assert torch.equal(before.decision, after.decision)
        assert reasons == [answer.reason for answer in after]
        part = index.attached(ATTACHMENT)
        assert part is not None
        pairs = PairCalibrator.from_state(*part)
        assert pairs.record["near"] == 0.5
        same, other = (opened.compare(embedding[[0]], embedding[[row]]) for row in (30, 1))
        assert same.probability > other.probability  # type: ignore[operator]
        assert {same.decision, other.decision} <= {"same", "different", "cannot-tell"}


def test_leaving_itself_out_of_an_index_is_leaving_it_out_of_memory(tmp_path: Path) -> None:
    embedding, labels = gallery(120)
    with fill(tmp_path / "index", embedding, labels) as index:
        found, counts, _, own = calibration_queries(index)
        wanted = known(embedding, labels)
        assert counts == {"queries": 120, "without_positive": 0}
        assert own is not None
        assert torch.equal(own, index.rows)
        first = int(index.rows[0])
        found = found.first(wanted.hits.depth)
        assert torch.equal(found.hits.row - first, wanted.hits.row)
        torch.testing.assert_close(found.hits.score.double(), wanted.hits.score, rtol=0, atol=1e-6)
        assert found.absent is not None
        assert wanted.absent is not None
        assert torch.equal(found.absent.row, wanted.absent.row)
        fewer, _, _, _ = calibration_queries(index, most=50)
        assert len(fewer) == 50


def test_a_query_that_does_not_find_itself_loses_its_last_hit() -> None:
    row = torch.tensor([[7, 3, 5], [1, 2, 4]])
    score = torch.tensor([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]])
    left = without_itself(Hits(row, score, 2 - 2 * score), torch.tensor([3, 9]))
    assert left.row.tolist() == [[7, 5], [1, 2]]


def test_queries_from_outside_and_what_cannot_be_calibrated(tmp_path: Path) -> None:
    embedding, labels = gallery(200)
    queries, asked = gallery(150, seed=2)
    names = [f"class {label}" for label in asked.tolist()]
    names[0] = "never seen"
    with fill(tmp_path / "index", embedding, labels) as index:
        record = Gallery(index).calibrate(queries=queries, labels=names)
        assert (record["queries"], record["without_positive"]) == (149, 1)
        with pytest.raises(InputError, match="need their labels"):
            Gallery(index).calibrate(queries=queries)
        with pytest.raises(InputError, match="No query has a true match"):
            Gallery(index).calibrate(queries=queries, labels=["?"] * 150)
        with pytest.raises(InputError, match="at least 20"):
            Gallery(index).calibrate(queries=queries[1:5], labels=names[1:5])
    with FolderIndex.create(tmp_path / "bare", family="point", dim=8) as bare:
        bare.add(Embedding.point(embedding.location), [str(row) for row in range(200)])
        with pytest.raises(InputError, match="has no labels"):
            Gallery(bare).calibrate()


def test_pairs_replace_an_older_calibration(tmp_path: Path) -> None:
    embedding, labels = gallery(200)
    with fill(tmp_path / "index", embedding, labels) as index:
        Gallery(index).calibrate()
        near = [number % 2 == 0 for number in range(199)]
        others = [(number + 30) % 200 if same else number + 1 for number, same in enumerate(near)]
        pairs = [(f"item {number}", f"item {others[number]}", near[number]) for number in range(199)]
        opened = Gallery(index)
        record = opened.calibrate(pairs=pairs)
        assert record["pairs"] == 199
        with pytest.raises(InputError, match="Pair 1: the index has no item 'nothing'"):
            opened.calibrate(pairs=[("item 0", "nothing", True)])
        parts = Calibrated.load(index)
        assert parts.risk is None
        assert parts.presence is None
        answers = Gallery(index).ask(embedding[:5])
        assert answers.probability is not None
        assert set(answers.decisions()) == {"answer"}


@dataclass(frozen=True)
class Halves:
    """A doubt of two parts for queries."""

    total: Tensor
    parts: Mapping[str, Tensor]

    def reason(self, query: int) -> str:
        return f"Most of the doubt comes from the distance ({float(self.parts['distance'][query]):.2f})."


class DistanceDoubt:
    """The distance of the first hit as doubt."""

    def of(self, hits: Hits, features: Tensor | None = None, *, queries: Embedding | None = None) -> Halves:
        away = 1 - hits.score[:, 0].double()
        return Halves(away, {"distance": away, "novelty": torch.zeros_like(away)})


def test_a_combined_doubt_decides_and_is_named(tmp_path: Path) -> None:
    embedding, labels = gallery(600, noise=0.45)
    whole, doubt = known(embedding, labels), DistanceDoubt()
    fitted_on = []

    def fit_doubt(rows: Tensor) -> object:
        fitted_on.append(rows)
        return lambda asked: doubt.of(whole.hits[asked]).total

    made = calibrate(whole, Targets(target_error=0.2), fit_doubt=fit_doubt)  # type: ignore[arg-type]
    assert torch.equal(fitted_on[0], random_split(600, seed=0)[0])
    with fill(tmp_path / "index", embedding, labels) as index:
        judge = Judge(Calibrated.of(made, {}), doubt=doubt)
        answers = judge.answers(index.search(embedding[:200], 20), embedding[:200], index)
        plain_made = calibrate(whole, Targets(target_error=0.2))
        Calibrated.of(plain_made, {}).save(index)  # as galleries with a single label are, and older ones
        judge = Judge(Calibrated.load(index), doubt=doubt)  # its parts are shown, and decide nothing
        plain = judge.answers(index.search(embedding[:5], 20), embedding[:5], index)
        assert plain.probability is not None
        assert plain.total_doubt is not None
        assert torch.equal(plain.total_doubt, 1 - plain.probability[:, 0])
        assert set(plain[0].parts) == {"distance", "novelty"}
    assert answers.total_doubt is not None
    answered = answers.decision == 0
    assert float(answers.total_doubt[answered].max()) <= made.risk.threshold
    assert set(answers.parts) == {"distance", "novelty"}


def test_trials_need_queries_and_classes() -> None:
    whole = known(*gallery(400))
    for by_class in (True, False):
        found = trial(whole, by_class=by_class)
        assert found["queries"] == pytest.approx(200, abs=20)
        assert 0 <= found["coverage"] <= 1
    few = known(*gallery(60, classes=3))
    assert trial(few, by_class=True) == {}
    with pytest.raises(InputError, match="false_alarm"):
        Targets(false_alarm=1.0)


def test_leverage_follows_what_the_gallery_holds(tmp_path: Path) -> None:
    embedding, labels = gallery(300)
    flat = Embedding.point(embedding.location * torch.tensor([1.0] * 5 + [0.01] * 3))
    stranger = Embedding.point(torch.tensor([[0.0] * 5 + [1.0] * 3]))
    with fill(tmp_path / "index", flat, labels) as index:
        shop = Gallery(index)
        assert shop.calibrate(target_error=0.2, novelty="leverage")["novelty_of"] == "directions"
        before = shop.ask(flat[:50])
        assert float(shop.ask(stranger).doubt.chances["leverage"][0]) < 0.01  # type: ignore[union-attr]
        more = Embedding.point(
            stranger.location + 0.1 * torch.randn(60, 8, generator=torch.Generator().manual_seed(1))
        )
        shop.add(embedding=more, ids=[f"more {item}" for item in range(60)], labels=["new"] * 60)
        assert float(shop.ask(stranger).doubt.chances["leverage"][0]) > 0.05  # type: ignore[union-attr]
        shop.remove([f"more {item}" for item in range(60)])
        again = shop.ask(flat[:50])
        torch.testing.assert_close(again.total_doubt, before.total_doubt)
    with FolderIndex.open(tmp_path / "index") as index:
        torch.testing.assert_close(Gallery(index).ask(flat[:50]).total_doubt, before.total_doubt)

"""Match probabilities: features by loops, calibration on fresh queries, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.features import DEPTH, hit_features
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics import match_ece, paired_bootstrap
from doubtless.search.hits import Hits, hits_among, hits_without_class
from tests.gallery.galleries import gallery, known


def test_features_by_hand() -> None:
    hits = Hits(
        row=torch.tensor([[0, 1, 2, 3], [5, -1, -1, -1]]),
        score=torch.tensor([[0.9, 0.8, 0.5, 0.4], [0.3, -torch.inf, -torch.inf, -torch.inf]]),
        expected_squared_distance=torch.tensor(
            [[0.2, 0.4, 1.0, 1.2], [1.4, torch.inf, torch.inf, torch.inf]]
        ),
        label=torch.tensor([[7, 7, 3, -1], [2, -1, -1, -1]]),
        uncertainty=torch.full((2, 4), 0.5),
        query_uncertainty=torch.tensor([1.0, torch.inf]),
    )
    found = hit_features(hits)
    assert found["gap"][0].tolist() == pytest.approx([0.1, 0.3, 0.1, 0.0])
    assert found["behind"][0].tolist() == pytest.approx([0.0, 0.1, 0.4, 0.5])
    assert found["crowd"][0].tolist() == pytest.approx([0.25, 0.15, -0.15, -0.25])
    assert found["agreement"][0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 0])
    assert found["lead"][0].tolist() == pytest.approx([0.4, 0.4, -0.4, -0.5])
    assert found["rank"][0].exp().tolist() == pytest.approx([1, 2, 3, 4])
    assert found["query_uncertainty"][0].tolist() == [0.0] * 4
    for name, value in found.items():
        assert bool(torch.isfinite(value).all()), name
        assert value[1, 1:].tolist() == [0.0] * 3, name
    assert float(found["lead"][1, 0]) == 0  # one hit, no rival


def test_a_deeper_search_changes_no_probability() -> None:
    embedding, labels = gallery()
    itself = torch.arange(len(labels))
    deep = hits_among(embedding, embedding, k=50, gallery_labels=labels, itself=itself)
    calibrator = Calibrator.fit(embedding, labels)
    assert torch.equal(calibrator.probability(deep)[:, :DEPTH], calibrator.probability(deep.first(DEPTH)))


def test_leave_outs_by_loops() -> None:
    embedding, labels = gallery(60, classes=5)
    cosine = (embedding.direction.double() @ embedding.direction.double().T).tolist()
    hits = hits_among(embedding, embedding, k=7, gallery_labels=labels, itself=torch.arange(60))
    absent = hits_without_class(embedding, labels, embedding, labels, k=7)
    for query in range(60):
        order = sorted((item for item in range(60) if item != query), key=lambda item: -cosine[query][item])
        assert hits.row[query].tolist() == order[:7]
        others = [item for item in order if labels[item] != labels[query]]
        assert absent.row[query].tolist() == others[:7]
    own, theirs = embedding[[3] * 7], embedding[hits.row[3]]
    torch.testing.assert_close(
        hits.expected_squared_distance[3], own.expected_squared_distance(theirs).double()
    )
    with pytest.raises(InputError, match="an item to find"):
        hits_without_class(embedding[:3], torch.zeros(3).long(), embedding, torch.zeros(60).long(), k=1)


@pytest.mark.parametrize("points", [False, True])
def test_probabilities_mean_what_they_say_on_fresh_queries(points: bool) -> None:
    embedding, labels = gallery(points=points)
    calibrator = Calibrator.fit(embedding, labels)
    queries, asked = gallery(4000, seed=1, points=points)
    hits = hits_among(queries, embedding, k=DEPTH, gallery_labels=labels)
    right = hits.label == asked.unsqueeze(1)  # type: ignore[union-attr]
    assert 0.5 < float(right[:, 0].double().mean()) < 0.95
    chance = calibrator.probability(hits)
    for column, slack in ((0, 0.04), (4, 0.06)):
        assert match_ece(chance[:, column], right[:, column]) < slack
    cosine = Calibrator.fit_hits(
        *_fitting(embedding, labels), method="isotonic", names=("similarity",)
    ).probability(hits)
    better = paired_bootstrap(
        (chance[:, 0] - right[:, 0].double()).square(),
        (cosine[:, 0] - right[:, 0].double()).square(),
        generator=torch.Generator().manual_seed(0),
    )
    assert better.high < 0
    assert ("query_uncertainty" in calibrator.first.names) != points


def _fitting(embedding: Embedding, labels: Tensor) -> tuple[Hits, Tensor]:
    asked = known(embedding, labels)
    return asked.hits, asked.right


def test_the_record_shows_queries_and_classes_apart() -> None:
    embedding, labels = gallery()
    record = Calibrator.fit(embedding, labels).record
    assert record["queries"] == 600
    for kind in ("exchangeable", "class_disjoint"):
        assert 0 <= record[kind]["match_ece"] < 0.1
        assert 0 < record[kind]["match_brier"] < 0.25


def test_cosine_alone_rises_with_the_similarity() -> None:
    embedding, labels = gallery(points=True)
    calibrator = Calibrator.fit_hits(*_fitting(embedding, labels), method="isotonic", names=("similarity",))
    score = torch.linspace(-1, 1, 101).unsqueeze(1)
    hits = Hits(torch.zeros(101, 1).long(), score, 2 - 2 * score)
    chance = calibrator.probability(hits)[:, 0]
    assert bool((chance.diff() >= 0).all())
    assert float(chance[-1]) > float(chance[0]) + 0.2


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right: bool) -> None:
    asked = known(*gallery(100))
    chance = Calibrator.fit_hits(asked.hits, torch.full_like(asked.right, right)).probability(asked.hits)
    assert bool(((chance > 0.9) == right).all())
    assert bool(((chance > 0) & (chance < 1)).all())


def test_empty_places_have_no_probability_and_bad_input_is_a_sentence() -> None:
    embedding, labels = gallery(100)
    calibrator = Calibrator.fit(embedding, labels)
    asked = known(embedding, labels)
    row = asked.hits.row.clone()
    row[0, 5:] = -1
    hits = Hits(
        row,
        asked.hits.score,
        asked.hits.expected_squared_distance,
        label=asked.hits.label,
        uncertainty=asked.hits.uncertainty,
        query_uncertainty=asked.hits.query_uncertainty,
    )
    assert calibrator.probability(hits)[0, 5:].tolist() == [0.0] * (DEPTH - 5)
    with pytest.raises(InputError, match="booleans of shape"):
        Calibrator.fit_hits(hits, torch.ones(2, 2))
    bare = Hits(row, asked.hits.score, asked.hits.expected_squared_distance)
    with pytest.raises(InputError, match="which these hits do not have"):
        calibrator.probability(bare)
    with pytest.raises(InputError, match="gallery_labels"):
        Calibrator.fit(embedding, labels, gallery=embedding)


@pytest.mark.parametrize(
    "make", [Calibrator.fit, lambda e, y: Calibrator.fit_pairs(e[:-1], e[1:], y[:-1] == y[1:])]
)
def test_saved_and_loaded(make: Callable[[Embedding, Tensor], Calibrator]) -> None:
    embedding, labels = gallery(200)
    labels = labels.sort().values
    calibrator = make(embedding, labels)
    again = Calibrator.from_state(*calibrator.state())
    hits = hits_among(embedding, embedding, k=DEPTH, gallery_labels=labels)
    assert torch.equal(again.probability(hits), calibrator.probability(hits))
    assert again.record == calibrator.record

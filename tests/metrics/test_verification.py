"""Verification metrics against loops over pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import EvaluationOptions, GivenScores, evaluate
from doubtless.metrics import match_brier, match_ece
from doubtless.metrics import verification as measured
from tests.reference import verification as reference


def toy(count: int = 60, *, seed: int = 0, spread: float = 0.8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 6
    centre = torch.randn(6, 5, generator=generator)
    return normalize(centre[labels] + spread * torch.randn(count, 5, generator=generator), dim=1), labels


@pytest.mark.parametrize("seed", range(4))
def test_against_loops(seed: int) -> None:
    rows, labels = toy(seed=seed)
    same, different = reference.pair_scores(rows.double().tolist(), labels.tolist())
    counts = measured.count_pairs(rows, labels)
    assert int(counts.same.sum()) == len(same)
    assert int(counts.different.sum()) == len(different)
    for rate in (0.1, 0.01):
        # a cell may hold two pairs that a loop tells apart: at most one pair of each kind
        assert measured.tar_at_far(counts, rate) == pytest.approx(
            reference.tar_at_far(same, different, rate), abs=1.01 / len(same)
        )
        threshold = measured.threshold_at_far(counts, rate)
        assert sum(score >= threshold + 1e-6 for score in different) <= rate * len(different)
        assert sum(score >= threshold - 4e-6 for score in different) >= rate * len(different) - 1
    low, high = reference.equal_error_rate(same, different)
    assert low - 1e-9 <= measured.equal_error_rate(counts) <= high + 1e-9


def test_perfect_and_reversed() -> None:
    rows, labels = torch.eye(3).repeat_interleave(4, 0), torch.arange(3).repeat_interleave(4)
    counts = measured.count_pairs(rows, labels)
    assert measured.equal_error_rate(counts) == 0
    assert measured.tar_at_far(counts, 0.1) == 1
    swapped = measured.PairCounts(same=counts.different, different=counts.same)
    assert measured.equal_error_rate(swapped) == 1
    assert measured.tar_at_far(swapped, 0.1) == 0


def test_gallery_pairs_are_all_counted_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    (rows, labels), (others, known) = toy(), toy(40, seed=1)
    counts = measured.count_pairs(rows, labels, gallery=others, gallery_labels=known)
    cosine = rows.double() @ others.double().T
    same = labels.unsqueeze(1) == known
    assert int(counts.same.sum()) == int(same.sum())
    far, tar = counts.rates()
    place = measured.CELLS // 2  # cosine 0
    assert float(far[place]) == pytest.approx(float((cosine[~same] >= 0).double().mean()), abs=1e-9)
    assert float(tar[place]) == pytest.approx(float((cosine[same] >= 0).double().mean()), abs=1e-9)
    whole = measured.count_pairs(rows, labels)
    monkeypatch.setitem(measured.CHUNK, "cpu", 100)
    parts = measured.count_pairs(rows, labels)
    assert torch.equal(whole.same, parts.same)
    assert torch.equal(whole.different, parts.different)


def test_too_many_pairs_are_thinned_by_query() -> None:
    rows, labels = toy(600)
    whole, part = measured.count_pairs(rows, labels), measured.count_pairs(rows, labels, most=40_000)
    assert int(part.different.sum()) < int(whole.different.sum())
    assert measured.equal_error_rate(part) == pytest.approx(measured.equal_error_rate(whole), abs=0.03)


def test_missing_kinds_and_bad_rates_are_sentences() -> None:
    counts = measured.count_pairs(torch.eye(2), torch.tensor([0, 1]))
    assert measured.verification_measures(counts) == {}
    with pytest.raises(InputError, match="pairs of one class"):
        measured.equal_error_rate(counts)
    with pytest.raises(InputError, match="false accept rate"):
        measured.tar_at_far(measured.count_pairs(*toy()), 0.0)


def test_evaluate_measures_pairs_and_given_probabilities() -> None:
    rows, labels = toy(120)
    embedding = Embedding.point(rows)
    chance = torch.rand(120, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    options = EvaluationOptions(bootstrap=20, clusters=False)
    found = evaluate(embedding, labels, given=GivenScores(match_probability=chance), options=options)
    counts = measured.count_pairs(rows, labels)
    assert found["eer"] == pytest.approx(measured.equal_error_rate(counts))
    assert found["tar@far0.01"] == pytest.approx(measured.tar_at_far(counts, 0.01))
    assert "tar@far0.001" not in found.measures  # six false accepts would stand behind it
    assert found.queries is not None
    assert found["match_ece"] == pytest.approx(match_ece(chance, found.queries.correct))
    assert found["match_brier"] == pytest.approx(match_brier(chance, found.queries.correct))
    assert found.measures["match_brier"].low is not None

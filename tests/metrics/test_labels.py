"""Votes of labels and means over labels against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.errors import InputError
from doubtless.metrics.labels import (
    NONE,
    baks,
    balanced_accuracy,
    baus,
    label_means,
    label_top1,
    most_evident_label,
    vote_weights,
)
from doubtless.metrics.metric import work_out
from doubtless.metrics.views import Voted
from tests.reference import open_set as reference

eighths = st.integers(-16, 16).map(lambda value: value / 8)  # whose sums are exact in any order
hit = st.tuples(st.integers(NONE, 3), eighths)
tables = st.integers(0, 6).flatmap(
    lambda width: st.lists(st.lists(hit, min_size=width, max_size=width), min_size=1, max_size=5)
)
answers = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20)


@settings(deadline=None)
@given(tables)
def test_the_label_of_the_most_evidence(rows: list[list[tuple[int, float]]]) -> None:
    labels = torch.tensor([[label for label, _ in row] for row in rows], dtype=torch.long)
    evidence = torch.tensor([[value for _, value in row] for row in rows], dtype=torch.double)
    labels, evidence = labels.reshape(len(rows), -1), evidence.reshape(len(rows), -1)
    expected = [
        reference.most_evident_label(*parts) for parts in zip(labels.tolist(), evidence.tolist(), strict=True)
    ]
    assert most_evident_label(labels, evidence).tolist() == expected
    truth = torch.arange(len(rows)) % 4
    right = sum(found == own for found, own in zip(expected, truth.tolist(), strict=True))
    assert label_top1(labels, evidence, truth) == pytest.approx(right / len(rows))


def test_several_hits_outvote_a_nearer_one_and_empty_places_say_nothing() -> None:
    labels = torch.tensor([[7, 3, 3, NONE], [NONE, NONE, NONE, NONE], [5, NONE, 6, 5]])
    evidence = torch.tensor([[0.5, 0.4, 0.3, torch.nan], [9.0, 9.0, 9.0, 9.0], [-1.0, 9.0, -1.5, -1.0]])
    assert most_evident_label(labels, evidence).tolist() == [3, NONE, 6]
    nowhere = torch.full((1, 2), -math.inf)
    assert most_evident_label(torch.tensor([[4, 2]]), nowhere).tolist() == [4]


def test_a_vote_is_weighted_by_similarity() -> None:
    weights = vote_weights(torch.tensor([[1.0, 0.9, -1.0]]))
    assert weights[0].tolist() == pytest.approx([1, math.exp(-0.1 / 0.07), math.exp(-2 / 0.07)])


@settings(deadline=None)
@given(answers)
def test_means_over_labels(items: list[tuple[bool, int]]) -> None:
    right, labels = torch.tensor([good for good, _ in items]), torch.tensor([label for _, label in items])
    found = balanced_accuracy(right, labels)
    assert found == pytest.approx(reference.balanced_accuracy(right.tolist(), labels.tolist()), abs=1e-12)
    assert 0 <= found <= 1
    assert balanced_accuracy(right.flip(0), labels.flip(0)) == pytest.approx(found)
    assert balanced_accuracy(right.repeat(3), labels.repeat(3)) == pytest.approx(found)
    predicted = torch.where(right, labels, labels + 1)
    assert baks(predicted, labels) == pytest.approx(found)
    withheld = torch.where(right, NONE, 0)
    assert baus(withheld, labels + 10) == pytest.approx(found)
    assert baks(withheld, labels + 10) == 0


@settings(deadline=None)
@given(answers, st.data())
def test_weights_are_copies(items: list[tuple[bool, int]], data: st.DataObject) -> None:
    right, labels = torch.tensor([good for good, _ in items]), torch.tensor([label for _, label in items])
    size = len(items)
    drawn = data.draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    weights = torch.tensor(drawn).bincount(minlength=size).double().unsqueeze(0)
    found = float(label_means(labels)(weights, right))
    assert found == pytest.approx(balanced_accuracy(right[drawn], labels[drawn]), abs=1e-12)


def test_both_metrics_of_a_vote() -> None:
    voted = Voted(torch.tensor([True, True, False]), torch.tensor([1, 1, 2]))
    values, forms, plain = work_out(voted)
    assert values["label_top1"].tolist() == [1, 1, 0]
    assert [float(form(torch.ones(1, 3).double())["label_top1_balanced"]) for form in forms] == [0.5]
    assert not plain


def test_nobody_and_bad_input() -> None:
    nobody = torch.zeros(0, dtype=torch.long)
    assert math.isnan(baks(nobody, nobody))
    assert math.isnan(baus(nobody, nobody))
    assert math.isnan(label_top1(torch.zeros(0, 3).long(), torch.zeros(0, 3), nobody))
    with pytest.raises(InputError, match=r"shape \(n, k\), got shapes \(2,\) and \(2,\)"):
        most_evident_label(torch.zeros(2).long(), torch.zeros(2))
    with pytest.raises(InputError, match="evidence of a hit is NaN"):
        most_evident_label(torch.zeros(1, 1).long(), torch.full((1, 1), torch.nan))
    with pytest.raises(InputError, match=r"got shapes \(2,\) and \(3,\)"):
        baks(torch.zeros(2).long(), torch.zeros(3).long())

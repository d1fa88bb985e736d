"""λ/τ by classes left out: it tells strangers where they can be told, and refuses where there are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.laplace import CurvatureOptions, ratio_by_unknowns
from doubtless.laplace.unknowns import _areas, _split
from tests.laplace.test_kronecker_posterior import a_posterior, normal


def a_problem() -> tuple[Tensor, Tensor, tuple[Tensor, None]]:
    """Classes each around a direction of their own, in features turned so that no single one is unseen."""
    turn = torch.linalg.qr(normal(12, 12, seed=1)).Q
    labels = torch.arange(240) % 6
    features = torch.eye(12, dtype=torch.float64)[labels] * 3 + 0.3 * normal(240, 12, seed=2)
    return features @ turn, labels, (normal(4, 12, seed=3), None)


def test_a_whole_posterior_finds_classes_that_were_left_out() -> None:
    features, labels, head = a_problem()
    options = CurvatureOptions(geometry="linear")
    found = ratio_by_unknowns(
        features, labels, head, covariance="kronecker", options=options, ratios=[1e-3, 1e6]
    )
    assert found.ratio == 1e-3
    assert found.scores[1e-3] > 0.95
    assert found.scores[1e6] < found.scores[1e-3]  # the prior alone knows no direction
    again = ratio_by_unknowns(
        features, labels, head, covariance="kronecker", options=options, ratios=[1e-3, 1e6]
    )
    assert again == found


def test_no_image_is_on_two_sides() -> None:
    labels = torch.arange(40) % 4
    fitted, known, strange = _split(labels, torch.tensor([1, 3]), torch.Generator().manual_seed(0))
    assert sorted([*fitted.tolist(), *known.tolist(), *strange.tolist()]) == list(range(40))
    assert set(labels[strange].tolist()) == {1, 3}
    assert set(labels[fitted].tolist()) == set(labels[known].tolist()) == {0, 2}


def test_the_area_is_that_of_all_pairs() -> None:
    posterior, known, strange = a_posterior(), normal(7, 6, seed=1), 2 * normal(5, 6, seed=2)
    mean = float(posterior.flat_curvature().mean())
    found = _areas(posterior, known, strange, [0.1, 10.0])
    for ratio, area in zip((0.1, 10.0), found.tolist(), strict=True):
        now = posterior.with_scale(1.0, ratio * mean)

        def doubt(features: Tensor, now=now) -> Tensor:
            predicted = now.predictive(features)
            return predicted["variance"].sum(1) / predicted["location"].square().sum(1)

        assert area == pytest.approx(float((doubt(strange).unsqueeze(1) > doubt(known)).double().mean()))


def test_it_needs_classes_to_leave_out() -> None:
    features, _, head = a_problem()
    with pytest.raises(InputError, match="three classes, got 2"):
        ratio_by_unknowns(features, torch.arange(240) % 2, head)

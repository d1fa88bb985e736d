"""The map: neighbours stay neighbours, the same seed draws the same map, small and collapsed sets work."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from doubtless.errors import InputError
from doubtless.report import EmbeddingMap, embedding_map
from doubtless.report.images import draw_map
from tests.report.example import directions


def test_classes_far_apart_stay_apart() -> None:
    direction, labels, uncertainty = directions(200, classes=4)
    found = embedding_map(direction, labels, uncertainty)
    distance = np.linalg.norm(found.coordinates[:, None] - found.coordinates[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (found.labels[distance.argmin(1)] == found.labels).mean() > 0.9


def test_sample_is_limited_drawn_by_seed_and_keeps_rows_together() -> None:
    direction, _, _ = directions(100)
    rows = torch.arange(100)
    first, again, other = (
        embedding_map(direction, rows, rows.float(), limit=30, seed=seed) for seed in (0, 0, 1)
    )
    assert first.coordinates.shape == (30, 2)
    np.testing.assert_array_equal(first.coordinates, again.coordinates)
    assert not np.array_equal(first.labels, other.labels)
    assert first.uncertainty is not None
    np.testing.assert_array_equal(first.labels, first.uncertainty)
    assert len(set(first.labels.tolist())) == 30


@pytest.mark.parametrize(("n", "dim"), [(1, 3), (2, 3), (5, 1), (9, 4), (10, 1), (12, 5)])
def test_few_points_and_few_dimensions(n: int, dim: int) -> None:
    found = embedding_map(torch.randn(n, dim, generator=torch.Generator().manual_seed(0)), torch.arange(n))
    assert found.coordinates.shape == (n, 2)
    assert np.isfinite(found.coordinates).all()


def test_few_points_are_laid_out_as_they_lie() -> None:
    flat = torch.tensor(
        [[0.0, 0.0, 1.0], [3.0, 0.0, 1.0], [0.0, 4.0, 1.0], [3.0, 4.0, 1.0]]
    )  # already a plane
    found = embedding_map(flat, torch.arange(4)).coordinates
    np.testing.assert_allclose(
        np.linalg.norm(found[:, None] - found[None], axis=2), torch.cdist(flat, flat).numpy(), atol=1e-6
    )


def test_a_collapsed_embedding_is_one_spot() -> None:
    found = embedding_map(torch.ones(20, 4), torch.arange(20) % 2)
    np.testing.assert_array_equal(found.coordinates, 0)
    assert "nan" not in draw_map(found).lower()


def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"labels \(n,\)"):
        embedding_map(torch.ones(3, 2), torch.arange(4))
    with pytest.raises(InputError, match="without NaN"):
        embedding_map(torch.full((3, 2), torch.nan), torch.arange(3))
    with pytest.raises(InputError, match="at least one item"):
        embedding_map(torch.ones(3, 2), torch.arange(3), limit=0)
    with pytest.raises(InputError, match=r"coordinates of shape \(2, 2\)"):
        EmbeddingMap(np.zeros((3, 2)), np.zeros(2, np.int64))


def test_size_follows_the_rank_of_the_uncertainty_and_ties_are_equal() -> None:
    shown = EmbeddingMap(
        np.random.default_rng(0).normal(size=(4, 2)), np.zeros(4, np.int64), np.array([5.0, 1.0, 1e9, 5.0])
    )
    radii = sorted(float(value) for value in re.findall(r'r="([\d.]+)"', draw_map(shown).split("legend")[0]))
    assert radii[1] == radii[2]
    assert radii[0] < radii[1] < radii[3]


def test_legend_names_each_class_unless_they_are_too_many() -> None:
    def drawn(classes: int) -> str:
        labels = np.arange(classes)
        shown = EmbeddingMap(np.random.default_rng(0).normal(size=(classes, 2)), labels)
        return draw_map(shown, names=[f"<name {label}>" for label in labels])

    html = drawn(24)
    looks = re.findall(r'<li>.*?<g class="dots (s\d)[^"]*"><(\w+)', html)
    assert len(set(looks)) == len(looks) == 24  # no two classes look alike
    assert "&lt;name 23&gt;" in html
    assert "<name" not in html
    assert "<li>" not in drawn(25)
    assert "25 classes" in drawn(25)

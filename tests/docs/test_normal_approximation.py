"""benchmarks/normal_approximation.py draws what it says by few numbers, and finds the errors it says."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    approximation = importlib.import_module("normal_approximation")
finally:
    sys.path.pop(0)

DRAWS = 60_000


@pytest.mark.parametrize("dim", [5, 12])
@pytest.mark.parametrize("family", approximation.FAMILIES)
def test_few_numbers_per_draw_are_the_same_as_the_whole_embedding(family: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    triplet = approximation.draw_triplet(dim, 0.8, rng)
    assert torch.allclose(triplet.means.norm(dim=1), torch.ones(3, dtype=torch.double))
    direct = approximation.draw_directly(family, triplet, DRAWS)
    quick = approximation.draw_quickly if family == "Gaussian" else approximation.draw_quickly_on_sphere
    found = quick(triplet, DRAWS, rng)
    at = np.quantile(direct, np.linspace(0.02, 0.98, 49))
    gap = np.abs((direct[:, None] < at).mean(0) - (found[:, None] < at).mean(0)).max()
    assert gap < 1.95 * math.sqrt(2 / DRAWS)  # Kolmogorov and Smirnov at 0.1 %
    moments = approximation.moments_of(family, triplet)
    assert found.mean() == pytest.approx(float(moments.mean), abs=5 * found.std() / math.sqrt(DRAWS))
    assert found.var() == pytest.approx(float(moments.variance), rel=0.04)


def test_errors_are_those_of_a_loop() -> None:
    triplet = approximation.draw_triplet(2, 0.5, np.random.default_rng(0))
    tau, moments = (
        approximation.draw_directly("Gaussian", triplet, 300),
        approximation.moments_of("Gaussian", triplet),
    )
    mean, deviation = float(moments.mean), math.sqrt(float(moments.variance))

    def said(threshold: float) -> float:
        return 0.5 * math.erfc(-(threshold - mean) / deviation / math.sqrt(2))

    gaps = []
    for threshold in tau:
        gaps += [
            abs((tau < threshold).mean() - said(threshold)),
            abs((tau <= threshold).mean() - said(threshold)),
        ]
    largest, at_margin = approximation.errors(tau, moments, margin=0.02)
    assert largest == pytest.approx(max(gaps))
    assert at_margin == pytest.approx(abs((tau < -0.02).mean() - said(-0.02)))


def test_the_figure_on_the_page_is_one_drawing_with_all_lines() -> None:
    drawn = (ROOT / "docs" / "methods" / "normal-approximation.svg").read_text()
    assert drawn.startswith("<svg xmlns")
    assert drawn.count('class="line"') == 2 * 4 + 4
    assert all(f">{dim}</text>" in drawn for dim in approximation.DIMENSIONS)

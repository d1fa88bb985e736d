"""Figures of the Bayesian triplet family: from a run to its report, and what they draw against the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.methods.configuration import make_config
from doubtless.report.method_figures.bayes_triplet import (
    SCENES,
    descent,
    distance_variance,
    likelihood_figure,
    scene_figures,
    variance_figure,
)
from doubtless.runs.evaluation import RunEvaluation
from doubtless.training import train_run


@pytest.mark.parametrize("name", ["bayes-triplet", "bayes-triplet-vmf", "triplet-regression"])
def test_a_run_has_them_in_its_report(name: str, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    training = {**tiny_config["training"], "epochs": 1}
    config = {**tiny_config, "method": name, "loss": {"name": "triplet"}, "training": training}
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    RunEvaluation(run).measure(bootstrap=0)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How sure the distance is" in page
    assert "The least and the most sure distances" in page
    assert ("The loss in one dimension" in page) == (name == "bayes-triplet")
    assert page.count("<h3>Least sure</h3>") == 1


def test_variance_of_a_distance() -> None:
    location, variance = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5]])
    query, found = Embedding.gaussian(location, variance), Embedding.gaussian(2 * location, 2 * variance)
    # s = 1.5 a dimension, difference (0, 1): Σ 2s² + 4 s δ²
    assert distance_variance(query, found).tolist() == [2 * 2 * 1.5**2 + 4 * 1.5]
    sure = Embedding.vmf(torch.eye(3)[:1], torch.tensor([1e4]))
    unsure = Embedding.vmf(torch.eye(3)[1:2], torch.tensor([1.0]))
    # a fixed point against v: 4 Var(v·u), across its mean A/κ
    resultant = 1 / torch.tanh(torch.tensor(1.0, dtype=torch.float64)) - 1
    torch.testing.assert_close(distance_variance(sure, unsure), 4 * resultant[None], rtol=1e-3, atol=0)


def test_the_note_says_how_often_the_others_are_less_sure() -> None:
    known, others = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.5, 10.0])
    assert "75.0% of all comparisons" in variance_figure(known, others, "digits")


def test_descent_goes_as_the_paper_says() -> None:
    right, wrong, between = (descent(scene) for scene in SCENES)
    assert (right[1] < 0).all()
    assert (wrong[1] > 0).all()
    for scene, (moves, _) in zip(SCENES, (right, wrong, between), strict=True):
        anchor, positive, negative = scene.means
        assert moves[1] * (anchor - positive) > 0  # the positive is attracted
        assert moves[2] * (negative - anchor) > 0  # the negative is repelled
    assert abs(float(between[1][0])) < 1e-12  # an anchor in the middle has no reason to be more or less sure


def test_drawings() -> None:
    figures = [likelihood_figure(0.0), *scene_figures()]
    assert len(figures) == 4
    for drawn in figures:
        assert drawn.startswith("<figure")
        assert "nan" not in drawn.lower()
    assert "σ² = 0.2" in figures[0]

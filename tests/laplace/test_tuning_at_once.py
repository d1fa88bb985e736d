"""A whole grid at once: the same answers as one point after the other, and few questions to the device."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless import metrics
from doubtless.embedding import Embedding
from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding
from doubtless.laplace import (
    CurvatureOptions,
    DiagonalPosterior,
    criteria,
    default_scales,
    error_auroc,
    fit,
    match_likelihood,
    negative_consensus_ece,
    tune,
    tuning,
)
from doubtless.laplace.criteria import Grid
from doubtless.laplace.tuning import marginal_prior_precisions
from tests.reference import tuning as one_by_one
from tests.reference.launches import Launches

Problem = tuple[DiagonalPosterior, Tensor, Tensor]


def a_problem(n: int, dtype: torch.dtype = torch.float64) -> Problem:
    """A posterior of half of n images of seven classes, and the other half."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(7, (n,), generator=generator)
    centres = torch.randn(7, 12, generator=generator, dtype=dtype)
    features = centres[labels] + 0.8 * torch.randn(n, 12, generator=generator, dtype=dtype)
    half = n // 2
    posterior = fit(features[:half], labels[:half], dim=5, options=CurvatureOptions(margin=1.0))
    return posterior, features[half:], labels[half:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_one_after_the_other(dtype: torch.dtype) -> None:
    posterior, features, labels = a_problem(700, dtype)
    scales = default_scales(posterior, 7)
    found = tune(posterior, features, labels, scales=scales, generator=torch.Generator().manual_seed(3))
    expected = one_by_one.trials(posterior, features, labels, scales, seed=3)
    for trial, (scale, prior, score) in zip(found.trials, expected, strict=True):
        assert trial.scale == scale
        assert trial.prior_precision == pytest.approx(prior, rel=1e-9)
        # In float32 a draw between two neighbours may fall to the other, which may turn an image or two.
        assert trial.score == pytest.approx(score, abs=1e-12 if dtype == torch.float64 else 3 / 350)
    assert len({trial.score for trial in found.trials}) > 4


@pytest.mark.parametrize("chunk", [1, 700, 2**22])
def test_prior_precisions_of_many_scales(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SHARES", chunk)
    posterior = a_problem(200)[0]
    scales = [1e-9, 1e-3, 1.0, 50.0, 1e5, 1e14]
    expected = [one_by_one.marginal_prior_precision(posterior, scale) for scale in scales]
    assert marginal_prior_precisions(posterior, scales) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    spread=st.floats(0, 12), zeros=st.integers(0, 30), log_scale=st.floats(-20, 20), seed=st.integers(0, 99)
)
def test_prior_precision_solves_its_equation(spread: float, zeros: int, log_scale: float, seed: int) -> None:
    """λ‖W‖² = Σ τH/(τH+λ), also for curvatures over many orders of magnitude, and with zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    curvature = torch.exp(spread * torch.randn(2, 20, generator=generator, dtype=torch.float64))
    curvature.view(-1)[:zeros] = 0
    weight, scale = torch.randn(2, 20, generator=generator, dtype=torch.float64), 10.0**log_scale
    posterior = DiagonalPosterior(weight, None, curvature, None, scale=1.0, prior_precision=1.0)
    (prior,) = marginal_prior_precisions(posterior, [scale])
    determined = float((scale * curvature / (scale * curvature + prior)).sum())
    assert prior * float(weight.square().sum()) == pytest.approx(determined, rel=1e-8)


def test_a_grid_predicts_what_its_points_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, features, _ = a_problem(60)
    points = [(3.0, 2.0), (1e4, 5.0), (1e4, 2e4), (5e3, 1e4), (1e-3, 7.0)]
    for size in (2**24, 1):  # all at a time, and each alone
        monkeypatch.setattr(tuning, "PREDICTED", size)
        grids = list(tuning._grids(posterior, features, points, torch.arange(30)))
        assert len(grids) == (1 if size > 1 else 5)
        whole = Grid(*(torch.cat([grid[part] for grid in grids]) for part in range(4)), grids[0].queries)
        for number, (scale, prior) in enumerate(points):
            alone = posterior.with_scale(scale, prior).predict(features)
            torch.testing.assert_close(grids[0].location, alone.location)
            torch.testing.assert_close(
                whole.variance[number], alone.parameters["variance"], rtol=1e-12, atol=0
            )
            torch.testing.assert_close(whole.direction[number], alone.direction)
            torch.testing.assert_close(whole.uncertainty[number], alone.uncertainty)


def test_queries_are_scored_among_all() -> None:
    """A third of the items asked, all of them found: against loops over those asked."""
    posterior, features, labels = a_problem(180)
    queries = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:30]
    scales = default_scales(posterior, 5)
    scored = {
        name: tune(posterior, features, labels, criterion=name, scales=scales, queries=queries)
        for name in ("error-auroc", "match-likelihood", "consensus-ece")
    }
    differs = False
    for number, trial in enumerate(scored["error-auroc"].trials):
        embedding = posterior.with_scale(trial.scale, trial.prior_precision).predict(features)
        cosine = (embedding.direction @ embedding.direction.T).fill_diagonal_(-2)
        wrong = [bool(labels[cosine[i].argmax()] != labels[i]) for i in queries]
        doubt = embedding.uncertainty[queries]
        wins = [float(doubt[i] > doubt[j]) for i in range(30) for j in range(30) if wrong[i] and not wrong[j]]
        assert trial.score == pytest.approx(sum(wins) / len(wins))
        differs = differs or trial.score != pytest.approx(error_auroc(embedding, labels))
        bets = (cosine / embedding.uncertainty[:, None]).fill_diagonal_(-torch.inf)
        right = bets.masked_fill(labels[:, None] != labels, -torch.inf)
        likelihood = (right.logsumexp(1) - bets.logsumexp(1))[queries].mean()
        assert scored["match-likelihood"].trials[number].score == pytest.approx(float(likelihood))
    assert differs
    everyone = tune(posterior, features, labels, scales=scales, queries=torch.arange(90))
    assert everyone.trials == tune(posterior, features, labels, scales=scales).trials
    assert scored["consensus-ece"].trials != everyone.trials


def test_queries_vote_by_the_neighbours_of_all() -> None:
    """Items without variance vote for their nearest neighbour a hundred times: the error is that of neighbours."""
    posterior, features, labels = a_problem(180)
    queries = torch.arange(0, 90, 3)
    (trial,) = tune(posterior, features, labels, scales=[1e30], queries=queries).trials
    direction = posterior.with_scale(1e30, trial.prior_precision).predict(features).direction
    cosine = (direction @ direction.T).fill_diagonal_(-2)
    wrong = (labels[cosine.argmax(1)] != labels)[queries].double().mean()
    assert 0 < float(wrong) < 1
    assert trial.score == pytest.approx(-float(wrong))


@settings(max_examples=60, deadline=None)
@given(columns=st.integers(1, 700), levels=st.integers(1, 2000), seed=st.integers(0, 99))
def test_the_first_largest_by_blocks_is_argmax(columns: int, levels: int, seed: int) -> None:
    """Also where many are equal: the first."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (5, columns), generator=generator).float()
    values[0] = -torch.inf
    expected = [row.index(max(row)) for row in values.tolist()]
    assert criteria._first_largest(values).tolist() == expected


def test_doubts_without_end_are_ties() -> None:
    """Infinite uncertainty, of right and of wrong items, and none at all."""
    location = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, 0.05], [-1, 0]])
    labels = torch.tensor([0, 0, 1, 2, 3, 3])
    embedding = ProjectedGaussianEmbedding({"location": location, "variance": torch.full((6, 1), 1e-3)})
    for doubt in ([torch.inf] * 6, [0.1, 0.2, torch.inf, 0.3, torch.inf, 0.1], [0.0] * 6):
        known = torch.tensor(doubt)
        wrong = [2, 3]
        wins = [
            float(known[i] > known[j]) + 0.5 * float(known[i] == known[j])
            for i in wrong for j in range(6) if j not in wrong
        ]  # fmt: skip
        found = criteria._error_auroc(embedding.direction, known, labels, torch.arange(6))
        assert float(found) == pytest.approx(sum(wins) / len(wins))


@pytest.mark.parametrize("criterion", ["consensus-ece", "error-auroc", "match-likelihood"])
def test_questions_to_the_device_do_not_grow_with_the_grid(criterion: str) -> None:
    """On a shared GPU each takes milliseconds, and the loop of before asked thousands."""
    posterior, features, labels = a_problem(80)
    # The first of a process asks twice more.
    tune(posterior, features, labels, criterion=criterion, scales=[1.0])
    asked = []
    for count in (3, 40):
        scales = default_scales(posterior, count)
        with Launches() as launches:
            tune(posterior, features, labels, criterion=criterion, scales=scales)
        waits = ("_local_scalar_dense", "nonzero", "_unique2", "masked_select", "is_nonzero", "equal")
        asked.append(sum(name in waits for name in launches.names))
    assert asked[0] == asked[1] <= 20


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0.1, 0.2, 0.3, torch.inf])), min_size=4, max_size=40
    ),
    seed=st.integers(0, 99),
)
def test_error_auroc_is_the_metric(items: list[tuple[int, float]], seed: int) -> None:
    """Ties and infinities among the doubts; ½ where the metric has no value."""
    labels, doubt = torch.tensor([label for label, _ in items]), torch.tensor([value for _, value in items])
    direction = torch.nn.functional.normalize(
        torch.randn(len(items), 3, generator=torch.Generator().manual_seed(seed)), dim=1
    )
    nearest = (direction @ direction.T).fill_diagonal_(-2).argmax(1)
    expected = metrics.error_auroc(doubt, labels[nearest] == labels)
    found = float(criteria._error_auroc(direction, doubt, labels, torch.arange(len(items))))
    assert found == (0.5 if math.isnan(expected) else expected)


def test_consensus_ece_is_the_metric() -> None:
    """The votes counted with loops, their calibration error by `doubtless.metrics`, and what voting costs."""
    posterior, features, labels = a_problem(120)
    (trial,) = tune(
        posterior, features, labels, scales=[3.0], generator=torch.Generator().manual_seed(5)
    ).trials
    embedding = posterior.with_scale(trial.scale, trial.prior_precision).predict(features)
    count, right, neighbours = one_by_one.votes(embedding, labels, generator=torch.Generator().manual_seed(5))
    expected = metrics.consensus_ece(count, right, samples=100)
    cost = max(0.0, float(neighbours.double().mean() - right.double().mean()))
    assert 0.01 < expected < 0.99
    assert trial.score == pytest.approx(-expected - cost, abs=1e-12)


def test_criteria_take_embeddings_with_a_gradient() -> None:
    location = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    embedding, labels = Embedding.gaussian(location, torch.ones(12, 1)), torch.arange(12) % 2
    without = Embedding.gaussian(location.detach(), torch.ones(12, 1))
    for score in (error_auroc, match_likelihood):
        assert score(embedding, labels) == score(without, labels)


def test_public_criteria_are_points_of_a_grid() -> None:
    posterior, features, labels = a_problem(120)
    scales = default_scales(posterior, 3)
    scores = {"error-auroc": error_auroc, "match-likelihood": match_likelihood}
    for name, score in scores.items():
        for trial in tune(posterior, features, labels, criterion=name, scales=scales).trials:
            embedding = posterior.with_scale(trial.scale, trial.prior_precision).predict(features)
            assert score(embedding, labels) == pytest.approx(trial.score, rel=1e-9)
    generator = torch.Generator().manual_seed(0)
    for trial in tune(posterior, features, labels, scales=scales, generator=generator).trials:
        embedding = posterior.with_scale(trial.scale, trial.prior_precision).predict(features)
        again = negative_consensus_ece(embedding, labels, generator=torch.Generator().manual_seed(0))
        assert again == pytest.approx(trial.score, abs=1e-12)

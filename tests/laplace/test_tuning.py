"""Choosing τ and λ: every criterion against loops, the evidence's maximum against a search."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.laplace import (
    CurvatureOptions,
    DiagonalPosterior,
    default_scales,
    error_auroc,
    fit,
    marginal_prior_precision,
    match_likelihood,
    negative_consensus_ece,
    tune,
)
from doubtless.laplace.criteria import doublings_to
from doubtless.laplace.tuning import marginal_prior_precisions
from doubtless.metrics import consensus_ece


def noisy_clusters(n: int = 90, width: int = 10) -> tuple[Tensor, Tensor]:
    """Five classes, some images with so much noise that their neighbours are wrong."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(n) % 5
    centres = torch.randn(5, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, width, generator=generator, dtype=torch.float64)
    strength = 0.2 + torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return centres[labels] + strength * noise, labels


@pytest.fixture(scope="module")
def problem() -> tuple[DiagonalPosterior, Tensor, Tensor]:
    features, labels = noisy_clusters()
    return (
        fit(features[:45], labels[:45], dim=6, options=CurvatureOptions(margin=1.0)),
        features[45:],
        labels[45:],
    )


def nearest_others(direction: Tensor) -> list[int]:
    found = []
    for i, row in enumerate(direction @ direction.T):
        others = [j for j in range(len(row)) if j != i]
        found.append(max(others, key=lambda j: row[j]))
    return found


def test_error_auroc_by_pairs(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    posterior, features, labels = problem
    embedding = posterior.predict(features)
    wrong = [labels[j] != labels[i] for i, j in enumerate(nearest_others(embedding.direction))]
    assert 3 < sum(wrong) < 42
    doubt = embedding.uncertainty
    wins = [
        float(doubt[i] > doubt[j]) + 0.5 * float(doubt[i] == doubt[j])
        for i in range(45) for j in range(45) if wrong[i] and not wrong[j]
    ]  # fmt: skip
    assert error_auroc(embedding, labels) == pytest.approx(sum(wins) / len(wins))
    assert error_auroc(embedding, torch.zeros(45)) == 0.5
    equal = Embedding.gaussian(embedding.location, torch.ones(45, 1, dtype=torch.float64))
    assert error_auroc(equal, labels) == 0.5


def test_match_likelihood_by_loops(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    posterior, features, labels = problem
    labels = labels.clone()
    labels[3] = 77  # nobody else has this one: it is left out
    embedding = posterior.predict(features)
    logs = []
    for i in range(45):
        bets = {
            j: math.exp(float(embedding.direction[i] @ embedding.direction[j]) / float(embedding.uncertainty[i]))
            for j in range(45) if j != i
        }  # fmt: skip
        right = sum(bet for j, bet in bets.items() if labels[j] == labels[i])
        if right:
            logs.append(math.log(right / sum(bets.values())))
    assert len(logs) == 44
    assert match_likelihood(embedding, labels) == pytest.approx(sum(logs) / 44, rel=1e-9)


def test_match_likelihood_of_certain_embeddings_is_finite() -> None:
    location = torch.eye(4).repeat(2, 1)
    sure = Embedding.gaussian(location, torch.zeros(8, 1))
    right, wrong = torch.arange(4).repeat(2), torch.arange(8) // 2
    assert match_likelihood(sure, right) == pytest.approx(0)
    assert -1e13 < match_likelihood(sure, wrong) < -1e6


def votes_by_loops(
    embedding: Embedding, labels: Tensor, gallery: list[int]
) -> tuple[dict[int, list[float]], float]:
    """Bin → right winner less its share, a query each, and how many right answers votes lost, among neighbours."""
    samples = embedding.sample(30, generator=torch.Generator().manual_seed(0))
    bins: dict[int, list[float]] = {}
    lost = 0
    for i in range(len(labels)):
        others = [j for j in gallery if j != i]
        hits = [others[int((embedding.direction[others] @ draw).argmax())] for draw in samples[:, i]]
        votes = Counter(int(labels[j]) for j in hits)
        count = max(votes.values())
        winners = sorted(label for label, number in votes.items() if number == count)
        first = int(labels[others[int((embedding.direction[others] @ embedding.direction[i]).argmax())]])
        right = (first if first in winners else winners[0]) == int(labels[i])
        place = min(10 * count // 30, 9)
        bins.setdefault(place, []).append(right - count / 30)
        lost += (first == int(labels[i])) - right
    return bins, lost


def test_consensus_by_loops(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    posterior, features, labels = problem
    embedding = posterior.with_scale(posterior.scale / 20).predict(features)
    found = -negative_consensus_ece(embedding, labels, draws=30, generator=torch.Generator().manual_seed(0))
    bins, lost = votes_by_loops(embedding, labels, list(range(45)))
    assert len(bins) > 3
    gap = sum(abs(sum(gaps)) for gaps in bins.values())
    assert found == pytest.approx((gap + max(0, lost)) / 45, abs=1e-12)


@pytest.mark.parametrize("doublings", [0.0, 0.5, 1.0])
def test_consensus_of_a_larger_gallery_by_loops(
    problem: tuple[DiagonalPosterior, Tensor, Tensor], doublings: float
) -> None:
    """A doubling changes the gap of all bins, and what votes lose, as much as the one from half to all did."""
    posterior, features, labels = problem
    embedding = posterior.with_scale(posterior.scale / 20).predict(features)
    found = -negative_consensus_ece(
        embedding, labels, draws=30, doublings=doublings, generator=torch.Generator().manual_seed(0)
    )
    halves = torch.randperm(45, generator=torch.Generator().manual_seed(0)).split([23, 22])
    bins, lost = votes_by_loops(embedding, labels, list(range(45)))
    parts = [votes_by_loops(embedding, labels, half.tolist()) for half in halves]

    def total(found: dict[int, list[float]]) -> float:
        return sum(sum(gaps) for gaps in found.values())

    change = doublings * (total(bins) - sum(total(part) for part, _ in parts) / 2) / 45
    gap = sum(abs(sum(gaps) + change * len(gaps)) for gaps in bins.values())
    gap += abs(total(bins) + 45 * change)  # what is off on the whole counts as well
    further = lost + doublings * (lost - sum(cost for _, cost in parts) / 2)
    assert found == pytest.approx((gap + max(0.0, further)) / 45, abs=1e-12)


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten clusters that overlap, in eight dimensions: places (n, 8) and labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(10, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.arange(count) % 10
    return centres[labels] + 0.3 * torch.randn(count, 8, generator=generator), labels


def test_a_larger_gallery_is_foreseen() -> None:
    """Draws so narrow that all their votes are too sure; among more neighbours they are less so.

    All bins are off to the same side here, so what is off on the whole is as much again.
    """

    def error(count: int, meant_for: int, seeds: int) -> float:
        found = []
        for seed in range(seeds):
            location, labels = clusters(count, seed)
            embedding = Embedding.gaussian(location, torch.full((count, 1), 0.003))
            score = negative_consensus_ece(
                embedding,
                labels,
                draws=40,
                doublings=doublings_to(meant_for, count),
                generator=torch.Generator().manual_seed(seed),
            )
            found.append(-score)
        return sum(found) / 2 / seeds

    truth, plain, foreseen = error(2000, 2000, 4), error(500, 500, 12), error(500, 2000, 12)
    assert plain > truth + 0.01
    assert abs(foreseen - truth) < abs(plain - truth) / 2


def test_galleries_too_far_away_are_refused(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    assert doublings_to(90, 45) == 1
    for size in (44, 181):
        with pytest.raises(InputError, match="between the 45 validation images there are and 4 times"):
            tune(*problem, meant_for=size)
    with pytest.raises(InputError, match="goes with the criterion consensus-ece"):
        tune(*problem, criterion="error-auroc", meant_for=90)
    plain, same, further = (tune(*problem, meant_for=size).trials for size in (None, 45, 90))
    assert [trial[:2] for trial in same] == [trial[:2] for trial in plain]
    gaps = [before.score - trial.score for before, trial in zip(plain, same, strict=True)]
    assert min(gaps) >= 0 < max(gaps)  # what is off on the whole, once more
    assert [trial.score for trial in further] != [trial.score for trial in same]


def test_calibrated_ignorance_does_not_win() -> None:
    """Draws that know nothing are right as often as they agree: by calibration alone that is the best."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 10
    centres = normalize(torch.randn(10, 8, generator=generator), dim=1)
    location = centres[labels] + 0.35 * torch.randn(600, 8, generator=generator)
    knowing, ignorant = (
        Embedding.gaussian(location, torch.full((600, 1), variance)) for variance in (1e-4, 1e6)
    )
    first = labels[nearest_others(knowing.direction)]
    assert (first == labels).float().mean() > 0.5
    errors = [_vote_error(embedding, labels, first) for embedding in (knowing, ignorant)]
    assert errors[1] < errors[0]
    scores = [negative_consensus_ece(embedding, labels) for embedding in (knowing, ignorant)]
    assert scores[1] < scores[0]
    assert scores[0] == pytest.approx(-errors[0], abs=0.02)  # what knows loses nothing by a vote


def _vote_error(embedding: Embedding, labels: Tensor, first: Tensor) -> float:
    """The metric that is reported, of votes of a hundred draws."""
    cosine = embedding.sample(100, generator=torch.Generator().manual_seed(0)) @ embedding.direction.T
    cosine.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    votes = torch.nn.functional.one_hot(labels[cosine.argmax(2)], 10).sum(0)  # (n, classes)
    votes = 2 * votes + torch.nn.functional.one_hot(first, 10)
    most, winner = votes.max(1)
    return consensus_ece(most // 2, winner == labels, samples=100)


def test_rows_are_cut_without_a_trace(
    problem: tuple[DiagonalPosterior, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, features, labels = problem
    embedding = posterior.predict(features)
    whole = error_auroc(embedding, labels), match_likelihood(embedding, labels)
    for sizes in ("ELEMENTS", "AT_ONCE"):
        monkeypatch.setattr(f"doubtless.laplace.criteria.{sizes}", {"cpu": 45 * 7})
    assert (error_auroc(embedding, labels), match_likelihood(embedding, labels)) == pytest.approx(whole)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3, 1e7])
def test_marginal_prior_is_the_maximum_of_the_evidence(
    problem: tuple[DiagonalPosterior, Tensor, Tensor], scale: float
) -> None:
    posterior = problem[0]
    best = marginal_prior_precision(posterior, scale)
    top = posterior.with_scale(scale, best).log_marginal()
    for factor in (1e-3, 0.1, 0.98, 1.02, 10, 1e3):
        assert posterior.with_scale(scale, best * factor).log_marginal() < top


@pytest.mark.parametrize("prior", ["marginal", "validation"])
@pytest.mark.parametrize("criterion", ["consensus-ece", "error-auroc", "match-likelihood"])
def test_tuning_finds_the_best_of_its_grid(
    problem: tuple[DiagonalPosterior, Tensor, Tensor], criterion: str, prior: str
) -> None:
    posterior, features, labels = problem
    scales = default_scales(posterior, 8)
    tuned = tune(posterior, features, labels, criterion=criterion, prior=prior, scales=scales)
    assert len(tuned.trials) == (8 if prior == "marginal" else 40)
    best = max(tuned.trials, key=lambda trial: trial.score)
    assert (tuned.posterior.scale, tuned.posterior.prior_precision) == (best.scale, best.prior_precision)
    assert best.score > min(trial.score for trial in tuned.trials)
    again = tune(posterior, features, labels, criterion=criterion, prior=prior, scales=scales)
    assert again.trials == tuned.trials  # also where it samples
    if criterion != "consensus-ece":
        score = {"error-auroc": error_auroc, "match-likelihood": match_likelihood}[criterion]
        assert score(tuned.posterior.predict(features), labels) == pytest.approx(best.score, rel=1e-6)


@pytest.mark.parametrize("prior", ["marginal", "validation"])
def test_refining_looks_between_the_neighbours_of_the_best(
    problem: tuple[DiagonalPosterior, Tensor, Tensor], prior: str
) -> None:
    posterior, features, labels = problem
    scales = default_scales(posterior, 6)
    grid = tune(posterior, features, labels, prior=prior, scales=scales)
    tuned = tune(posterior, features, labels, prior=prior, scales=scales[::-1], refine=4)
    coarse, closer = tuned.trials[:-4], tuned.trials[-4:]
    assert coarse == grid.trials
    place = scales.index(grid.posterior.scale)
    low, high = scales[max(place - 1, 0)], scales[min(place + 1, 5)]
    assert all(low < trial.scale < high for trial in closer)
    assert max(trial.score for trial in tuned.trials) >= max(trial.score for trial in grid.trials)
    if prior == "validation":
        held = grid.posterior.prior_precision / grid.posterior.scale
        assert [trial.prior_precision / trial.scale for trial in closer] == pytest.approx([held] * 4)
    else:
        expected = marginal_prior_precisions(posterior, [trial.scale for trial in closer])
        assert [trial.prior_precision for trial in closer] == pytest.approx(expected)
    alone = tune(posterior, features, labels, prior=prior, scales=scales[:1], refine=4)
    assert len({trial.scale for trial in alone.trials}) == 1  # nothing lies between one and itself


def test_a_criterion_can_be_a_function(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    posterior, features, labels = problem

    def as_unsure_as_a_tenth(embedding: Embedding, labels: Tensor) -> float:
        return -abs(math.log(float(embedding.uncertainty.median()) / 0.1))

    tuned = tune(posterior, features, labels, criterion=as_unsure_as_a_tenth)
    assert 0.05 < float(tuned.posterior.predict(features).uncertainty.median()) < 0.2
    assert len(tuned.trials) == 50


def test_default_scales_span_doubt_and_certainty(
    problem: tuple[DiagonalPosterior, Tensor, Tensor],
) -> None:
    """Also when features are a thousand times as large and weights as small: the same embeddings."""
    posterior, features, _ = problem
    lengths = []
    for factor in (1.0, 1e3):
        rescaled = DiagonalPosterior(
            posterior.weight / factor, None, posterior.weight_curvature * factor**2, None,
            scale=1.0, prior_precision=1.0,
        )  # fmt: skip
        for scale in default_scales(rescaled, 2):
            prior = marginal_prior_precision(rescaled, scale)
            embedding = rescaled.with_scale(scale, prior).predict(features * factor)
            lengths.append(float(embedding.resultant.median()))
    assert lengths[:2] == pytest.approx(lengths[2:], rel=1e-6)
    assert lengths[0] < 0.5 < 0.95 < lengths[1]


def test_wrong_input_gets_a_sentence(problem: tuple[DiagonalPosterior, Tensor, Tensor]) -> None:
    posterior, features, labels = problem
    with pytest.raises(InputError, match="did you mean 'error-auroc'"):
        tune(posterior, features, labels, criterion="error-auc")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'marginal'"):
        tune(posterior, features, labels, prior="marginals")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="45 features and 3 labels"):
        tune(posterior, features, labels[:3])
    with pytest.raises(InputError, match="no uncertainty to score"):
        error_auroc(Embedding.point(features), labels)
    with pytest.raises(InputError, match="at least 2 items, got 1"):
        error_auroc(posterior.predict(features[:1]), labels[:1])
    with pytest.raises(InputError, match="scores all items; leave out queries"):
        tune(posterior, features, labels, criterion=lambda *_: 0.0, queries=torch.arange(3))
    flat = DiagonalPosterior(torch.ones(1, 1), None, torch.zeros(1, 1), None, scale=1.0, prior_precision=1.0)
    for broken in (default_scales, lambda posterior: marginal_prior_precision(posterior, 1.0)):
        with pytest.raises(InputError, match="all 0"):
            broken(flat)

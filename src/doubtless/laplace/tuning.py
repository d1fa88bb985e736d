"""Choosing a posterior's scale τ and prior precision λ, in closed form over a grid.

λ by the marginal likelihood at each τ, or by the validation score; τ by the validation score only, because
the contrastive loss is no normalised likelihood. Nothing is sampled to predict, and all points of the grid are
worked on together: on a GPU the processor waits for λ, for the quadrature's checks and for the scores only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding
from doubtless.errors import InputError, nearest
from doubtless.laplace.criteria import (
    Criterion,
    Grid,
    doublings_to,
    error_auroc_of_grid,
    match_likelihood_of_grid,
    negative_consensus_ece_of_grid,
)
from doubtless.laplace.posterior import Posterior
from doubtless.progress import phase
from doubtless.sphere.projected_gaussian import unit_moments

CRITERIA = ("consensus-ece", "error-auroc", "match-likelihood")
PREDICTED = 2**24  # numbers, (points, n, D), predicted at a time
SHARES = 2**22  # numbers, (scales, parameters), in float64, when λ is sought
CLOSE = 1e-10  # a step in log λ that no longer counts
GridCriterion = Callable[[Grid, Tensor], Tensor]
Point = tuple[float, float]  # τ and λ


class Trial(NamedTuple):
    """One point of the grid."""

    scale: float
    prior_precision: float
    score: float


class Tuned(NamedTuple):
    """The posterior with the best score, and all that were tried."""

    posterior: Posterior
    trials: list[Trial]


@phase("tuning")
def tune(
    posterior: Posterior,
    features: Tensor,
    labels: Tensor,
    *,
    criterion: Literal["consensus-ece", "error-auroc", "match-likelihood"] | Criterion = "consensus-ece",
    prior: Literal["marginal", "validation"] = "marginal",
    scales: Sequence[float] | None = None,
    ratios: Sequence[float] | None = None,
    refine: int = 0,
    queries: Tensor | None = None,
    meant_for: int | None = None,
    generator: torch.Generator | None = None,
) -> Tuned:
    """The best τ and λ for validation features (n, F) and labels (n,), neighbours among themselves.

    >>> from doubtless.laplace import fit
    >>> features, labels = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    >>> posterior = fit(features[:30], labels[:30], dim=4)
    >>> best = tune(posterior, features[30:], labels[30:], criterion="error-auroc", scales=[1.0, 10.0]).posterior
    >>> best.scale in (1.0, 10.0), best.prior_precision > 0
    (True, True)

    `criterion` may be a function of an `Embedding` and labels, higher is better. `queries` (q,) are the items it
    scores, all by default, while all stay neighbours: what draws agree on depends on how dense they lie.
    `scales` are the τ tried (default 50, around the one where weights are as large as their spread); `ratios`,
    for `prior="validation"`, the λ/τ (default 5, around the mean curvature). `refine` more τ are tried between
    the best one's two neighbours: a score may change much from one τ of a grid to the next. `meant_for` is the
    size of the gallery to be calibrated for, n or larger (consensus-ece only).
    """
    if len(features) != len(labels):
        raise InputError(f"Every image needs a label, got {len(features)} features and {len(labels)} labels.")
    _check_choices(criterion, prior, queries, meant_for)
    doublings = None if meant_for is None else doublings_to(meant_for, len(labels))
    score = _criterion(criterion, generator, posterior.weight.device, doublings)
    labels = labels.to(posterior.weight.device)
    scored = (torch.arange(len(labels)) if queries is None else queries).to(labels.device)

    def trials_at(points: Sequence[Point]) -> list[Trial]:
        grids = _grids(posterior, features, points, scored)
        scores = torch.cat([score(grid, labels) for grid in grids]).tolist()
        return [Trial(*point, number) for point, number in zip(points, scores, strict=True)]

    tried = sorted(scales) if scales is not None else default_scales(posterior)
    steps = None
    if prior == "validation":
        mean = float(posterior.flat_curvature().mean())
        steps = list(ratios) if ratios is not None else [mean * 10.0**power for power in range(-3, 2)]
    trials = trials_at(_points(posterior, tried, steps))
    best = max(trials, key=lambda trial: trial.score)
    if refine and len(tried) > 1:
        closer = _between(tried, best.scale, refine)
        kept = None if steps is None else [best.prior_precision / best.scale]
        trials += trials_at(_points(posterior, closer, kept))
        best = max(trials, key=lambda trial: trial.score)
    return Tuned(posterior.with_scale(best.scale, best.prior_precision), trials)


def _check_choices(
    criterion: str | Criterion, prior: str, queries: Tensor | None, meant_for: int | None
) -> None:
    """Refuses what there is not, and what does not go together."""
    if prior not in ("marginal", "validation"):
        raise InputError(f"There is no prior {prior!r}{nearest(prior, ['marginal', 'validation'])}")
    if callable(criterion) and queries is not None:
        raise InputError(
            "A criterion that is a function scores all items; leave out queries, or name a criterion."
        )
    if meant_for is not None and criterion != "consensus-ece":
        raise InputError(
            "A gallery size, meant_for, calibrates votes: it goes with the criterion consensus-ece."
        )


def _points(posterior: Posterior, scales: Sequence[float], ratios: Sequence[float] | None) -> list[Point]:
    """τ and λ: λ by the marginal likelihood at each τ, or in fixed ratios to it."""
    if ratios is None:
        return list(zip(scales, marginal_prior_precisions(posterior, scales), strict=True))
    return [(scale, ratio * scale) for ratio in ratios for scale in scales]


def _between(scales: Sequence[float], best: float, count: int) -> list[float]:
    """`count` numbers between the neighbours of the best of rising scales, equally spaced in the logarithm.

    >>> _between([1.0, 10.0, 100.0], 1.0, 1)
    [3.1622776601683795]
    """
    place = scales.index(best)
    low, high = math.log(scales[max(place - 1, 0)]), math.log(scales[min(place + 1, len(scales) - 1)])
    return [math.exp(low + (high - low) * step / (count + 1)) for step in range(1, count + 1)]


def default_scales(posterior: Posterior, count: int = 50) -> list[float]:
    """τ from 1e-4 to 1e4 times the one at which τH is the mean of 1/W², equally spaced in the logarithm."""
    curvature = posterior.flat_curvature()
    unit = float(curvature.mean()) * float(posterior.squared_norm()) / curvature.numel()
    if not unit > 0:
        raise InputError("The curvature or the weights are all 0: there is no scale to choose.")
    return [10.0 ** (-4 + 8 * step / (count - 1)) / unit for step in range(count)]


def marginal_prior_precision(posterior: Posterior, scale: float) -> float:
    """The λ with the largest `log_marginal` at this τ."""
    return marginal_prior_precisions(posterior, [scale])[0]


def marginal_prior_precisions(posterior: Posterior, scales: Sequence[float]) -> list[float]:
    """The λ with the largest `log_marginal` at each τ.

    Where its derivative is 0, λ‖W*‖² = Σ τH/(τH+λ). In log λ the logarithm of the left side less that of the
    right rises with a slope between 1 and 2, so there is one solution and Newton's steps go straight to it.
    """
    curvature = posterior.flat_curvature()
    squared_norm, informed = torch.stack((posterior.squared_norm(), (curvature > 0).sum())).tolist()
    if informed == 0 or squared_norm == 0:
        raise InputError("The curvature or the weights are all 0: the marginal likelihood has no maximum.")
    start = math.log(informed / squared_norm)  # the right side is at most `informed`
    tau = torch.tensor(scales, dtype=torch.float64, device=curvature.device)
    parts = tau.split(max(1, SHARES // len(curvature)))
    log_priors = [_newton(curvature, part, start, math.log(squared_norm)) for part in parts]
    return torch.cat(log_priors).exp().tolist()


def _newton(curvature: Tensor, scales: Tensor, start: float, log_squared_norm: float) -> Tensor:
    """log λ for every scale, (scales,), from a start for all; curvature (parameters,)."""
    log_scales = scales.log()
    log_ratio = start - log_scales  # of λ/τ, all that the shares depend on
    for _ in range(8):
        for _ in range(8):  # without asking whether that is enough
            # In [0, 1): how far data determine each parameter.
            share = curvature / (curvature + log_ratio.exp().unsqueeze(1))
            determined = share.sum(1)
            slope = 1 + (share - share.square()).sum(1) / determined
            step = (log_ratio + log_scales + log_squared_norm - determined.log()) / slope
            log_ratio = log_ratio - step
        if float(step.abs().max()) < CLOSE:
            break
    return log_ratio + log_scales


def _grids(
    posterior: Posterior, features: Tensor, points: Sequence[Point], queries: Tensor
) -> Iterator[Grid]:
    """The predictions at all points, as many points at a time as fit in little memory."""
    size = max(1, PREDICTED // max(1, len(features) * posterior.weight.shape[0]))
    for first in range(0, len(points), size):
        location, variance = posterior.predict_grid(features, points[first : first + size])
        moments = unit_moments(location.expand_as(variance).flatten(0, 1), variance.flatten(0, 1))
        direction, doubt = moments.direction.view_as(variance), moments.uncertainty.view(variance.shape[:2])
        yield Grid(location, variance, direction, doubt, queries)


def _criterion(
    criterion: str | Criterion,
    generator: torch.Generator | None,
    device: torch.device,
    doublings: float | None,
) -> GridCriterion:
    if callable(criterion):
        return partial(_one_by_one, criterion)
    if criterion == "error-auroc":
        return error_auroc_of_grid
    if criterion == "match-likelihood":
        return match_likelihood_of_grid
    if criterion != "consensus-ece":
        raise InputError(f"There is no criterion {criterion!r}{nearest(criterion, CRITERIA)}")
    source = generator if generator is not None else torch.Generator(device).manual_seed(0)
    state = source.get_state()

    def score(grid: Grid, labels: Tensor) -> Tensor:
        source.set_state(state)  # the same draws at every point of the grid: differences are not luck
        return negative_consensus_ece_of_grid(grid, labels, generator=source, doublings=doublings)

    return score


def _one_by_one(criterion: Criterion, grid: Grid, labels: Tensor) -> Tensor:
    """A function of an embedding at every point of a grid."""
    embeddings: Iterable[ProjectedGaussianEmbedding] = (
        ProjectedGaussianEmbedding({"location": grid.location, "variance": variance})
        for variance in grid.variance
    )
    return torch.tensor([criterion(embedding, labels) for embedding in embeddings], dtype=torch.float64)

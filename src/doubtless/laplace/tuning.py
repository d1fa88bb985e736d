"""Choosing a posterior's scale τ and prior precision λ, in closed form over a grid.

λ by the marginal likelihood at each τ, or by the validation score; τ by the validation score only, because
the contrastive loss is no normalised likelihood. Nothing is sampled to predict, so a grid costs seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from doubtless.errors import InputError, nearest
from doubtless.laplace.criteria import Criterion, error_auroc, match_likelihood, negative_consensus_ece
from doubtless.laplace.posterior import DiagonalPosterior

if TYPE_CHECKING:
    from doubtless.embedding import Embedding

CRITERIA = ("consensus-ece", "error-auroc", "match-likelihood")


class Trial(NamedTuple):
    """One point of the grid."""

    scale: float
    prior_precision: float
    score: float


class Tuned(NamedTuple):
    """The posterior with the best score, and all that were tried."""

    posterior: DiagonalPosterior
    trials: list[Trial]


def tune(
    posterior: DiagonalPosterior,
    features: Tensor,
    labels: Tensor,
    *,
    criterion: Literal["consensus-ece", "error-auroc", "match-likelihood"] | Criterion = "consensus-ece",
    prior: Literal["marginal", "validation"] = "marginal",
    scales: Sequence[float] | None = None,
    ratios: Sequence[float] | None = None,
    generator: torch.Generator | None = None,
) -> Tuned:
    """The best τ and λ for validation features (n, F) and labels (n,), neighbours among themselves.

    >>> best = tune(posterior, features, labels, criterion="error-auroc").posterior
    >>> best.scale, best.prior_precision

    `criterion` may be a function of an `Embedding` and labels, higher is better. `scales` are the τ tried
    (default 50, around the one where weights are as large as their spread); `ratios`, for `prior="validation"`,
    the λ/τ (default 5, around the mean curvature).
    """
    if prior not in ("marginal", "validation"):
        raise InputError(f"There is no prior {prior!r}{nearest(prior, ['marginal', 'validation'])}")
    if len(features) != len(labels):
        raise InputError(f"every image needs a label, got {len(features)} features and {len(labels)} labels.")
    labels = labels.to(posterior.weight.device)
    score = _criterion(criterion, generator, posterior.weight.device)
    tried = list(scales) if scales is not None else default_scales(posterior)
    if prior == "marginal":
        candidates = _by_marginal_likelihood(posterior, features, tried)
    else:
        mean = float(posterior.flat_curvature().mean())
        steps = list(ratios) if ratios is not None else [mean * 10.0**power for power in range(-3, 2)]
        candidates = _by_ratio(posterior, features, tried, steps)
    trials = [Trial(scale, prior_, score(embedding, labels)) for scale, prior_, embedding in candidates]
    best = max(trials, key=lambda trial: trial.score)
    return Tuned(posterior.with_scale(best.scale, best.prior_precision), trials)


def default_scales(posterior: DiagonalPosterior, count: int = 50) -> list[float]:
    """τ from 1e-4 to 1e4 times the one at which τH is the mean of 1/W², equally spaced in the logarithm."""
    curvature = posterior.flat_curvature()
    unit = float(curvature.mean()) * float(posterior.squared_norm()) / curvature.numel()
    if not unit > 0:
        raise InputError("the curvature or the weights are all 0: there is no scale to choose.")
    return [10.0 ** (-4 + 8 * step / (count - 1)) / unit for step in range(count)]


def marginal_prior_precision(posterior: DiagonalPosterior, scale: float) -> float:
    """The λ with the largest `log_marginal` at this τ.

    Where its derivative is 0, λ‖W*‖² = Σ τH/(τH+λ). In log λ the logarithm of the left side less that of the
    right rises with a slope between 1 and 2, so there is one solution and Newton's steps go straight to it.
    """
    curvature = scale * posterior.flat_curvature()
    squared_norm = float(posterior.squared_norm())
    informed = int((curvature > 0).sum())
    if informed == 0 or squared_norm == 0:
        raise InputError("the curvature or the weights are all 0: the marginal likelihood has no maximum.")
    log_prior = math.log(informed / squared_norm)  # the right side is at most `informed`
    for _ in range(60):
        prior = math.exp(log_prior)
        share = curvature / (curvature + prior)  # in [0, 1): how far the data determine each parameter
        determined = float(share.sum())
        slope = 1 + float((share * (1 - share)).sum()) / determined
        step = (log_prior + math.log(squared_norm / determined)) / slope
        log_prior -= step
        if abs(step) < 1e-10:
            break
    return math.exp(log_prior)


_Candidates = Iterator[tuple[float, float, "Embedding"]]


def _by_marginal_likelihood(
    posterior: DiagonalPosterior, features: Tensor, scales: Sequence[float]
) -> _Candidates:
    for scale in scales:
        prior = marginal_prior_precision(posterior, scale)
        yield scale, prior, posterior.with_scale(scale, prior).predict(features)


def _by_ratio(
    posterior: DiagonalPosterior, features: Tensor, scales: Sequence[float], ratios: Sequence[float]
) -> _Candidates:
    from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding

    for ratio in ratios:
        # 1/(τH + λ) = 1/(H + λ/τ) / τ: one matrix product serves every τ.
        unit = posterior.with_scale(1.0, ratio).predict(features).parameters
        for scale in scales:
            parameters = {"location": unit["location"], "variance": unit["variance"] / scale}
            yield scale, ratio * scale, ProjectedGaussianEmbedding(parameters)


def _criterion(
    criterion: str | Criterion, generator: torch.Generator | None, device: torch.device
) -> Criterion:
    if callable(criterion):
        return criterion
    if criterion == "error-auroc":
        return error_auroc
    if criterion == "match-likelihood":
        return match_likelihood
    if criterion != "consensus-ece":
        raise InputError(f"There is no criterion {criterion!r}{nearest(criterion, CRITERIA)}")
    source = generator if generator is not None else torch.Generator(device).manual_seed(0)
    state = source.get_state()

    def score(embedding: Embedding, labels: Tensor) -> float:
        source.set_state(state)  # the same draws at every point of the grid: differences are not luck
        return negative_consensus_ece(embedding, labels, generator=source)

    return score

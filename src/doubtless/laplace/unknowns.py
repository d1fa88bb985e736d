"""Choosing λ/τ by classes that are left out: strangers that cost no foreign data.

Which images a posterior doubts more than others depends on λ/τ, hardly on τ. So some training classes are kept out
of the curvature, with some images of the others, and the ratio is taken that tells those classes from those images:
by variance over squared length, s²(x)/‖Wx‖².
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.laplace.fit import DEFAULT, Covariance, CurvatureOptions, Head, fit
from doubtless.laplace.posterior import Posterior
from doubtless.metrics.ranking import Ranking, area_under_roc
from doubtless.progress import phase

RATIOS = tuple(10.0 ** (power / 2) for power in range(-8, 3))  # 1e-4 to 10
HELD_OUT = 5  # every fifth image of the classes that stay is not fitted


class RatioByUnknowns(NamedTuple):
    """The best λ/(τ · mean H), and the score of every one that was tried."""

    ratio: float
    scores: dict[float, float]


@phase("unknowns")
def ratio_by_unknowns(
    features: Tensor,
    labels: Tensor,
    head: Head | nn.Linear,
    *,
    covariance: Covariance = "diagonal",
    options: CurvatureOptions = DEFAULT,
    ratios: Sequence[float] = RATIOS,
    folds: int = 3,
    seed: int = 0,
) -> RatioByUnknowns:
    """λ/(τ · mean H) for features (n, F) and labels (n,) of the training set, by the area under the ROC curve of
    classes left out against images left out, the mean over `folds` such splits.

    >>> features, labels = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 6
    >>> ratio_by_unknowns(features, labels, nn.Linear(8, 4), covariance="kronecker", ratios=[0.1, 1.0]).ratio > 0
    True
    """
    classes = labels.cpu().unique()
    if len(classes) < 3:
        raise InputError(
            f"To leave classes out and have pairs of others there must be three classes, got {len(classes)}."
        )
    source = torch.Generator().manual_seed(seed)
    order = classes[torch.randperm(len(classes), generator=source)]
    parts = order.chunk(max(folds, 2))
    totals = torch.zeros(len(ratios), dtype=torch.float64)
    for unknown in parts[:folds]:
        fitted, known, strange = _split(labels.cpu(), unknown, source)
        posterior = fit(
            features[fitted],
            labels[fitted],
            head,
            covariance=covariance,
            options=options,
            generator=torch.Generator().manual_seed(seed),
        )
        totals += _areas(posterior, features[known], features[strange], ratios)
    scores = (totals / len(parts[:folds])).tolist()
    best = max(range(len(ratios)), key=lambda place: scores[place])
    return RatioByUnknowns(ratios[best], dict(zip(ratios, scores, strict=True)))


def _split(labels: Tensor, unknown: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that are fitted, rows of the same classes that are not, rows of the classes left out."""
    strange = torch.isin(labels, unknown)
    rows = (~strange).nonzero().squeeze(1)
    rows = rows[torch.randperm(len(rows), generator=source)]
    held_out = max(1, len(rows) // HELD_OUT)
    return rows[held_out:], rows[:held_out], strange.nonzero().squeeze(1)


def _areas(posterior: Posterior, known: Tensor, strange: Tensor, ratios: Sequence[float]) -> Tensor:
    """For each ratio the chance that a strange image is doubted more than a known one, (ratios,)."""
    device = posterior.weight.device
    images = torch.cat([known, strange]).to(device)
    is_strange = (torch.arange(len(images)) >= len(known)).to(device)
    mean = float(posterior.flat_curvature().mean())
    found = []
    for ratio in ratios:
        predicted = posterior.with_scale(1.0, ratio * mean).predictive(images)
        doubt = predicted["variance"].mean(1) / predicted["location"].square().sum(1)
        ranking = Ranking.unchecked(doubt.nan_to_num(nan=torch.inf))
        totals = ranking.totals(is_strange.double()), ranking.totals((~is_strange).double())
        found.append(area_under_roc(*totals))
    return torch.stack(found).cpu()

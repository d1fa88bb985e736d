"""Means by tenth of the queries in the order of an uncertainty: what a figure shows and no single number does."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.measure import Curve
from doubtless.metrics.uncertainty import expected_prefix_sums

TENTHS = 10


def means_by_tenth(uncertainty: Tensor, values: Tensor) -> Curve:
    """Mean of `values` (n,) in each tenth of the items by `uncertainty` (n,), the most certain tenth first.

    Tenth m of M ends after ⌊(m+1) n/M⌋ items, as the bins of `rank_ece`; items of equal uncertainty share their
    mean, whatever their order. x: the middle of the tenth as a share of all items. With fewer than ten items some
    tenths have none, and no point.

    >>> curve = means_by_tenth(torch.arange(100.0), torch.linspace(1, 0.01, 100))
    >>> [round(x, 2) for x in curve.x[:3]], [round(y, 3) for y in curve.y[:3]]
    ([0.05, 0.15, 0.25], [0.955, 0.855, 0.755])
    """
    if values.shape != uncertainty.shape:
        raise InputError(
            f"Each of {len(uncertainty)} uncertainties needs one value, got values of shape {tuple(values.shape)}."
        )
    n = len(uncertainty)
    edges = torch.tensor([place * n // TENTHS for place in range(TENTHS + 1)], device=values.device)
    sums = expected_prefix_sums(uncertainty, values.double(), counts=edges).diff()
    size = edges.diff()
    kept = size > 0
    middle = (edges[:-1] + edges[1:]).double() / (2 * n)
    return Curve(middle[kept].tolist(), (sums[kept] / size[kept]).tolist())

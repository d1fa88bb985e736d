"""Figures of an order: retrieval by tenth of uncertainty, and known and other images in one order.

After figure 7 of Warburg et al., *Bayesian Triplet Loss* (2021), and figure 8 of Warburg, Miani, Brack and
Hauberg, *Bayesian Metric Learning for Uncertainty Quantification in Image Retrieval* (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.evaluation.uncertainties import LEARNED, MATCH, Uncertainties
from doubtless.metrics.measure import Curve
from doubtless.metrics.tenths import means_by_tenth

PRECISION = "map@r"  # of a query: what its tenth has the mean of


@dataclass(frozen=True, eq=False)
class JointOrder:
    """Queries and the images of an out-of-distribution set in one order, the most certain first."""

    source: str  # by which uncertainty
    outside: Tensor  # (n + o,) bool: of the out-of-distribution set
    position: Tensor  # (n + o,) in its own set


def decile_curves(uncertainties: Uncertainties, values: Mapping[str, Tensor]) -> dict[str, dict[str, Curve]]:
    """Figure "deciles": mean map@r in every tenth of the queries, a line per uncertainty; all (q,)."""
    precision = values.get(PRECISION)
    if precision is None:
        return {}
    lines = {name: means_by_tenth(one, precision) for name, one in uncertainties.items() if name != MATCH}
    return {"deciles": lines | _references(precision, -precision)}


def joint_curves(inside: Uncertainties, outside: Uncertainties, *, name: str) -> dict[str, dict[str, Curve]]:
    """Figure "ranked/<name>": share of out-of-distribution images in every tenth of both sets together."""
    lines, is_outside = {}, torch.empty(0)
    for source in inside:
        if source in outside:
            both = torch.cat([inside[source], outside[source]])
            is_outside = (torch.arange(len(both), device=both.device) >= len(inside[source])).double()
            lines[source] = means_by_tenth(both, is_outside)
    return {f"ranked/{name}": lines | _references(is_outside, is_outside)} if lines else {}


def joint_order(inside: Uncertainties, outside: Uncertainties, *, seed: int = 0) -> JointOrder:
    """By the learned uncertainty, or by the distance where none is; equal ones in an order drawn by `seed`."""
    source = LEARNED if LEARNED in inside and LEARNED in outside else "distance"
    both = torch.cat([inside[source], outside[source]]).cpu()
    drawn = torch.randperm(len(both), generator=torch.Generator().manual_seed(seed))
    order = drawn[both[drawn].argsort(stable=True)]
    known = len(inside[source])
    return JointOrder(source, order >= known, torch.where(order >= known, order - known, order))


def _references(values: Tensor, best: Tensor) -> dict[str, Curve]:
    """Whoever knows the values, and whoever draws the order."""
    mean = float(values.mean())
    return {"oracle": means_by_tenth(best, values), "random": Curve([0.0, 1.0], [mean, mean])}

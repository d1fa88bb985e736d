"""Uncertainties that cost nothing: what the neighbours and the embedding's length already say.

Each is higher where the query is less sure, so a learned uncertainty can stand beside them. One that does not
beat them is not worth its cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

NAMES = ("distance", "ratio", "spread", "norm")
DEPTH = 10  # neighbours looked at


def free_uncertainties(scores: Tensor, location: Tensor) -> dict[str, Tensor]:
    """The four baselines, each (n,), from the neighbours' cosines (n, k), best first, and locations (n, D).

    >>> found = free_uncertainties(torch.tensor([[0.9, 0.5], [0.6, 0.6]]), torch.tensor([[2.0], [1.0]]))
    >>> {name: value[1] > value[0] for name, value in found.items() if name != "spread"}
    {'distance': tensor(True), 'ratio': tensor(True), 'norm': tensor(True)}
    """
    first = scores[:, :DEPTH].double()
    return {
        "distance": distance(first),
        "ratio": distance_ratio(first),
        "spread": spread(first),
        "norm": -location.double().norm(dim=1),  # networks give what they do not know short vectors
    }


def distance(scores: Tensor) -> Tensor:
    """Distance ‖q − g‖ = √(2 − 2 cos) to the first hit, (n,)."""
    return (2 - 2 * scores[:, 0]).clamp_min(0).sqrt()


def distance_ratio(scores: Tensor) -> Tensor:
    """First distance over second, (n,), in [0, 1]: 1 where the second hit is as near as the first.

    A gallery of one item has no second hit; every ratio is 1 then.
    """
    second = distance(scores[:, 1:2]) if scores.shape[1] > 1 else distance(scores)
    ratio = distance(scores) / second
    return torch.where(second > 0, ratio, 1.0)


def spread(scores: Tensor) -> Tensor:
    """Standard deviation of the first ten cosines, (n,): small inside a dense class, large at its edge."""
    return scores.std(dim=1, correction=0)

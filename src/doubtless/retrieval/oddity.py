"""Oddity: is a query unlike all known ones? From what it says of itself, and no stranger is ever seen.

Each signal becomes a normal score z = Φ⁻¹(rank) among known queries, so that its scale does not matter. The
Mahalanobis distance of the scores is that of a Gaussian copula (Sklar 1959). It notices what no single tail does:
strangers are often *too* sure (a large norm, a small spread), and some signals never go together. A feature that
is nearer to a known one than usual is no oddity: of novelty only the upper side counts. The distance's −log p and
that of novelty alone are added, as Fisher (1925) adds two tests; what the sum is worth is counted among known
queries again, since the two are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from doubtless.retrieval.tail import Tail

SIGNALS = ("image", "model", "novelty")  # what a query says of itself; its hits speak of errors
ONE_SIDED = frozenset({"novelty"})
RIDGE = 1e-3  # of the covariance of scores: two signals that are one must not divide by 0
FAR = 30.0  # −log p from which the normal quantile is taken by its asymptote: 1 − p rounds to 1 at 36


class Oddity:
    """How unlike the known queries a query is.

    >>> known = {"image": torch.randn(500, generator=torch.Generator().manual_seed(0)).double()}
    >>> found = Oddity(known).surprise({"image": torch.tensor([-9.0, 0.0, 9.0])})
    >>> bool(found[0] > 5), bool(found[1] < 1), bool(found[2] > 5)
    (True, True, True)
    """

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        self.names = tuple(name for name in SIGNALS if name in known)
        self.tails = {name: (Tail(known[name]), Tail(-known[name])) for name in self.names}
        scores = self.scores(known)
        self.mean = scores.mean(0)
        centred = scores - self.mean
        covariance = centred.T @ centred / len(scores) + RIDGE * torch.eye(
            len(self.names), dtype=torch.double
        )
        self.precision = torch.linalg.inv(covariance)
        self.apart = Tail(self.distance(known))
        self.tail = Tail(self.statistic(known))

    def scores(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Normal scores (n, signals), float64 on the signals' device."""
        columns = []
        for name in self.names:
            above, below = self.tails[name]
            upper, lower = above.surprise(signals[name]), below.surprise(-signals[name])
            score = torch.where(upper > lower, _normal_score(upper), -_normal_score(lower))
            columns.append(score.clamp_min(0) if name in ONE_SIDED else score)
        return torch.stack(columns, dim=1)

    def distance(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Squared Mahalanobis distance (n,)."""
        centred = self.scores(signals)
        centred = centred - self.mean.to(centred.device)
        return (centred @ self.precision.to(centred.device) * centred).sum(1)

    def statistic(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Fisher's sum, (n,): −log p of the distance, and of novelty where it is known."""
        apart = self.apart.surprise(self.distance(signals))
        return (
            apart + self.tails["novelty"][0].surprise(signals["novelty"])
            if "novelty" in self.tails
            else apart
        )

    def surprise(self, signals: Mapping[str, Tensor]) -> Tensor:
        """−log of the share of known queries that are as odd, (n,)."""
        return self.tail.surprise(self.statistic(signals))

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        found = {f"sample.{name}": self.tails[name][0].sample.cpu() for name in self.names}
        kept = {"distance": self.apart.sample, "statistic": self.tail.sample}
        return {**found, "mean": self.mean, "precision": self.precision, **kept}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        new = cls.__new__(cls)
        samples = {name: tensors.get(f"sample.{name}") for name in SIGNALS}
        new.tails = {name: (Tail(x), Tail(-x)) for name, x in samples.items() if x is not None}
        new.names = tuple(new.tails)
        new.mean, new.precision = tensors["mean"], tensors["precision"]
        new.apart, new.tail = Tail(tensors["distance"]), Tail(tensors["statistic"])
        return new


def _normal_score(surprise: Tensor) -> Tensor:
    """The upper normal quantile z ≥ 0 of a tail probability exp(−surprise) ≤ ½; larger ones give 0."""
    tail = surprise.clamp(min=math.log(2), max=FAR).neg().exp()
    near = -torch.special.ndtri(tail)  # the lower quantile keeps its digits where 1 − p would not
    # Far out z² = 2 s − log(2π z²); two rounds from z² = 2 s leave z a little high, so that it rises across FAR.
    square = double = 2 * surprise.clamp_min(FAR)
    for _ in range(2):
        square = double - (2 * math.pi * square).log()
    return torch.where(surprise > FAR, square.sqrt(), near)

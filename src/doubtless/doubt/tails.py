"""How rare is a query's signal among known queries, and how unlike them is the query on the whole?

`Tail` is of one signal, whatever its scale. For a sample x_1 … x_n of known queries and a value s

    p(s) = (#{x > s} + ½ #{x = s} + ½) / (n + 1),

the expectation of the conformal p-value over a fair order of ties (Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005): for a value exchangeable with the sample P(p ≤ t) stays within 1/(n + 1) of t
where nothing ties. It sees the order of values only, so any rising transform of a signal gives the same p.

Beyond the largest of the sample there is no order left to count: there p falls from its floor ½/(n + 1) as an
exponential tail does whose mean excess is that of the sample's upper tenth, so that values far out stay apart.

`Oddity` is of everything a query says of itself, learned from known queries alone. Each signal becomes a normal
score z = Φ⁻¹(rank) among known queries, so that its scale does not matter. The Mahalanobis distance of the scores
is that of a Gaussian copula (Sklar 1959). It notices what no single tail does: out-of-distribution images are
often *too* sure (a large norm, a small spread), and some signals never go together. A feature that is nearer to a
known one than usual is no oddity: of novelty and leverage only the upper side counts. The distance's −log p and
those of novelty alone and of leverage alone are added, as Fisher (1925) adds tests; what the sum is worth is
counted among known queries again, since they are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from doubtless.errors import InputError

UPPER = 0.1  # share of the sample that sets the scale of the tail beyond it
DEEPEST = 300.0  # −log p is cut here: float64 still tells exp(−300) from 0


class Tail:
    """The upper tail of one signal among known queries.

    >>> tail = Tail(torch.tensor([1.0, 2.0, 2.0, 3.0]))
    >>> tail.probability(torch.tensor([0.0, 2.0, 3.0]))
    tensor([0.9000, 0.5000, 0.2000], dtype=torch.float64)
    """

    def __init__(self, sample: Tensor) -> None:
        if sample.dim() != 1 or not len(sample):
            raise InputError(f"A tail needs one number per query, shape (n,), got {tuple(sample.shape)}.")
        if not bool(torch.isfinite(sample).all()):
            raise InputError("A tail needs finite numbers; the sample has NaN or infinite entries.")
        self.sample = sample.detach().double().sort().values
        self.scale = _mean_excess(self.sample)

    def __len__(self) -> int:
        return len(self.sample)

    def surprise(self, values: Tensor) -> Tensor:
        """−log p of every value, (n,) float64 on the values' device; +inf is as far out as can be."""
        values = values.detach().double().contiguous()
        sample = self.sample.to(values.device)
        greater = len(sample) - torch.searchsorted(sample, values, right=True)
        below = torch.searchsorted(sample, values)
        equal = (len(sample) - greater - below).double()
        inside = ((greater + 0.5 * equal + 0.5) / (len(sample) + 1)).log().neg()
        return (inside + self._beyond(values)).clamp_max(DEEPEST)

    def probability(self, values: Tensor) -> Tensor:
        """p of every value, (n,) float64."""
        return self.surprise(values).neg().exp()

    def _beyond(self, values: Tensor) -> Tensor:
        """What −log p grows by past the largest of the sample."""
        excess = (values - float(self.sample[-1])).clamp_min(0)
        if self.scale == 0:  # all known queries alike: what lies beyond has no scale to be measured by
            return torch.where(excess > 0, torch.full_like(excess, DEEPEST), excess)
        return excess / self.scale

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        return {"sample": self.sample.cpu()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The tail whose `tensors` these are."""
        return cls(tensors["sample"])


def _mean_excess(ordered: Tensor) -> float:
    """Mean excess over the upper tenth's lower edge; of all above the least where the tenth is all one value."""
    upper = ordered[-max(1, round(UPPER * len(ordered))) - 1 :] if len(ordered) > 1 else ordered
    excess = float((upper - upper[0]).mean())
    return excess if excess > 0 else float((ordered - ordered[0]).mean())


SIGNALS = ("image", "model", "novelty", "leverage")  # what a query says of itself; its hits speak of errors
ONE_SIDED = ("novelty", "leverage")
RIDGE = 1e-3  # of the covariance of scores: two signals that are one must not divide by 0
FAR = 30.0  # −log p from which the normal quantile is taken by its asymptote: 1 − p rounds to 1 at 36


class Oddity:
    """How unlike the known queries a query is.

    >>> known = {"image": torch.randn(500, generator=torch.Generator().manual_seed(0)).double()}
    >>> surprise = Oddity(known).surprise({"image": torch.tensor([-9.0, 0.0, 9.0])})
    >>> bool(surprise[0] > 5), bool(surprise[1] < 1), bool(surprise[2] > 5)
    (True, True, True)
    """

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        self.names = tuple(name for name in SIGNALS if name in known)
        self.tails = {name: (Tail(known[name]), Tail(-known[name])) for name in self.names}
        scores = self.scores(known)
        self.mean = scores.mean(0)
        centred = scores - self.mean
        ridge = RIDGE * torch.eye(len(self.names), dtype=torch.double)
        self.precision = torch.linalg.inv(centred.T @ centred / len(scores) + ridge)
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
        """Fisher's sum, (n,): −log p of the distance, and of novelty and leverage where they are known."""
        total = self.apart.surprise(self.distance(signals))
        for name in ONE_SIDED:
            if name in self.tails:
                total = total + self.tails[name][0].surprise(signals[name])
        return total

    def surprise(self, signals: Mapping[str, Tensor]) -> Tensor:
        """−log of the share of known queries that are as odd, (n,)."""
        return self.tail.surprise(self.statistic(signals))

    def surprise_of(self, name: str, values: Tensor) -> Tensor:
        """−log of the share of known queries that are as odd by one signal alone, (n,)."""
        above, below = self.tails[name]
        if name in ONE_SIDED:
            return above.surprise(values)
        either = torch.maximum(above.surprise(values), below.surprise(-values))
        return (either - math.log(2)).clamp_min(0)

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        samples = {f"sample.{name}": self.tails[name][0].sample.cpu() for name in self.names}
        kept = {"distance": self.apart.sample, "statistic": self.tail.sample}
        return {**samples, "mean": self.mean, "precision": self.precision, **kept}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The oddity whose `tensors` these are."""
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

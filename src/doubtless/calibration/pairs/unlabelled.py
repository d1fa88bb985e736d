"""Is a hit the same thing as the query, where nothing has a label? A mixture of two scores, and what it assumes.

A hit stands out by its cosine less that of the twentieth hit (`stands_out`). What the first hit of an item would
stand out by if the gallery held nothing else of its thing is drawn from the item's own cosines with random others:
an upper tail like that of directions spread evenly, log P(cosine > s) = a + b log(1 − x²) with x = (s − mean)/
(1 − mean), through three quantiles, continued to as many items as the gallery has (extremes of a sample, as in
Scheirer et al. 2011, and for speakers in Auckenthaler et al. 2000). The first hit is the nearest of unrelated items
or the nearest of its kind, whichever stands out more, so F = F₀ · F₁ for their distribution functions, and of first
hits that stand out by s a share

    d log F₀(s) / d log F(s)

is wrong. F is what is seen, F₀ what is drawn; nothing is assumed of F₁. A logistic regression makes the shares of
some bins one probability that never falls. It is as good as its assumptions (`ASSUMES`), which nobody has tested:
things that look alike are taken for the same. Pairs that people have answered for (`corrected`) put it right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.errors import InputError
from doubtless.logistic import fit_logistic
from doubtless.search.hits import Hits

ASSUMES = (
    "Calibrated without labels: a hit is taken for the same thing where it stands out more than the nearest of "
    "unrelated items would, which things that look alike do, too."
)
FEWEST = 50
"""Items below which their cosines tell nothing of a tail."""
TAIL = (0.1, 0.05, 0.02)
"""Shares of the most alike random items that the tail is laid through: most are unrelated, unless of few things."""
DRAWS = 20
"""First hits among unrelated items that are drawn per item."""
BINS = 40
MOST_SORTED = 100_000
"""Of what is drawn, that quantiles are taken of."""
STRANGERS = 0.02
"""Part of the items beside which so many queries show nothing that is here, and find what is drawn."""
LEAST_SLOPE = 0.1
"""Of log-odds per deviation of what hits stand out by: the order of hits is kept whatever people say."""
WORTH = 20.0
"""Answers that the mixture counts for beside those of people."""
FLAT = 1e-9
"""Spread of cosines, or of what hits stand out by, below which all are alike."""


def stands_out(hits: Hits) -> Tensor:
    """Cosine of every hit less that of the last of the first twenty, (n, k) float64; −inf where there is no item.

    >>> hits = Hits(torch.tensor([[4, 2, -1]]), torch.tensor([[0.75, 0.5, -torch.inf]]), torch.zeros(1, 3))
    >>> stands_out(hits)
    tensor([[0.2500, 0.0000,   -inf]], dtype=torch.float64)
    """
    score = hits.score.double()
    last = hits.found[:, :DEPTH].sum(1, keepdim=True).clamp_min(1) - 1
    crowd = torch.where(hits.found[:, :1], score.gather(1, last), 0.0)
    return (score - crowd).masked_fill(~hits.found, -torch.inf)


def unrelated(cosine: Tensor, items: int, *, generator: torch.Generator) -> Tensor:
    """What first hits stand out by among `items` unrelated items, drawn from cosines with random others (m, r).

    (m · DRAWS,), sorted.
    """
    cosine = cosine.double()
    mean = cosine.mean(1, keepdim=True)
    level = torch.tensor(TAIL, dtype=torch.double)
    tail = torch.quantile(cosine, 1 - level, dim=1).T  # (m, 3)
    rest = (1 - mean).clamp_min(FLAT)
    bend = torch.log1p(-((tail - mean) / rest).clamp(0, 1 - FLAT).square())  # (m, 3), falling
    away, log = bend - bend.mean(1, keepdim=True), level.log()
    slope = (away * (log - log.mean())).sum(1, keepdim=True) / away.square().sum(1, keepdim=True)  # (m, 1)
    start = log.mean() - slope * bend.mean(1, keepdim=True)
    depth = min(DEPTH, items)
    # The k-th smallest of n uniform numbers is about the k-th point of a Poisson process, over n.
    shape = len(cosine), DRAWS, depth
    arrival = -torch.rand(shape, generator=generator, dtype=torch.double).log()
    share = arrival.cumsum(2)[..., [0, -1]].flatten(1) / items  # (m, DRAWS · 2): of the first and of the last
    extreme = (-torch.expm1(((share.log() - start) / slope).clamp_max(0))).sqrt() * rest
    drawn = -extreme.view(len(cosine), DRAWS, 2).diff(dim=2).squeeze(2).clamp_max(0)
    flat = bend[:, :1] - bend[:, -1:] < FLAT
    return drawn.masked_fill(flat, 0.0).flatten().sort().values


def share_wrong(seen: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Of first hits that stand out by `seen` (n,), in bins (b,): the middle of each, and d log F₀/d log F in it.

    >>> seen = torch.linspace(0, 1, 2001, dtype=torch.double)[1:]  # F = s
    >>> _, wrong = share_wrong(seen, seen.sqrt())  # F₀ = s²: more unrelated ones than were seen
    >>> bool((wrong == 1).all())
    True
    >>> _, wrong = share_wrong(seen, seen.square())  # F₀ = √s
    >>> bool(((wrong - 0.5).abs() < 0.05).all())
    True
    """
    seen, drawn = seen.double().sort().values, drawn.double().contiguous()
    edge = torch.quantile(seen, torch.linspace(0, 1, min(BINS, len(seen)) + 1, dtype=torch.double)[1:])
    edge = edge.unique()
    if len(edge) < 2:  # all stand out alike: nothing tells them apart
        below = (torch.searchsorted(drawn, edge, right=True).double() / len(drawn)).clamp(0, 1)
        return edge, below
    log_all, log_none = (
        ((torch.searchsorted(sample, edge, right=True).double() + 0.5) / (len(sample) + 1)).log()
        for sample in (seen, drawn)
    )
    wrong = (log_none.diff() / log_all.diff().clamp_min(1e-12)).clamp(0, 1)
    return (edge[1:] + edge[:-1]) / 2, wrong


@dataclass(frozen=True, eq=False)
class HitChance:
    """P(a hit is the same thing as the query), rising with what it stands out by.

    >>> seen = torch.linspace(0, 1, 500, dtype=torch.double)
    >>> chance = HitChance.fit(seen, seen * 0.5)
    >>> bool(chance.of(torch.tensor([0.9])) > chance.of(torch.tensor([0.1])))
    True
    """

    mean: float
    scale: float
    slope: float
    intercept: float

    @classmethod
    def fit(cls, seen: Tensor, drawn: Tensor) -> HitChance:
        """From what first hits stand out by (n,), and would among unrelated items (m,)."""
        mean, scale = float(seen.mean()), float(seen.std(correction=0))
        scale = scale if scale > FLAT else 1.0
        middle, wrong = share_wrong(seen, drawn)
        strange = torch.quantile(
            drawn[:: max(1, len(drawn) // MOST_SORTED)], (torch.arange(BINS).double() + 0.5) / BINS
        )
        weight = torch.cat([wrong, 1 - wrong]) * (len(seen) / len(middle))
        table = (torch.cat([middle, middle, strange]) - mean) / scale
        fitted = fit_logistic(
            table.unsqueeze(1),
            torch.cat([torch.zeros(len(middle)), torch.ones(len(middle)), torch.zeros(BINS)]).bool(),
            weight=torch.cat([weight, torch.full((BINS,), STRANGERS * len(seen) / BINS)]),
            lower=torch.tensor([LEAST_SLOPE]),
        )
        return cls(mean, scale, float(fitted[0]), float(fitted[1]))

    def corrected(self, seen: Tensor, asked: Tensor, same: Tensor) -> HitChance:
        """Put right by pairs that stand out by `asked` (m,) and are the same or not (m,); `seen` as in `fit`."""
        if not len(asked):
            return self
        chance = self.of(seen)
        weight = torch.full_like(chance, WORTH / len(seen))
        table = (torch.cat([seen, seen, asked.double()]) - self.mean) / self.scale
        right = torch.cat([torch.zeros(len(seen)), torch.ones(len(seen)), same.double()]).bool()
        weights = torch.cat([weight * (1 - chance), weight * chance, torch.ones(len(asked))])
        fitted = fit_logistic(
            table.unsqueeze(1),
            right,
            weight=weights,
            centre=torch.tensor([self.slope]),
            lower=torch.tensor([LEAST_SLOPE]),
        )
        return HitChance(self.mean, self.scale, float(fitted[0]), float(fitted[1]))

    def of(self, out: Tensor) -> Tensor:
        """P of hits that stand out by so much; 0 of no hit."""
        odds = self.slope * (out.double() - self.mean) / self.scale + self.intercept
        return torch.sigmoid(odds).masked_fill(out == -torch.inf, 0.0)

    def probability(self, hits: Hits) -> Tensor:
        """P (n, k) of every hit; 0 where there is no item. The hits must reach to the twentieth."""
        return self.of(stands_out(hits))

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "mean": self.mean,
            "scale": self.scale,
            "slope": self.slope,
            "intercept": self.intercept,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HitChance:
        """What `record` gave."""
        return cls(*(float(record[name]) for name in ("mean", "scale", "slope", "intercept")))


def refuse_few(items: int) -> None:
    """Refuses galleries whose items are too few to say anything of."""
    if items < FEWEST:
        raise InputError(
            f"Calibration without labels compares items with each other and needs {FEWEST} of them, got {items}."
        )

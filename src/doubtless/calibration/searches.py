"""Fitting the distribution over labels on searches whose answer is known, none of which shaped its own evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from doubtless.calibration.distribution import FOLDS, UNKNOWN, Distribution, LabelDistribution, Weights
from doubtless.calibration.evidence.evidence import Evidence, LabelHits, Statistics, Vectors, evidence
from doubtless.calibration.evidence.sample_sums import LabelledVectors
from doubtless.calibration.evidence.within import LabelSpread
from doubtless.errors import InputError
from doubtless.logistic import folds_of

WORSE = 0.05
"""By how much more a metric without a fold may be off than that of the whole sample, as a share of a distance."""
MOST_FOLDS = 20
"""Each costs a metric and the items that were found measured in it."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Labelled items of the gallery from which the metric within labels and the background are fitted."""

    vectors: Tensor  # (s, D)
    label: Tensor  # (s,)
    row: Tensor | None = None
    """(n,) which of them each present query is, −1 for none; None: queries are from outside."""


@dataclass(frozen=True, eq=False)
class Searches:
    """Queries of known labels: n with their label in the gallery, m in a gallery from which it was removed."""

    present: LabelHits
    label: Tensor
    """(n,) of the present queries."""
    absent: LabelHits
    removed: Tensor
    """(m,) the label of each absent query, which none of its hits carries."""
    vectors: Vectors | None = None
    """Of the gallery's items, by their row; None: evidence is made from scores alone."""
    sample: Sample | None = None

    def __post_init__(self) -> None:
        if len(self.label) != len(self.present) or len(self.removed) != len(self.absent):
            raise InputError(
                f"Searches need one label per query, got {len(self.label)} for {len(self.present)} present and "
                f"{len(self.removed)} for {len(self.absent)} absent ones."
            )
        if bool((self.absent.labelled & (self.absent.label == self.removed.unsqueeze(1))).any()):
            raise InputError(
                "A search without its label found an item of it; remove all of the label's items."
            )
        if (self.vectors is None) != (self.sample is None):
            raise InputError(
                "Evidence from vectors needs both the items' vectors and a labelled sample of them."
            )


@dataclass(frozen=True, eq=False)
class FittedDistribution:
    """The model, and what the searches themselves are given by weights that saw nothing of their label."""

    model: LabelDistribution
    present: Evidence
    absent: Evidence
    folds: tuple[Tensor, Tensor]
    """(n,) and (m,): queries of one label, present or absent, have one fold."""
    others: tuple[Weights, ...]
    """Per fold, fitted on all others."""

    def unseen(self, *, unknown: float = UNKNOWN) -> tuple[Distribution, Distribution]:
        """Distributions of the n present and the m absent queries: what promises are made from."""
        present, absent = (
            self._of(given, parts, unknown)
            for given, parts in zip((self.present, self.absent), self._parts, strict=True)
        )
        return present, absent

    @cached_property
    def _parts(self) -> tuple[list[_Held], list[_Held]]:
        """What stays the same whatever share of queries is unknown, of the present and of the absent ones."""
        present, absent = (
            [_held(given, fold == number, weights) for number, weights in enumerate(self.others)]
            for given, fold in zip((self.present, self.absent), self.folds, strict=True)
        )
        return present, absent

    def _of(self, given: Evidence, parts: list[_Held], unknown: float) -> Distribution:
        probability = torch.zeros(given.label.shape, dtype=torch.double)
        none = torch.ones(len(given), dtype=torch.double)
        for weights, (held, part, share, odds) in zip(self.others, parts, strict=True):
            found = weights.told(part, share, odds, unknown=unknown)
            probability[held], none[held] = found.probability, found.none
        return Distribution(given.label, probability, none)


_Held = tuple[Tensor, Evidence, Tensor, Tensor]
"""Queries of a fold, their evidence, and what `Weights.shares_and_odds` says of it."""


def _held(given: Evidence, held: Tensor, weights: Weights) -> _Held:
    part = given[held]
    return held, part, *weights.shares_and_odds(part)


def fit_distribution(searches: Searches, *, folds: int = FOLDS, seed: int = 0) -> FittedDistribution:
    """Fits the distribution over labels; folds are dealt with `seed`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> centre = torch.nn.functional.normalize(torch.randn(12, 8, generator=generator), dim=1)
    >>> label = torch.arange(12).repeat_interleave(6)
    >>> items = torch.nn.functional.normalize(centre[label] + 0.2 * torch.randn(72, 8, generator=generator), dim=1)
    >>> score = (items @ items.T).fill_diagonal_(-torch.inf)
    >>> same = label.unsqueeze(0) == label.unsqueeze(1)
    >>> def hits(score):
    ...     best = score.topk(10)
    ...     return LabelHits(label[best.indices], best.values, best.indices, items)
    >>> searches = Searches(hits(score), label, hits(score.masked_fill(same, -torch.inf)), label,
    ...                     vectors=lambda rows: items[rows], sample=Sample(items, label, torch.arange(72)))
    >>> model = fit_distribution(searches).model
    >>> answer = model(hits(items @ items.T), vectors=lambda rows: items[rows])
    >>> bool((answer.first[0] == label).all())
    True
    """
    given = searches.sample
    sample = None if given is None else LabelledVectors.of(given.vectors, given.label)
    by = _statistics(searches, sample)
    present, absent = _measured(searches, by, sample, folds=folds, seed=seed)
    both = torch.cat([searches.label, searches.removed])
    fold = folds_of(both, folds=folds, generator=torch.Generator().manual_seed(seed))
    of_present, of_absent = fold[: len(searches.label)], fold[len(searches.label) :]
    others = tuple(
        Weights.fit(
            present[of_present != number], searches.label[of_present != number], absent[of_absent != number]
        )
        for number in range(int(fold.max()) + 1)
    )
    weights = Weights.fit(present, searches.label, absent)
    return FittedDistribution(
        LabelDistribution(weights, by), present, absent, (of_present, of_absent), others
    )


def _statistics(searches: Searches, sample: LabelledVectors | None) -> Statistics:
    """Unit of scores, spread of labels, metric and background, from all queries and the whole sample."""
    labelled = searches.present.labelled
    if not bool(labelled.any()) or len(searches.removed.unique()) < 2:
        raise InputError(
            "A distribution over labels is fitted on labelled hits of two labels or more, got "
            f"{len(searches.label.unique())} label(s) and {int(labelled.sum())} labelled hits."
        )
    first = searches.present.score.double().masked_fill(~labelled, -torch.inf).amax(1)
    scale = float(first[first.isfinite()].std(correction=0))
    spread = LabelSpread.fit(searches.present.best_of(searches.label), searches.label)
    by = Statistics(scale if scale > 0 else 1.0, spread)
    return by if sample is None else _of_sample(by, sample)


def _of_sample(by: Statistics, sample: LabelledVectors, left_out: Tensor | None = None) -> Statistics:
    """The same with the metric and the background of a sample, or of what is not left out (s,) of it."""
    metric, background = sample.fitted(left_out)
    return replace(by, metric=metric, background=background)


def _measured(
    searches: Searches, by: Statistics, vectors: LabelledVectors | None, *, folds: int, seed: int
) -> tuple[Evidence, Evidence]:
    """Evidence of present and absent queries: present ones without their own item, absent without their label."""
    nearest = searches.present.best_of(searches.label)
    sample = searches.sample
    if sample is None or vectors is None:
        return (
            evidence(searches.present, by, without=(searches.label, nearest)),
            evidence(searches.absent, by),
        )
    generator = torch.Generator().manual_seed(seed)
    folds = max(folds, measuring_folds(vectors))
    items = folds_of(torch.arange(len(sample.label)), folds=folds, generator=generator)
    nobody = torch.full_like(searches.label, -1)
    of_present = nobody if sample.row is None else torch.where(sample.row >= 0, items[sample.row], -1)
    labels = folds_of(torch.cat([sample.label, searches.removed]), folds=folds, generator=generator)
    of_sample, of_absent = labels[: len(sample.label)], labels[len(sample.label) :]
    return (
        evidence(
            searches.present,
            by,
            vectors=searches.vectors,
            without=(searches.label, nearest),
            parts=_in_folds(of_present, items, vectors, by),
        ),
        evidence(
            searches.absent,
            by,
            vectors=searches.vectors,
            parts=_in_folds(of_absent, of_sample, vectors, by),
        ),
    )


def measuring_folds(sample: LabelledVectors) -> int:
    """Folds in which a sample is left out of the metric that its queries are measured in.

    Of n items with L labels in D dimensions, a metric is off by about D/(n − L), and one without a fold by as much
    again over folds − 1. What is fitted would then describe a worse metric than the one that queries from outside
    are measured in, so where items are few for their dimensions, fewer of them are left out at a time.

    >>> vectors, label = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 20
    >>> [measuring_folds(LabelledVectors.of(vectors.repeat(1, times), label)) for times in (1, 4)]
    [3, 9]
    """
    spare = max(1, len(sample.label) - int((sample.sums.count > 0).sum()))
    return min(MOST_FOLDS, 1 + math.ceil(sample.vectors.shape[1] / spare / WORSE))


def _in_folds(
    fold: Tensor, of_sample: Tensor, sample: LabelledVectors, by: Statistics
) -> list[tuple[Tensor, Statistics]]:
    """Queries of each fold (n,), with metric and background of the sample without that fold (s,); −1: of all."""
    parts = []
    for number in fold.unique().tolist():
        left_out = of_sample == number
        used = _of_sample(by, sample, left_out) if number >= 0 and bool((~left_out).any()) else by
        parts.append(((fold == number).nonzero().squeeze(1), used))
    return parts

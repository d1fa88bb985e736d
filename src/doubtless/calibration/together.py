"""Several photos of one thing: their distributions pooled into one, which stays calibrated and has its own promise.

Independent photos would add their evidence: log-odds of a label against none, less those that were there before any
photo. Photos of one thing are alike, so the sum counts only in part,

    log P(label)/P(none) = prior + weight · Σᵢ (log Pᵢ(label)/Pᵢ(none) − prior),

over the photos and, as one photo more, the mean of their vectors: it finds labels that lie between them. A label
that a photo did not find has some probability there all the same (`floor`). The three numbers are fitted on groups
of as many photos of one label, none of which finds another of its group, and the promise is made from groups whose
labels shaped neither them nor the distribution of a single photo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from doubtless.calibration.distribution import DEPTH, Distribution, LabelDistribution
from doubtless.calibration.evidence import LabelHits, columns
from doubtless.calibration.kept_searches import SPARE, Items, KeptSearches, hits_of, search_items
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise
from doubtless.calibration.searches import fit_distribution
from doubtless.errors import InputError
from doubtless.logistic import folds_of

MOST_PHOTOS = SPARE
"""Of one thing: as many hits may be photos of the same group."""
MOST_GROUPS = 400
FEWEST_GROUPS = 20
WEIGHTS, PRIORS, FLOORS = 9, torch.linspace(-10, 4, 15), (1e-2, 1e-3, 1e-4, 1e-5)
"""Values that are tried: weights from 1/photos to 1."""


@dataclass(frozen=True)
class Pooling:
    """How distributions of several photos become one; `weight` 1: they are independent, 1/n: they say the same."""

    weight: float
    prior: float
    floor: float

    def __call__(self, each: Distribution, count: int) -> Distribution:
        """One distribution per `count` (n · count,) photos that follow each other.

        >>> sure = Distribution(torch.tensor([[7, 8]] * 2), torch.tensor([[0.6, 0.2]] * 2).double(),
        ...                     torch.tensor([0.2, 0.2]).double())
        >>> pooled = Pooling(weight=1.0, prior=0.0, floor=1e-3)(sure, 2)
        >>> pooled.label.tolist(), pooled.probability.round(decimals=2).tolist()
        ([[7, 8]], [[0.82, 0.09]])
        """
        label, total, there = log_odds(each, count, self.floor)
        return self.of(label, total, there, count)

    def of(self, label: Tensor, total: Tensor, there: Tensor, count: int) -> Distribution:
        """From labels (n, U), sums of log-odds (n, U) and whether there is a label (n, U)."""
        odds = (self.prior + self.weight * (total - count * self.prior)).masked_fill(~there, -torch.inf)
        shares = torch.cat([odds, odds.new_zeros(len(odds), 1)], dim=1).softmax(1)
        chance = shares[:, :-1].round(decimals=9)
        return Distribution(label, chance, (1 - chance.sum(1)).clamp_min(0).round(decimals=9))


def log_odds(each: Distribution, count: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Labels (n, U) that any photo of a group found, Σ log P(label)/P(none) over photos (n, U), and which are."""
    groups = len(each) // count
    label = each.label.view(groups, -1)  # (n, count · M)
    slot, names = columns(LabelHits(label, torch.zeros_like(label, dtype=torch.double)))
    there, width = names >= 0, names.shape[1]
    table = torch.full((groups, count, width), floor, dtype=torch.double)
    chance = torch.where(each.label >= 0, each.probability, 0.0).clamp_min(floor)
    table.scatter_reduce_(2, slot.view(groups, count, -1), chance.view(groups, count, -1), "amax")
    none = each.none.clamp_min(floor).view(groups, count, 1)
    return names, (table.log() - none.log()).sum(1), there


def with_mean(vectors: Tensor) -> Tensor:
    """Unit vectors (g, n, D) of n photos each, and as one more the direction of their mean: (g, n + 1, D)."""
    mean = torch.nn.functional.normalize(vectors.mean(1, keepdim=True), dim=2)
    return torch.cat([vectors, mean], dim=1)


def fit_pooling(
    present: Distribution, label: Tensor, absent: Distribution, *, count: int, unknown: float
) -> Pooling:
    """The pooling of `count` photos under which groups of labels (n,), and absent ones, are most probable."""
    best, found = torch.inf, Pooling(1.0 / count, 0.0, FLOORS[1])
    truth = torch.cat([label, label.new_full((len(absent) // count,), -1)])
    weight = torch.where(truth >= 0, (1 - unknown) / len(label), unknown / max(1, len(absent) // count))
    for floor in FLOORS:
        parts = [log_odds(one, count, floor) for one in (present, absent)]
        for share in torch.logspace(0, 1, WEIGHTS).sub(1).div(9):
            for prior in PRIORS:
                pooling = Pooling(float(1 / count + (1 - 1 / count) * share), float(prior), floor)
                chances = [pooling.of(*part, count) for part in parts]
                given = torch.cat(
                    [one.outcome(truth[truth >= 0] if not place else truth[truth < 0])
                     for place, one in enumerate(chances)]
                )  # fmt: skip
                loss = float(-(weight * given.clamp_min(1e-9).log()).sum())
                if loss < best:
                    best, found = loss, pooling
    return found


def groups_of(queries: KeptSearches, items: Items, count: int, *, seed: int = 0) -> Tensor:
    """Positions (g, count) of queries of one label each, no query twice, whose label has an item beside them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(queries), generator=generator)
    order = order[queries.label[order].argsort(stable=True)]
    label = queries.label[order]
    left = items.counted(queries.label) - (count if queries.outside is None else 0)
    groups = [
        part
        for members in order.split(label.unique_consecutive(return_counts=True)[1].tolist())
        for part in members.split(count)
        if len(part) == count and int(left[part[0]]) > 0
    ]
    if not groups:
        return torch.empty(0, count, dtype=torch.long)
    drawn = torch.randperm(len(groups), generator=generator)[:MOST_GROUPS]
    return torch.stack([groups[place] for place in drawn.sort().values.tolist()])


@dataclass(frozen=True, eq=False)
class FittedTogether:
    """Pooling and promise for `count` photos of one thing."""

    count: int
    pooling: Pooling
    promise: Promise
    present: Distribution
    """Of the groups, by what saw nothing of their label."""
    label: Tensor
    """(g,) of the groups."""


def fit_together(
    searched: KeptSearches,
    items: Items,
    model: LabelDistribution,
    terms: Terms,
    *,
    count: int,
    seed: int = 0,
) -> FittedTogether:
    """From queries that were searched among these items, on which `model` was fitted."""
    if not 2 <= count <= MOST_PHOTOS:
        raise InputError(f"Between 2 and {MOST_PHOTOS} photos of one thing can be asked, got {count}.")
    groups = groups_of(searched, items, count, seed=seed)
    label = searched.label[groups[:, 0]]
    if len(groups) < FEWEST_GROUPS or len(label.unique()) < 4:
        raise InputError(
            f"There are {len(groups)} groups of {count} photos of one label with another item beside them, of "
            f"{len(label.unique())} labels; it takes {FEWEST_GROUPS} of 4."
        )
    fold = folds_of(searched.label, folds=2, generator=torch.Generator().manual_seed(seed))
    single = _photos(searched, items, model, groups, fold, terms.unknown, seed)
    foreign, each = searched.foreign[groups].mean(1), count + 1
    halves = []
    for number in (0, 1):
        others = fold[groups[:, 0]] != number
        given, missing = (_of_groups(one, others, each) for one in single)
        halves.append(fit_pooling(given, label[others], missing, count=each, unknown=terms.unknown))
    present, absent = (_pooled(one, halves, fold[groups[:, 0]], each).with_foreign(foreign) for one in single)
    outcomes = Outcomes(present.sureness, present.first[0] == label, label, absent.sureness, label)
    whole = fit_pooling(single[0], label, single[1], count=each, unknown=terms.unknown)
    return FittedTogether(count, whole, Promise.of(outcomes, terms), present, label)


def _photos(
    searched: KeptSearches,
    items: Items,
    model: LabelDistribution,
    groups: Tensor,
    fold: Tensor,
    unknown: float,
    seed: int,
) -> tuple[Distribution, Distribution]:
    """Of each photo of the groups, with its label and without, by models fitted on the other fold's labels."""
    photos = searched[groups.flatten()]
    vectors = with_mean(photos.vectors(items).float().view(*groups.shape, -1)).flatten(0, 1)
    each = groups.shape[1] + 1
    mates = photos.own.view(groups.shape).repeat_interleave(each, 0)
    label = photos.label.view(groups.shape)[:, 0].repeat_interleave(each)
    nobody = torch.full_like(label, -1)
    near = search_items(vectors, items, own=nobody, depth=DEPTH + SPARE)
    near = near.without((near.row.unsqueeze(2) == mates.unsqueeze(1)).any(2) & (near.row >= 0))
    far = search_items(vectors, items, own=nobody, label=label, depth=DEPTH)
    hits = [hits_of(found, items.label_of, vectors) for found in (near, far)]
    told: list[list[Distribution]] = [[], []]
    of_photo = fold[groups[:, 0]].repeat_interleave(each)
    held = [(of_photo == number).nonzero().squeeze(1) for number in (0, 1)]
    for number in (0, 1):
        fitted = _without(searched, items, model, fold, number, seed)
        for place, one in enumerate(hits):
            told[place].append(fitted(one[held[number]], vectors=items.vectors, unknown=unknown))
    order = torch.cat(held).argsort()
    return _joined(told[0], order), _joined(told[1], order)


def _without(
    searched: KeptSearches, items: Items, model: LabelDistribution, fold: Tensor, number: int, seed: int
) -> LabelDistribution:
    """The distribution fitted on labels of the other fold alone; how near a label's items lie is known of all."""
    others = searched[(fold != number).nonzero().squeeze(1)]
    sample = items[((items.label >= 0) & torch.isin(items.label, others.label)).nonzero().squeeze(1)]
    searches, _, _ = others.searches(items, sample)
    made = fit_distribution(searches, seed=seed).model
    return LabelDistribution(made.weights, replace(made.by, spread=model.by.spread))


def _joined(parts: list[Distribution], order: Tensor) -> Distribution:
    width = max(part.label.shape[1] for part in parts)

    def wide(values: list[Tensor], empty: float) -> Tensor:
        return torch.cat(
            [torch.nn.functional.pad(one, (0, width - one.shape[1]), value=empty) for one in values]
        )[order]

    return Distribution(
        wide([part.label for part in parts], -1),
        wide([part.probability for part in parts], 0.0),
        torch.cat([part.none for part in parts])[order],
    )


def _of_groups(each: Distribution, chosen: Tensor, count: int) -> Distribution:
    """The photos of the chosen groups (g,)."""
    return each[chosen.repeat_interleave(count).nonzero().squeeze(1)]


def _pooled(each: Distribution, halves: list[Pooling], fold: Tensor, count: int) -> Distribution:
    """Groups' distributions, each by the pooling that was fitted without its fold (g,)."""
    held = [(fold == number) for number in (0, 1)]
    parts = [
        pooling(_of_groups(each, chosen, count), count) for pooling, chosen in zip(halves, held, strict=True)
    ]
    order = torch.cat([chosen.nonzero().squeeze(1) for chosen in held]).argsort()
    return _joined(parts, order)

"""Several photos of one thing: their distributions pooled into one, which stays calibrated and has its own promise.

Independent photos would add their evidence, log-odds of a label against none. Photos of one thing are alike, so the
sum counts only in part; and the mean of their vectors, asked as one photo more, finds labels that lie between them
and is often worth more than any of them,

    log P(label)/P(none) = constant + each · Σᵢ log Pᵢ(label)/Pᵢ(none) + mean · log Pₘ(label)/Pₘ(none).

A label that a photo did not find has some probability there all the same (`floor`). The numbers are fitted on
groups of as many photos of one label, none of which finds another of its group, and the promise is made from groups
whose labels shaped neither them nor the distribution of a single photo. With each = 0 it is the mean alone, with a
calibration of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from doubtless.calibration.distribution import DEPTH, Distribution, LabelDistribution
from doubtless.calibration.evidence.evidence import LabelHits, columns
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
FLOORS = (1e-2, 1e-3, 1e-4, 1e-5)
"""Values that are tried."""
RIDGE = 50.0
"""Groups' worth of belief that the mean says it, as one photo would, and photos nothing beside it."""
STEPS, CLOSE = 30, 1e-9


@dataclass(frozen=True)
class Pooling:
    """How distributions of photos, the last of which is of their mean, become one."""

    each: float
    """What log-odds of a photo count; 1: photos are independent."""
    mean: float
    constant: float
    floor: float

    def __call__(self, each: Distribution, count: int) -> Distribution:
        """One distribution per `count` (n · count,) that follow each other: photos, and last their mean.

        >>> sure = Distribution(torch.tensor([[7, 8]] * 2), torch.tensor([[0.6, 0.2]] * 2).double(),
        ...                     torch.tensor([0.2, 0.2]).double())
        >>> pooled = Pooling(each=1.0, mean=1.0, constant=0.0, floor=1e-3)(sure, 2)
        >>> pooled.label.tolist(), pooled.probability.round(decimals=2).tolist()
        ([[7, 8]], [[0.82, 0.09]])
        """
        label, odds, there = log_odds(each, count, self.floor)
        weights = torch.tensor([self.each, self.mean, self.constant], dtype=torch.double)
        chance = shares_of(odds, there, weights)[:, :-1].round(decimals=9)
        return Distribution(label, chance, (1 - chance.sum(1)).clamp_min(0).round(decimals=9))


def shares_of(odds: Tensor, there: Tensor, weights: Tensor) -> Tensor:
    """Probabilities (n, U + 1) of labels and, last, none, from log-odds (n, U, 2) and weights (3,)."""
    total = (odds @ weights[:2] + weights[2]).masked_fill(~there, -torch.inf)
    return torch.cat([total, total.new_zeros(len(total), 1)], dim=1).softmax(1)


def log_odds(each: Distribution, count: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Labels (n, U) that any of a group found, log P(label)/P(none) summed over photos and of the mean (n, U, 2).

    The last says which labels there are (n, U).
    """
    groups = len(each) // count
    label = each.label.view(groups, -1)  # (n, count · M)
    slot, names = columns(LabelHits(label, torch.zeros_like(label, dtype=torch.double)))
    there, width = names >= 0, names.shape[1]
    table = torch.full((groups, count, width), floor, dtype=torch.double)
    chance = torch.where(each.label >= 0, each.probability, 0.0).clamp_min(floor)
    table.scatter_reduce_(2, slot.view(groups, count, -1), chance.view(groups, count, -1), "amax")
    none = each.none.clamp_min(floor).view(groups, count, 1)
    odds = table.log() - none.log()
    return names, torch.stack([odds[:, :-1].sum(1), odds[:, -1]], dim=2), there


def with_mean(vectors: Tensor) -> Tensor:
    """Unit vectors (g, n, D) of n photos each, and as one more the direction of their mean: (g, n + 1, D)."""
    mean = torch.nn.functional.normalize(vectors.mean(1, keepdim=True), dim=2)
    return torch.cat([vectors, mean], dim=1)


def fit_pooling(
    present: Distribution, label: Tensor, absent: Distribution, *, count: int, unknown: float
) -> Pooling:
    """The pooling of `count` under which groups of labels (n,), and absent ones, are most probable."""
    truth = torch.cat([label, label.new_full((len(absent) // count,), -1)])
    weight = torch.where(truth >= 0, (1 - unknown) / len(label), unknown / max(1, len(absent) // count))
    best, found = torch.inf, (torch.zeros(3), FLOORS[0])
    for floor in FLOORS:
        names, odds, there = _stacked([log_odds(one, count, floor) for one in (present, absent)])
        same = (names == truth.unsqueeze(1)) & there
        place = torch.where(same.any(1), same.to(torch.uint8).argmax(1), names.shape[1])
        weights, loss = _most_probable(odds, there, place, weight.double(), count)
        if loss < best:
            best, found = loss, (weights, floor)
    each, mean, constant = found[0].tolist()
    return Pooling(each, mean, constant, found[1])


def _stacked(parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, log-odds and whether there is a label, of present and absent groups one after the other."""
    width = max(part[0].shape[1] for part in parts)
    pads = [width - part[0].shape[1] for part in parts]
    pad = torch.nn.functional.pad
    return (
        torch.cat([pad(names, (0, more), value=-1) for (names, _, _), more in zip(parts, pads, strict=True)]),
        torch.cat([pad(odds, (0, 0, 0, more)) for (_, odds, _), more in zip(parts, pads, strict=True)]),
        torch.cat([pad(there, (0, more)) for (_, _, there), more in zip(parts, pads, strict=True)]),
    )


def _most_probable(
    odds: Tensor, there: Tensor, place: Tensor, weight: Tensor, count: int
) -> tuple[Tensor, float]:
    """Weights (3,) of photos, mean and constant under which what it was, at `place` (n,), is most probable.

    Newton's steps on the weighted logarithm, none of which may make it less. Photos and mean never speak against
    a label they find: a weight that would be negative is 0.
    """
    table = torch.cat([odds, torch.ones_like(odds[:, :, :1])], dim=2).masked_fill(~there.unsqueeze(2), 0.0)
    table = torch.nn.functional.pad(table, (0, 0, 0, 1))  # none has odds of 1
    start = torch.tensor([0.0, 1.0, 0.0], dtype=torch.double)
    ridge = RIDGE / len(place) * torch.tensor([1.0, 1.0, 0.01], dtype=torch.double)
    free = torch.ones(3, dtype=torch.bool)
    chosen = table.gather(1, place.view(-1, 1, 1).expand(-1, 1, 3)).squeeze(1)

    def loss(weights: Tensor) -> float:
        given = shares_of(odds, there, weights).gather(1, place.unsqueeze(1)).squeeze(1)
        return float(
            -(weight * given.clamp_min(1e-300).log()).sum() + (ridge * (weights - start) ** 2).sum() / 2
        )

    weights, now = start.clone(), loss(start)
    for _ in range(STEPS):
        chance = shares_of(odds, there, weights)
        mean = torch.einsum("nu,nuf->nf", chance, table)
        slope = (weight.unsqueeze(1) * (mean - chosen)).sum(0) + ridge * (weights - start)
        square = torch.einsum("n,nu,nuf,nug->fg", weight, chance, table, table)
        bend = square - torch.einsum("n,nf,ng->fg", weight, mean, mean) + ridge.diag()
        step = torch.zeros_like(weights)
        step[free] = torch.linalg.solve(bend[free][:, free], slope[free])
        size = 1.0
        while size > CLOSE and loss(weights - size * step) > now:
            size /= 2
        weights = weights - size * step if size > CLOSE else weights
        if bool((weights[:2] < 0).any()):
            free[:2] &= weights[:2] >= 0
            weights[:2] = weights[:2].clamp_min(0)
            now = loss(weights)
            continue
        before, now = now, loss(weights)
        if before - now < CLOSE:
            break
    return weights, now


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

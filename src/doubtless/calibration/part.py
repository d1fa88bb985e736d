"""A part of a gallery, or one that changed: calibrated by what queries find in it, and a test of its promise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.calibration.distribution import Distribution, LabelDistribution
from doubtless.calibration.kept_searches import Found, Items, KeptSearches, hits_of, search_items, some_of
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise
from doubtless.calibration.searches import FittedDistribution, Searches, fit_distribution

MOST_SAMPLED = 20_000
"""Items that the metric within labels is fitted on."""
CHANGED = 0.25
"""Share of a gallery that is new or gone from which on its promise is withdrawn, whatever canaries say."""
LOOKS = (0.02, 0.04, 0.08, 0.16)
"""Shares of change at which canaries are asked."""
LEVEL = 0.01
"""Probability that canaries ever withdraw a promise that is kept."""
CANARIES = 400
MOST_KNOWN, MOST_ABSENT = 1_000, 500
"""Queries that a part is fitted on: known ones, searched without their label too, and others beside them."""


@dataclass(frozen=True, eq=False)
class FittedPart:
    """What calibration queries say of the items that they were searched among."""

    fitted: FittedDistribution
    searches: Searches
    present: Distribution
    """Of the known queries, by weights that saw nothing of their label."""
    promise: Promise


def fit_part(
    kept: KeptSearches, items: Items, terms: Terms, *, gallery: Items | None = None, seed: int = 0
) -> FittedPart:
    """Distribution and promise from what calibration queries found among all of these items.

    gallery   what they are a part of: how items of one label vary is told by all of it
    """
    whole = items if gallery is None else gallery
    labelled = (whole.label >= 0).nonzero().squeeze(1)
    searches, known, asked = kept.searches(items, whole[some_of(labelled, MOST_SAMPLED, seed)])
    fitted = fit_distribution(searches, seed=seed)
    present, absent = fitted.unseen(unknown=terms.unknown)
    present = present.with_foreign(kept.foreign[known])
    absent = absent.with_foreign(kept.foreign[asked])
    label = searches.label
    outcomes = Outcomes(present.sureness, present.first[0] == label, label, absent.sureness, searches.removed)
    return FittedPart(fitted, searches, present, Promise.of(outcomes, terms))


def drawn(
    kept: KeptSearches, part: Items, gallery: Items, *, known: int, others: int, seed: int = 0
) -> KeptSearches:
    """Queries to calibrate a part of the gallery with, not searched: known ones, and some whose label is not in it.

    Those from outside that were kept or, where the gallery was calibrated on its own items, such items, wherever in
    the gallery they are. How odd a picture is depends on nothing else, so an item that was no query before is as
    odd as one that was, drawn at random.
    """
    everything = kept
    if kept.outside is None:
        labelled = (gallery.label >= 0).nonzero().squeeze(1)
        inside = part.counted(gallery.label[labelled]) > 0
        some = some_of(labelled[inside], 2 * known, seed), some_of(labelled[~inside], others, seed)
        chosen = torch.cat(some).sort().values
        odd = torch.randint(len(kept), chosen.shape, generator=torch.Generator().manual_seed(seed))
        nothing = Found(chosen.new_empty(len(chosen), 0), torch.empty(len(chosen), 0))
        everything = KeptSearches(
            gallery.row[chosen], gallery.label[chosen], kept.foreign[odd], nothing, nothing
        )
    there = torch.zeros(len(everything), dtype=torch.bool)
    there[everything.findable(part)] = True
    one, other = (value.nonzero().squeeze(1) for value in (there, ~there))
    return everything[torch.cat([some_of(one, known, seed), some_of(other, others, seed)]).sort().values]


def contradicted(
    model: LabelDistribution,
    promise: Promise,
    queries: KeptSearches,
    items: Items,
    *,
    level: float,
    seed: int = 0,
) -> bool:
    """Whether more of the queries' answers among these items are wrong than is promised: an exact binomial test.

    Each query is known or, with the stated share, searched without its label: drawn as queries to come are. Where
    the promise is kept, it is contradicted with probability `level` at most.
    """
    from scipy.stats import binom

    if not promise.is_worth_keeping or not len(queries):
        return False
    vectors, label, unknown = queries.vectors(items), queries.label, promise.terms.unknown
    absent = torch.rand(len(label), generator=torch.Generator().manual_seed(seed)) < unknown
    nobody: Tensor = torch.full_like(label, -2)
    found = search_items(vectors, items, own=queries.own, label=torch.where(absent, label, nobody))
    told = model(hits_of(found, items.label_of, vectors), vectors=items.vectors, unknown=unknown)
    told = told.with_foreign(queries.foreign)
    answered = (told.sureness >= promise.fallback) & (told.sureness > -torch.inf)
    wrong = answered & (absent | (told.first[0] != label))
    return bool(binom.sf(int(wrong.sum()) - 1, int(answered.sum()), promise.bound) <= level)

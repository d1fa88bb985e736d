"""Three ways to tell queries of a part of a gallery, or of one that grew: what benchmarks/promise.py compares.

*whole*: what was fitted elsewhere. *tail*: the same, moved by the logarithm of sizes. *part*: what is fitted here.
"""

from __future__ import annotations

import torch
from divisions import Photos, Record
from open_set_measures import Asked, oracle_coverage, reliability
from torch import Tensor

from doubtless.calibration.distribution import Distribution, LabelDistribution
from doubtless.calibration.kept_searches import Found, Items, KeptSearches, hits_of, search_items
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.part import MOST_ABSENT, MOST_KNOWN, FittedPart, drawn, fit_part
from doubtless.calibration.promise import Promise
from doubtless.errors import InputError

TERMS = Terms(target_error=0.05, unknown=0.1, confidence=0.95)
SHIFTS = torch.linspace(-8, 8, 161)


def items_of(photos: Photos, rows: Tensor) -> Items:
    """Photos at rows (m,) as the items of a gallery, by their row among all photos."""
    rows = rows.sort().values
    return Items(rows, photos.labels[rows], lambda wanted: photos.vectors[wanted.clamp_min(0)])


def unsearched(photos: Photos, rows: Tensor) -> KeptSearches:
    """Items of a gallery as calibration queries that are not foreign."""
    empty = Found(torch.empty(len(rows), 0, dtype=torch.long), torch.empty(len(rows), 0))
    return KeptSearches(rows, photos.labels[rows], torch.zeros(len(rows), dtype=torch.double), empty, empty)


_LAST: dict[tuple[int, bytes, bytes, int], tuple[FittedPart, KeptSearches]] = {}
"""What was fitted last in this process: experiments with one division begin with the same gallery."""


def fitted(photos: Photos, part: Items, gallery: Items, seed: int) -> tuple[FittedPart, KeptSearches]:
    """As the gallery fits a part of itself, or all of it."""
    key = (id(photos), part.row.numpy().tobytes(), gallery.row.numpy().tobytes(), seed)
    if key not in _LAST:
        made = _fitted(photos, part, gallery, seed)
        while len(_LAST) > 3:
            del _LAST[next(iter(_LAST))]
        _LAST[key] = made
    return _LAST[key]


def _fitted(photos: Photos, part: Items, gallery: Items, seed: int) -> tuple[FittedPart, KeptSearches]:
    kept = unsearched(photos, gallery.row)
    queries = drawn(kept, part, gallery, known=MOST_KNOWN, others=MOST_ABSENT, seed=seed)
    searched = queries.among(part, queries.vectors(gallery))
    return fit_part(searched, part, TERMS, gallery=gallery, seed=seed), searched


def moved(found: Distribution, shift: float) -> Distribution:
    """The same with `shift` added to the log-odds of none."""
    none = torch.sigmoid(torch.logit(found.none.clamp(1e-9, 1 - 1e-9)) + shift)
    none = torch.where(found.none >= 1, found.none, none)
    scale = (1 - none) / (1 - found.none).clamp_min(1e-9)
    return Distribution(found.label, found.probability * scale.unsqueeze(1), none)


def told(photos: Photos, rows: Tensor, items: Items, model: LabelDistribution) -> Distribution:
    """What queries at rows (n,) that are no items of the gallery are told."""
    vectors = photos.vectors[rows]
    found = search_items(vectors, items, own=torch.full_like(rows, -1))
    return model(hits_of(found, items.label_of, vectors), vectors=items.vectors, unknown=TERMS.unknown)


def came_to(found: Distribution, label: Tensor, known: int, promise: Promise) -> Record:
    """Bins of the ECE, and what became of the promise; the first `known` queries' labels are there."""
    chance = torch.cat([found.probability, found.none.unsqueeze(1)], dim=1)
    best, place = chance.max(1)
    first = found.first[0]
    is_none = place == found.probability.shape[1]
    there = torch.arange(len(label)) < known
    among = (found.label == label.unsqueeze(1)).any(1) & there
    right = torch.where(is_none, ~among, there & (first == label))
    sure = found.sureness
    doubt = 1 - sure.clamp_min(-1)
    asked = Asked(doubt[:known], first[:known] == label[:known], doubt[known:], label[known:])
    answered = (sure >= promise.fallback) & (sure > -torch.inf)
    record = asked.came_to(answered, TERMS.unknown, promise.bound)
    weight = asked.weight(TERMS.unknown)
    given = found.outcome(torch.where(there, label, -1))
    return record | {
        "oracle": oracle_coverage(asked, TERMS.unknown, TERMS.target_error),
        "loss": float(-(weight * given.clamp_min(1e-6).log()).sum()),
        "met": promise.met,
        "bound": promise.bound,
        "kept": promise.is_worth_keeping,
        "bins": reliability(best, right, weight),
        "perfect": reliability(best, place == _drawn(chance, len(label)), weight),
        "top1": float((first[:known] == label[:known]).double().mean()),
    }


def _drawn(chance: Tensor, seed: int) -> Tensor:
    """Outcomes (n,) as a perfect distribution would have them, from chances (n, M + 1)."""
    return torch.multinomial(chance, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


def tail_slope(photos: Photos, gallery: Items, made: FittedPart, seed: int) -> float:
    """b: what log-odds of none change by per log of size, from calibration queries in a random third."""
    generator = torch.Generator().manual_seed(seed)
    third = gallery[(torch.rand(len(gallery), generator=generator) < 1 / 3).nonzero().squeeze(1)]
    rows = drawn(unsearched(photos, gallery.row), third, gallery, known=400, others=0, seed=seed)
    vectors, label = rows.vectors(gallery), rows.label
    near, far = (
        made.fitted.model(
            hits_of(search_items(vectors, third, own=rows.own, label=without), third.label_of, vectors),
            vectors=gallery.vectors,
            unknown=TERMS.unknown,
        )
        for without in (None, label)
    )
    weights = 1 - TERMS.unknown, TERMS.unknown

    def loss(shift: float) -> float:
        chances = moved(near, shift).outcome(label), moved(far, shift).none
        return -sum(
            weight * float(chance.clamp_min(1e-9).log().mean())
            for weight, chance in zip(weights, chances, strict=True)
        )

    best = min(SHIFTS.tolist(), key=loss)
    return best / float(torch.tensor(len(gallery) / max(1, len(third))).log())


def three_ways(
    photos: Photos,
    known: Tensor,
    unknown: Tensor,
    *,
    calibrated: Items,
    searched: Items,
    everything: Items,
    seed: int,
    compared: bool = True,
) -> Record:
    """Queries told by what is fitted here and, if `compared`, by what was elsewhere, as it is and moved by size."""
    rows = torch.cat([known, unknown])
    label = photos.labels[rows]
    record: Record = {"whole": None, "tail": None, "part": None}
    if compared:
        record |= _elsewhere(photos, rows, label, len(known), calibrated, searched, seed)
    try:
        made, _ = fitted(photos, searched, everything, seed)
    except InputError:
        return record
    found = told(photos, rows, searched, made.fitted.model)
    record["part"] = came_to(found, label, len(known), made.promise)
    return record


def _elsewhere(
    photos: Photos, rows: Tensor, label: Tensor, known: int, calibrated: Items, searched: Items, seed: int
) -> Record:
    """What came of queries at rows (n,) by what was fitted elsewhere, as it is and moved by size."""
    before, _ = fitted(photos, calibrated, calibrated, seed)
    plain = told(photos, rows, searched, before.fitted.model)
    slope = tail_slope(photos, calibrated, before, seed)
    shift = slope * float(torch.tensor(len(calibrated) / len(searched)).log())
    present, absent = (moved(one, shift) for one in before.fitted.unseen(unknown=TERMS.unknown))
    own, removed = before.searches.label, before.searches.removed
    outcomes = Outcomes(present.sureness, present.first[0] == own, own, absent.sureness, removed)
    return {
        "whole": came_to(plain, label, known, before.promise),
        "tail": came_to(moved(plain, shift), label, known, Promise.of(outcomes, TERMS)),
    }

"""Calibrating a gallery on its labels: one distribution per query, and a promise that counts what is not there.

Known queries search the gallery, each without itself, and once more without its label: what is not there. Both fit
the distribution, cross-fitted by label, so that the promise is made from probabilities that saw nothing of the
query's label. What a picture says of itself enters as the probability that it is foreign; an absent query keeps
that of the same picture among all items, which is no larger than it would be without its label: the safe side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.conformal import CoveringSets
from doubtless.calibration.distribution import Distribution
from doubtless.calibration.evidence import LabelHits
from doubtless.calibration.fit import FEWEST, Known, Targets
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise
from doubtless.calibration.searches import FittedDistribution, Sample, Searches, fit_distribution
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.calibrated import LABELS, Calibrated
from doubtless.gallery.doubt import DoubtFitter, places_among
from doubtless.gallery.label_doubt import oddness
from doubtless.gallery.queries import some_of
from doubtless.index.base import Index
from doubtless.metrics.calibration import match_ece
from doubtless.metrics.ood import auroc
from doubtless.search.hits import Hits

MOST = 4_000
"""Queries that the distribution is fitted on; its weights are a dozen numbers, and its promise needs no more."""
MOST_SAMPLED = 20_000
"""Items that the metric within labels is fitted on."""


def is_possible(known: Known) -> bool:
    """Whether queries were also searched without their label, and there are labels enough to leave some out."""
    return known.absent is not None and len(_asked(known.absent)) > 0 and len(known.label.unique()) > 1


def calibrate(
    index: Index,
    known: Known,
    queries: Embedding,
    own: Tensor | None,
    targets: Targets,
    *,
    fitter: DoubtFitter | None,
    seed: int,
) -> Calibrated:
    """Fits and calibrates; `queries` (n) are the known ones, at rows `own` (n,) of the index or from outside."""
    if len(known) < FEWEST:
        raise InputError(f"Calibration needs at least {FEWEST} labelled queries, got {len(known)}.")
    some = some_of(torch.arange(len(known)), MOST, seed)
    doubt = None if fitter is None else fitter.fitted_on(some)
    known, queries = known[some], queries[some]
    own = None if own is None else own[some]
    fitted = fit_distribution(_searches(index, known, queries, own, seed), seed=seed)
    foreign = _foreign(doubt, fitter, queries, some)
    assert known.absent is not None
    asked = _asked(known.absent)
    present, absent = fitted.unseen(unknown=targets.unknown)
    present, absent = present.with_foreign(foreign), absent.with_foreign(foreign[asked])
    outcomes = Outcomes(
        present.sureness, present.first[0] == known.label, known.label, absent.sureness, known.label[asked]
    )
    kept = Promise.of(
        outcomes,
        Terms(target_error=targets.target_error, unknown=targets.unknown, confidence=targets.confidence),
    )
    return Calibrated(
        distribution=fitted.model,
        promise=kept,
        covering=_covering(present, known.label),
        doubt=doubt,
        record={
            "doubt": LABELS,
            "labels": len(known.label.unique()),
            **_figures(fitted, present, known),
            "abstention": abstention(kept),
            **({} if doubt is None else {"novelty_of": doubt.record["novelty_of"]}),
        },
    )


def abstention(kept: Promise) -> dict[str, Any]:
    """What is promised, and what it costs, in plain values."""
    return {
        "target_error": kept.terms.target_error,
        "confidence": kept.terms.confidence,
        "unknown": kept.terms.unknown,
        "met": kept.met,
        "bound": kept.bound,
        "coverage": kept.known_answered,
        "unknown_answered": kept.absent_answered,
        "error": kept.error,
        "queries": len(kept.outcomes.score),
        "labels": kept.labels,
        "sentence": kept.sentence(),
    }


def _searches(index: Index, known: Known, queries: Embedding, own: Tensor | None, seed: int) -> Searches:
    """Known queries as the distribution is fitted on them, with the vectors of what they found."""
    assert known.absent is not None
    asked = _asked(known.absent)
    labelled = (index.labels >= 0).nonzero().squeeze(1)
    chosen = some_of(labelled, MOST_SAMPLED, seed)
    rows = index.rows[chosen]
    sample = Sample(
        index.directions(rows), index.labels[chosen], None if own is None else places_among(own, rows)
    )
    direction = queries.direction.float()
    return Searches(
        LabelHits.of(known.hits, direction),
        known.label,
        LabelHits.of(known.absent[asked], direction[asked]),
        known.label[asked],
        vectors=index.directions,
        sample=sample,
    )


def _asked(absent: Hits) -> Tensor:
    """Positions (m,) of the queries that were searched without their label, and found something."""
    return absent.found[:, 0].nonzero().squeeze(1)


def _foreign(doubt: Doubt | None, fitter: DoubtFitter | None, queries: Embedding, some: Tensor) -> Tensor:
    if doubt is None or fitter is None:
        return torch.zeros(len(queries), dtype=torch.double)
    features = None if fitter.features is None else fitter.features[some]
    itself = None if fitter.itself is None else fitter.itself[some]
    return oddness(doubt, queries, features, itself).foreign


def _covering(present: Distribution, label: Tensor) -> CoveringSets:
    ordered = present.by_probability()
    return CoveringSets.fit(ordered.probability, ordered.label == label.unsqueeze(1))


def _figures(fitted: FittedDistribution, present: Distribution, known: Known) -> dict[str, Any]:
    """What the distribution is worth for labels that had no part in it, and the first hit beside it."""
    right = present.first[0] == known.label
    here, _ = fitted.unseen(unknown=0.0)  # all of these are there
    even, gone = fitted.unseen(unknown=0.5)
    return {
        "features": ["labels", "none"],
        "top1": float(right.double().mean()),
        "first_hit_right": float(known.right[:, 0].double().mean()),
        "match_ece": match_ece(here.first[1], here.first[0] == known.label),
        "none_auroc": auroc(even.none, gone.none),
    }

"""Calibrating a gallery on its labels: one distribution per query, and a promise that counts what is not there.

Known queries search the gallery, each without itself, and once more without its label: what is not there. Both fit
the distribution, cross-fitted by label, so that the promise is made from probabilities that saw nothing of the
query's label. What a picture says of itself enters as the probability that it is foreign; an absent query keeps
that of the same picture among all items, which is no larger than it would be without its label: the safe side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.fit import FEWEST, Known, Targets
from doubtless.calibration.kept_searches import Found, Items, KeptSearches, some_of
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.part import FittedPart, fit_part
from doubtless.calibration.promise import Promise
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.calibration.calibrated import LABELS, Calibrated
from doubtless.gallery.calibration.doubt import DoubtFitter
from doubtless.gallery.calibration.kept import Kept, Sketch
from doubtless.gallery.label_doubt import covering_of, oddness
from doubtless.index.base import Index
from doubtless.metrics.calibration import match_ece
from doubtless.metrics.ood import auroc
from doubtless.search.hits import Hits

MOST = 4_000
"""Queries that the distribution is fitted on; its weights are a dozen numbers, and its promise needs no more."""


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
    assert known.absent is not None
    kept = KeptSearches(
        own=torch.full_like(known.label, -1) if own is None else own[some],
        label=known.label,
        foreign=_foreign(doubt, fitter, queries, some),
        present=Found(known.hits.row, known.hits.score.float()),
        absent=Found(known.absent.row, known.absent.score.float()),
        outside=queries.direction.float() if own is None else None,
    )
    made = fitted_on(kept, items_of(index), terms_of(targets), seed=seed)
    about = {} if doubt is None else {"novelty_of": doubt.record["novelty_of"]}
    # What is kept is merged by cosine; a gallery that is ranked otherwise is calibrated as a whole only.
    # So is one whose vectors nobody can look at, or that may hold more than is known of it.
    ranked = index.settings.ranking_score == "direction" and index.has_vectors and index.knows_all
    return replace(
        made,
        doubt=doubt,
        kept=made.kept if ranked else None,
        record={**(made.record or {}), **about},
    )


def terms_of(targets: Targets) -> Terms:
    """What a promise is made under."""
    return Terms(target_error=targets.target_error, unknown=targets.unknown, confidence=targets.confidence)


def items_of(index: Index, rows: Tensor | None = None) -> Items:
    """All items of an index, or those at some rows (m,), rising."""
    version = None
    while version != index.version:  # others may change it meanwhile; both must be of one moment
        version, every, label = index.version, index.rows, index.labels
    if rows is not None:
        chosen = torch.isin(every, rows)
        every, label = every[chosen], label[chosen]
    return Items(every, label, index.directions if index.has_vectors else None)


def fitted_on(
    kept: KeptSearches, items: Items, terms: Terms, *, gallery: Items | None = None, seed: int = 0
) -> Calibrated:
    """Distribution, promise and covering sets from what calibration queries found among all of these items.

    gallery   what they are a part of, if they are not all of it
    """
    made = fit_part(kept, items, terms, gallery=gallery, seed=seed)
    label = made.searches.label
    return Calibrated(
        distribution=made.fitted.model,
        promise=made.promise,
        covering=covering_of(made.present, label),
        kept=Kept(kept, Sketch.of(items)),
        record={
            "doubt": LABELS,
            "labels": len(label.unique()),
            **_figures(made),
            "abstention": abstention(made.promise),
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


def _asked(absent: Hits) -> Tensor:
    """Positions (m,) of the queries that were searched without their label, and found something."""
    return absent.found[:, 0].nonzero().squeeze(1)


def _foreign(doubt: Doubt | None, fitter: DoubtFitter | None, queries: Embedding, some: Tensor) -> Tensor:
    if doubt is None or fitter is None:
        return torch.zeros(len(queries), dtype=torch.double)
    features = None if fitter.features is None else fitter.features[some]
    itself = None if fitter.itself is None else fitter.itself[some]
    return oddness(doubt, queries, features, itself).foreign


def _figures(made: FittedPart) -> dict[str, Any]:
    """What the distribution is worth for labels that had no part in it, and the first hit beside it."""
    label = made.searches.label
    here, _ = made.fitted.unseen(unknown=0.0)  # all of these are there
    even, gone = made.fitted.unseen(unknown=0.5)
    return {
        "features": ["labels", "none"],
        "top1": float((made.present.first[0] == label).double().mean()),
        "first_hit_right": float((made.searches.present.label[:, 0] == label).double().mean()),
        "match_ece": match_ece(here.first[1], here.first[0] == label),
        "none_auroc": auroc(even.none, gone.none),
    }

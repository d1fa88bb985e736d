"""Everything an answer promises, calibrated at once, each promise on queries the others were not fitted on.

The labelled queries are split in two. On the first part the match probability, the statistic of presence and,
where there is one, the combined doubt are *fitted*; on the second the threshold of abstention, the covering sets
and the p-values of presence are *calibrated*. A guarantee needs that split: a threshold chosen on the queries that
shaped the doubt would promise too much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.conformal import FALSE_ALARM, CoveringSets, Presence
from doubtless.calibration.regression import Method
from doubtless.calibration.risk import RiskControl
from doubtless.errors import InputError
from doubtless.search.hits import Hits

FIT_SHARE = 0.3
"""Of the labelled queries, those that fit; a few dozen numbers need fewer queries than a sharp bound does."""
FEWEST = 20
"""Labelled queries below which nothing is calibrated."""

DoubtOf = Callable[[Tensor], Tensor]
"""Positions of queries (m,) → their doubt (m,)."""
FitDoubt = Callable[[Tensor], DoubtOf]
"""Positions of the queries that may be fitted on → the doubt of any queries."""


@dataclass(frozen=True)
class Targets:
    """What is to be promised: wrong answers at most, with which confidence, and false alarms of presence."""

    target_error: float = 0.05
    confidence: float = 0.95
    false_alarm: float = FALSE_ALARM
    unknown: float = 0.1
    """Share of the queries whose label is not in the gallery; 0: all are of labels that are there."""

    def __post_init__(self) -> None:
        if not 0 <= self.unknown < 1:
            raise InputError(
                f"The share of unknown queries must be at least 0 and below 1, got {self.unknown}."
            )
        for name in ("target_error", "confidence", "false_alarm"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"The {name} must lie between 0 and 1, got {getattr(self, name)}.")


DEFAULT = Targets()


@dataclass(frozen=True, eq=False)
class Known:
    """Queries whose right answer is known, all with a true match in the gallery."""

    hits: Hits
    label: Tensor
    """(n,) of the queries, codes as in `hits.label`."""
    absent: Hits | None = None
    """The same queries in a gallery without their class; None where that leaves nothing to find."""

    @property
    def right(self) -> Tensor:
        """Whether each hit carries its query's label, (n, k) bool."""
        assert self.hits.label is not None
        return (self.hits.label == self.label.unsqueeze(1)) & self.hits.found

    def __len__(self) -> int:
        return len(self.label)

    def first(self, k: int) -> Known:
        """The same with the first k hits of every search."""
        absent = None if self.absent is None else self.absent.first(k)
        return replace(self, hits=self.hits.first(k), absent=absent)

    def __getitem__(self, rows: Tensor) -> Known:
        absent = None if self.absent is None else self.absent[rows]
        return replace(self, hits=self.hits[rows], label=self.label[rows], absent=absent)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What `calibrate` fitted: four attachments that are saved with an index."""

    calibrator: Calibrator
    presence: Presence
    covering: CoveringSets
    risk: RiskControl
    doubt_of: DoubtOf | None = None
    """The doubt that `risk` was calibrated for; None: 1 − P(first hit right)."""


def calibrate(
    known: Known,
    targets: Targets = DEFAULT,
    *,
    method: Method = "auto",
    fit_doubt: FitDoubt | None = None,
    split: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    figures: bool = True,
) -> Calibration:
    """Fits on one part of the known queries and calibrates on the other.

    fit_doubt   makes the combined doubt from the positions it may be fitted on; None: 1 − P(first hit right)
    split       positions to fit and to calibrate on; None: drawn at random with `seed`
    figures     adds what match probabilities are worth to the calibrator's record, which takes most of the time
    """
    if len(known) < FEWEST:
        raise InputError(f"Calibration needs at least {FEWEST} labelled queries, got {len(known)}.")
    fitted, held = random_split(len(known), seed=seed) if split is None else split
    training, proof = known[fitted], known[held]
    shown = training.label if figures else None
    calibrator = Calibrator.fit_hits(training.hits, training.right, method=method, query_label=shown)
    presence = Presence.fit(training.hits, training.absent)
    presence = presence.calibrated(proof.hits, proof.absent, false_alarm=targets.false_alarm)
    doubt_of = None if fit_doubt is None else fit_doubt(fitted)
    chance = calibrator.probability(proof.hits)
    doubt = 1 - chance[:, 0] if doubt_of is None else doubt_of(held)
    pilot = 1 - calibrator.probability(training.hits)[:, 0] if doubt_of is None else doubt_of(fitted)
    risk = RiskControl.fit(
        gated(doubt, presence.p_value(proof.hits), targets.false_alarm),
        proof.right[:, 0],
        target_error=targets.target_error,
        confidence=targets.confidence,
        pilot=(gated(pilot, presence.p_value(training.hits), targets.false_alarm), training.right[:, 0]),
    )
    covering = CoveringSets.fit(chance, proof.right)
    return Calibration(calibrator, presence, covering, risk, doubt_of)


def gated(doubt: Tensor, p_value: Tensor, false_alarm: float) -> Tensor:
    """The doubt, infinite where a query is held to be not in the gallery: such a one is never answered."""
    return doubt.double().masked_fill(p_value <= false_alarm, torch.inf)


def random_split(count: int, *, seed: int, share: float = FIT_SHARE) -> tuple[Tensor, Tensor]:
    """Positions to fit and positions to calibrate on."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    cut = max(1, round(share * count))
    return order[:cut], order[cut:]


def trial(known: Known, targets: Targets = DEFAULT, *, by_class: bool, seed: int = 0) -> dict[str, Any]:
    """Calibrates on one half of the known queries and counts on the other what was promised.

    by_class   halves of classes instead of queries: what the promise is worth for classes unlike the
               calibration's, for which no theorem vouches. {} where there are too few classes or queries.
    """
    unit = known.label if by_class else torch.arange(len(known))
    members, place = torch.unique(unit, return_inverse=True)
    if len(members) < 4 or len(known) < 4 * FEWEST:
        return {}
    order = torch.randperm(len(members), generator=torch.Generator().manual_seed(seed))
    half = order[place] < len(members) // 2
    calibration, rest = calibrate(known[half], targets, seed=seed, figures=False), known[~half]
    chance = calibration.calibrator.probability(rest.hits)
    presence = calibration.presence
    doubt = gated(1 - chance[:, 0], presence.p_value(rest.hits), presence.false_alarm)
    answered = calibration.risk.answers(doubt)
    wrong = (~rest.right[answered, 0]).double()
    sizes = calibration.covering.sizes(chance, confidence=0.9)
    within = torch.arange(chance.shape[1]) < sizes.unsqueeze(1)
    return {
        "queries": len(rest),
        "coverage": float(answered.double().mean()),
        "error": float(wrong.mean()) if len(wrong) else None,
        "covered@0.9": float((within & rest.right).any(1).double().mean()),
        "false_alarms": float((doubt == torch.inf).double().mean()),
    }

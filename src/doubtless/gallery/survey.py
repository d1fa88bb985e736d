"""What a gallery looks like as a whole: some of its items, each judged by all others, on a map; and its curves.

Every item of a sample asks for its nearest neighbours among all others. Its doubt is the probability that the first
of them has another label; before calibration its own uncertainty, or the distance where it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.calibration.risk import RiskControl
from doubtless.gallery.answers import watched_doubt
from doubtless.index.items import Item
from doubtless.metrics.calibration import reliability_curve
from doubtless.metrics.measure import Curve
from doubtless.metrics.uncertainty import risk_coverage_curve

if TYPE_CHECKING:
    from doubtless.gallery.asking import Asking

MOST = 2_000
"""Items that are asked, drawn at random where there are more."""
MOST_MAPPED = 600
"""Of these, on the map."""
CHUNK = 500
"""Items that are asked together."""
CURVE_POINTS = 200
By = Literal["probability", "uncertainty", "distance"]


@dataclass(frozen=True, eq=False)
class Survey:
    """A sample of n items of a gallery."""

    total: int
    """Items of the gallery."""
    rows: Tensor
    """(n,), in the order in which they were drawn."""
    items: list[Item]
    doubt: NDArray[np.float64]
    """(n,); NaN where nothing was found."""
    by: By
    """What the doubt is."""
    reliability: Curve | None
    """How often probabilities came true, of items that share their label with another one."""
    known: int
    """Items that the curve rests on."""

    def least_certain(self, most: int) -> list[int]:
        """Places of the items that one doubts most, the most doubtful first."""
        order = np.argsort(-np.nan_to_num(self.doubt, nan=-np.inf), kind="stable").tolist()
        return [place for place in order if np.isfinite(self.doubt[place])][:most]


@dataclass(frozen=True, eq=False)
class Map:
    """Some items of a survey on a plane: near ones look alike to the model."""

    survey: Survey
    places: list[int]
    """(m,) which of the survey's items."""
    coordinates: NDArray[np.float64]
    """(m, 2) in [0, 1], one scale for both directions."""


def survey(gallery: Asking, *, most: int = MOST, seed: int = 0) -> Survey:
    """Asks a sample of the items what their neighbours are; empty for a gallery of fewer than two."""
    index = gallery.index
    rows, labels = index.rows, index.labels
    if len(rows) < 2:
        return Survey(len(rows), rows[:0], [], np.zeros(0), "distance", None, 0)
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    parts = [_asked(gallery, some, labels[chosen], labels) for some, chosen in _chunks(rows, drawn)]
    chance, right = (torch.cat([getattr(part, name) for part in parts]) for name in ("chance", "right"))
    return Survey(
        total=len(rows),
        rows=rows[drawn],
        items=[item for part in parts for item in part.items],
        doubt=np.concatenate([part.doubt for part in parts]),
        by=parts[0].by,
        reliability=reliability_curve(chance, right) if len(chance) else None,
        known=len(chance),
    )


def mapped(gallery: Asking, seen: Survey, *, most: int = MOST_MAPPED) -> Map:
    """Lays the first items of a survey out on a plane."""
    from doubtless.report.images import embedding_map

    rows = seen.rows[:most]
    if not len(rows):
        return Map(seen, [], np.zeros((0, 2)))
    direction = gallery.index.embedding(rows).direction
    drawn = embedding_map(direction, torch.zeros(len(rows), dtype=torch.long), limit=most)
    return Map(seen, list(range(len(rows))), unit_square(drawn.coordinates))


def unit_square(coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 2) moved into the unit square, the shorter direction in its middle.

    >>> unit_square(np.array([[0.0, 0.0], [4.0, 2.0]])).tolist()
    [[0.0, 0.25], [1.0, 0.75]]
    """
    low, high = coordinates.min(0), coordinates.max(0)
    widest = float((high - low).max())
    return (coordinates - (low + high) / 2) / (widest if widest > 0 else 1.0) + 0.5


def risk_coverage(gallery: Asking) -> dict[str, Any] | None:
    """How many answers are wrong for answering a share of the queries, and which of them is promised.

    points     of all queries, known and unknown ones as the promise states them: `coverage` and `wrong`
    known      the same of the known queries alone
    promised   the point that is answered by, and the bound of `wrong` that is promised there
    """
    judge = gallery.judge_of()
    kept, control = judge.calibrated.promise, judge.calibrated.risk
    if judge.instead is not None or (kept is None and control is None):
        return None
    if kept is not None:
        outcomes = kept.outcomes
        known = risk_coverage_curve(watched_doubt(outcomes.score), outcomes.correct)
        point = (
            {"coverage": kept.coverage, "wrong": kept.error, "bound": kept.bound}
            if kept.is_worth_keeping
            else None
        )
        return {
            "points": _points(kept.curve()),
            "known": _points(known),
            "promised": point,
            "queries": len(outcomes.score),
        }
    if not isinstance(control, RiskControl):  # people's answers tell of few, chosen items: they make no curve
        return None
    doubt, correct, pilot = control.evidence
    curve = _points(risk_coverage_curve(doubt[~pilot].nan_to_num(posinf=2.0), correct[~pilot]))
    point = {"coverage": control.coverage, "wrong": control.error, "bound": control.bound}
    return {
        "points": curve,
        "known": curve,
        "promised": point if control.met else None,
        "queries": control.queries,
    }


@dataclass(frozen=True, eq=False)
class _Asked:
    items: list[Item]
    doubt: NDArray[np.float64]
    by: By
    chance: Tensor
    right: Tensor


def _chunks(rows: Tensor, drawn: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(rows[some], some) for some in drawn.split(CHUNK)]


def _asked(gallery: Asking, rows: Tensor, codes: Tensor, labels: Tensor) -> _Asked:
    """What items at rows (n,) of these labels (n,) are told, `labels` (N,) those of all."""
    answers = gallery.ask_items(rows)
    hits, by = answers.hits, "probability"
    doubt = answers.total_doubt
    if doubt is None:
        doubt, by = gallery.index.embedding(rows).uncertainty, "uncertainty"
    if doubt is None:
        doubt, by = (2 - 2 * hits.score[:, 0]).clamp_min(0).sqrt(), "distance"
    chance, right = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    if answers.probability is not None and hits.label is not None:
        label, first = hits.label[:, 0], answers.probability[:, 0]
        if answers.distribution is not None:
            label, first = answers.distribution.first
        shared = labels[labels >= 0].bincount(minlength=max(1, int(codes.max()) + 1)) > 1
        known = (codes >= 0) & shared[codes.clamp_min(0)] & ~first.isnan()
        chance, right = first[known], label[known] == codes[known]
    items = gallery.index.items(rows)
    return _Asked(items, doubt.double().numpy(), by, chance, right)  # type: ignore[arg-type]


def _points(curve: Curve) -> list[dict[str, float]]:
    """Of a curve, so many points that its shape is seen."""
    count = len(curve.x)
    chosen = sorted({round(place) for place in np.linspace(0, count - 1, min(count, CURVE_POINTS))})
    return [{"coverage": curve.x[place], "wrong": curve.y[place]} for place in chosen]

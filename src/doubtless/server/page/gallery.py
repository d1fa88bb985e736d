"""What the second tab shows of an index: a map of its items with their doubt, and how well it is calibrated.

Every item of a sample asks for its nearest neighbours among all others. Its doubt is the probability that the first
of them has another label; before calibration its own uncertainty, or the distance where it has none.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.evaluation.calibration import reliability_curve
from doubtless.evaluation.result import Curve
from doubtless.evaluation.uncertainty import risk_coverage_curve
from doubtless.report.projection import embedding_map
from doubtless.retrieval.answering import Answerer
from doubtless.retrieval.index_calibration import without_itself
from doubtless.retrieval.match_features import DEPTH
from doubtless.server.page.thumbnails import Thumbnails

if TYPE_CHECKING:
    from doubtless.retrieval.hits import Hits
    from doubtless.retrieval.interface import AnyIndex
    from doubtless.server.service import Service

MOST = 600
"""Items on the map, drawn at random where there are more."""
BY_PROBABILITY = "how likely the nearest other item has another label"
BY_UNCERTAINTY = "the uncertainty of the embedding"
BY_DISTANCE = "the distance to the nearest other item"


@dataclass(frozen=True, eq=False)
class GalleryPicture:
    """A sample of n items, and the curves of the index."""

    items: int
    """Of the whole index."""
    ids: list[str]
    names: list[str | None]
    coordinates: NDArray[np.float64]  # (n, 2)
    doubt: NDArray[np.float64]  # (n,)
    by: str
    """What the doubt is."""
    sheet: str | None
    reliability: Curve | None
    risk_coverage: Curve | None
    promise: str | None

    @property
    def is_probability(self) -> bool:
        return self.by == BY_PROBABILITY


class GalleryPictures:
    """Draws the picture of a service's index once, and again when its items have changed."""

    def __init__(self, service: Service, thumbnails: Thumbnails) -> None:
        self.service, self.thumbnails = service, thumbnails
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._picture: GalleryPicture | None = None

    def get(self) -> GalleryPicture | None:
        """None for a gallery of fewer than two items."""
        with self._lock:
            rows = self.service.index.rows
            seen = (len(rows), int(rows[-1]) if len(rows) else -1)
            if seen != self._seen:
                self._picture = None if len(rows) < 2 else picture_of(self.service, self.thumbnails)
                self._seen = seen
            return self._picture


def picture_of(
    service: Service, thumbnails: Thumbnails, *, most: int = MOST, seed: int = 0
) -> GalleryPicture:
    """Asks a sample of the items for their neighbours, lays them out, and draws the curves."""
    index = service.index
    rows = index.rows
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    rows, codes = rows[drawn], index.labels[drawn]
    embedding, items = index.embedding(rows), index.items(rows)
    hits = without_itself(index.search(embedding, DEPTH + 1), rows)
    answers = Answerer(index, parts=service.answerer.parts).of_hits(hits, embedding)
    doubt, by = answers.total_doubt, BY_PROBABILITY
    if doubt is None:
        doubt, by = embedding.uncertainty, BY_UNCERTAINTY
    if doubt is None:
        doubt, by = (2 - 2 * hits.score[:, 0]).clamp_min(0).sqrt(), BY_DISTANCE
    ids = [item.id for item in items]
    return GalleryPicture(
        items=len(index),
        ids=ids,
        names=[item.label for item in items],
        coordinates=embedding_map(embedding.direction, codes, limit=most).coordinates,
        doubt=doubt.double().numpy(),
        by=by,
        sheet=thumbnails.sheet(ids),
        reliability=_reliability(answers.probability, hits, codes, index),
        risk_coverage=_risk_coverage(service),
        promise=None if service.answerer.parts.risk is None else service.answerer.parts.risk.sentence(),
    )


def _reliability(chance: Tensor | None, hits: Hits, codes: Tensor, index: AnyIndex) -> Curve | None:
    """Of items that have a label that another item has too."""
    if chance is None or hits.label is None:
        return None
    shared = index.labels[index.labels >= 0].bincount(minlength=int(codes.max()) + 1) > 1
    known = (codes >= 0) & shared[codes.clamp_min(0)]
    if not bool(known.any()):
        return None
    return reliability_curve(chance[known, 0], hits.label[known, 0] == codes[known])


def _risk_coverage(service: Service) -> Curve | None:
    """Of the queries that the threshold was chosen on; none of them shaped the doubt."""
    control = service.answerer.parts.risk
    if control is None:
        return None
    doubt, correct, pilot = control.evidence
    return risk_coverage_curve(doubt[~pilot].nan_to_num(posinf=2.0), correct[~pilot])

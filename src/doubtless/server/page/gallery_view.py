"""What the second tab shows of a gallery: a map of its items with their doubt, and how well it is calibrated.

Every item of a sample asks for its nearest neighbours among all others. Its doubt is the probability that the
first of them has another label; before calibration its own uncertainty, or the distance where it has none.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.gallery.answers import watched_doubt
from doubtless.metrics.calibration import reliability_curve
from doubtless.metrics.measure import Curve
from doubtless.metrics.uncertainty import risk_coverage_curve
from doubtless.report.charts import SERIES, SHAPES, Line, Points, legend, series
from doubtless.report.figures import draw
from doubtless.report.images import embedding_map
from doubtless.report.page import text
from doubtless.server.page.answer_view import Addresses, percent
from doubtless.server.page.thumbnails import CELL, COLUMNS, Thumbnails

if TYPE_CHECKING:
    from doubtless.gallery import Answers
    from doubtless.server.service.service import Service


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
        """Whether doubts are those that abstention goes by."""
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
            rows = self.service.gallery.index.rows
            seen = (len(rows), int(rows[-1]) if len(rows) else -1)
            if seen != self._seen:
                self._picture = None if len(rows) < 2 else picture_of(self.service, self.thumbnails)
                self._seen = seen
            return self._picture


def picture_of(
    service: Service, thumbnails: Thumbnails, *, most: int = MOST, seed: int = 0
) -> GalleryPicture:
    """Asks a sample of the items for their neighbours, lays them out, and draws the curves."""
    gallery, index = service.gallery, service.gallery.index
    rows = index.rows
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    rows, codes = rows[drawn], index.labels[drawn]
    embedding, items = index.embedding(rows), index.items(rows)
    answers = gallery.ask_items(rows)
    hits, promise = answers.hits, gallery.judge_of().promise()
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
        reliability=_reliability(answers, codes, index.labels),
        risk_coverage=_risk_coverage(service),
        promise=None if promise is None else promise["sentence"],
    )


def _reliability(answers: Answers, codes: Tensor, labels: Tensor) -> Curve | None:
    """Of items (n,) that have a label that another one of the gallery's (N,) has too."""
    chance, hits = answers.probability, answers.hits
    if chance is None or hits.label is None:
        return None
    label, first = hits.label[:, 0], chance[:, 0]
    if answers.distribution is not None:
        label, first = answers.distribution.first
    shared = labels[labels >= 0].bincount(minlength=int(codes.max()) + 1) > 1
    known = (codes >= 0) & shared[codes.clamp_min(0)]
    if not bool(known.any()):
        return None
    return reliability_curve(first[known], label[known] == codes[known])


def _risk_coverage(service: Service) -> Curve | None:
    """Of the queries that the threshold was chosen on; none of them shaped the doubt."""
    calibrated = service.gallery.judge.calibrated
    if calibrated.promise is not None:
        outcomes = calibrated.promise.outcomes
        return risk_coverage_curve(watched_doubt(outcomes.score), outcomes.correct)
    control = calibrated.risk
    if control is None:
        return None
    doubt, correct, pilot = control.evidence
    return risk_coverage_curve(doubt[~pilot].nan_to_num(posinf=2.0), correct[~pilot])


WIDTH, HEIGHT, MARGIN = 720.0, 520.0, 18.0
SMALLEST, LARGEST = 3.0, 11.0
"""Radii of the dots."""
EXTREMES = 12
"""Items shown as the most, and as the least, certain."""
UNNAMED = "without a label"
KEYS = "Arrow keys go from dot to dot."


def gallery_view(picture: GalleryPicture | None, thumbnails: Addresses) -> str:
    """Everything of the second tab."""
    if picture is None:
        return '<p class="quiet">A map needs at least two items in the gallery.</p>'
    return map_view(picture) + extremes_view(picture, thumbnails) + curves_view(picture)


def map_view(picture: GalleryPicture) -> str:
    """Each item a dot: near dots are alike, colour and shape tell the label, size the doubt."""
    names = [UNNAMED if name is None else name for name in picture.names]
    classes = sorted(set(names))
    place_of = {name: place for place, name in enumerate(classes)}
    points, radii = _placed(picture.coordinates), _radii(picture.doubt)
    order = np.argsort(-radii, kind="stable")  # small dots lie over large ones
    dots = "".join(
        _dot(i, points[i], radii[i], place_of[names[i]], names[i], picture.ids[i], _said(picture, i))
        for i in order.tolist()
    )
    some = (
        f"{len(picture.ids):,} of {picture.items:,}"
        if len(picture.ids) < picture.items
        else f"All {picture.items:,}"
    )
    sheet = "" if picture.sheet is None else f" style=\"--sheet:url('{picture.sheet}')\""
    return (
        f'<section class="part map"{sheet}><h2>Map of the gallery</h2>'
        f"<p>{some} items; near dots look alike to the model. Size is the doubt: {text(picture.by)}.</p>"
        f'<div class="plane"><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" tabindex="0" role="application" '
        f'aria-label="Map of the gallery. {KEYS}"><g class="dots">{dots}</g></svg>'
        f'<div class="card" aria-live="polite" hidden data-cell="{CELL}" data-columns="{COLUMNS}">'
        '<span class="cell"></span><span class="words"></span></div></div>'
        f"{_legend(classes)}</section>"
    )


def extremes_view(picture: GalleryPicture, thumbnails: Addresses) -> str:
    """The items one doubts least, and those one doubts most."""
    most, least = extremes(picture)
    return (
        '<section class="part pair-of-lists">'
        f"<div><h2>Most certain items</h2>{_items(picture, most, thumbnails)}</div>"
        f"<div><h2>Least certain items</h2>{_items(picture, least, thumbnails)}</div></section>"
    )


def extremes(picture: GalleryPicture) -> tuple[list[int], list[int]]:
    """Places of the most and of the least certain items, each beginning with its extreme; none is in both."""
    order = np.argsort(picture.doubt, kind="stable").tolist()
    return order[: min(EXTREMES, (len(order) + 1) // 2)], order[::-1][: min(EXTREMES, len(order) // 2)]


def curves_view(picture: GalleryPicture) -> str:
    """Calibration and risk-coverage curves, or what is missing for them."""
    figures = []
    if picture.reliability is not None:
        note = (
            "Items asked for each other: how often a probability came true. Some of them (three in ten of a "
            "calibration on the gallery itself) fitted the probabilities."
        )
        lines = [Line("this index", picture.reliability, series(0), marks=True)]
        figures.append(draw("reliability", lines, title="Calibration", note=note))
    if picture.risk_coverage is not None:
        lines = [Line("this index", picture.risk_coverage, series(0))]
        note = f"Of queries that did not shape the doubt. {picture.promise or ''}"
        figures.append(draw("risk_coverage", lines, note=note))
    body = (
        f'<div class="charts"><div class="figures">{"".join(figures)}</div></div>'
        if figures
        else '<p class="quiet">There are no curves before <code>doubtless calibrate</code>.</p>'
    )
    return f'<section class="part"><h2>How well it knows</h2>{body}</section>'


def _items(picture: GalleryPicture, places: Sequence[int], thumbnails: Addresses) -> str:
    return f'<ol class="extremes">{"".join(_item(picture, place, thumbnails) for place in places)}</ol>'


def _item(picture: GalleryPicture, place: int, thumbnails: Addresses) -> str:
    id, name = picture.ids[place], picture.names[place]
    address = thumbnails.get(id)
    image = f'<img src="{text(address)}" alt="">' if address else '<span class="no-image">no picture</span>'
    return (
        f'<li>{image}<span class="name">{text(UNNAMED if name is None else name)}</span>'
        f'<span class="id">{text(id)}</span><b>{text(_said(picture, place))}</b></li>'
    )


def _said(picture: GalleryPicture, place: int) -> str:
    value = float(picture.doubt[place])
    shown = percent(value).replace(" ", "\N{NO-BREAK SPACE}") if picture.is_probability else f"{value:.3g}"
    return f"doubt {shown}"


def _placed(coordinates: np.ndarray) -> np.ndarray:
    """(n, 2) into the drawing, one scale for both directions."""
    low, high = coordinates.min(0), coordinates.max(0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    scale = min(room / np.maximum(high - low, 1e-12))
    centred = (coordinates - (low + high) / 2) * (scale if math.isfinite(scale) else 0.0)
    return centred + np.array([WIDTH / 2, HEIGHT / 2])


def _radii(doubt: np.ndarray) -> np.ndarray:
    """By rank, so that one outlier does not make all others small; equal doubts get equal sizes."""
    ordered = np.sort(doubt)
    rank = (np.searchsorted(ordered, doubt, "left") + np.searchsorted(ordered, doubt, "right") - 1) / 2
    return SMALLEST + (LARGEST - SMALLEST) * (rank / max(1, len(doubt) - 1)) ** 2


def _shape(place: int) -> int:
    """Shapes advance with each round of colours, so that 24 labels all differ."""
    return (place % SERIES + place // SERIES) % SHAPES


def _dot(place: int, point: np.ndarray, radius: float, label: int, name: str, id: str, said: str) -> str:
    x, y = float(point[0]), float(point[1])
    data = (
        f'class="dot {series(label)}" data-place="{place}" data-x="{x:.1f}" data-y="{y:.1f}" '
        f'data-words="{text(f"{name} · {id} · {said}")}"'
    )
    shape = _shape(label)
    if shape == 0:
        return f'<circle {data} cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
    if shape == 1:
        side = radius * math.sqrt(math.pi)
        corner = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
        return f'<rect {data} {corner} width="{side:.1f}" height="{side:.1f}"/>'
    reach = radius * 1.55
    across, down = 0.866 * reach, 0.5 * reach
    return f'<path {data} d="M{x:.1f} {y - reach:.1f}l{across:.1f} {reach + down:.1f}h{-2 * across:.1f}Z"/>'


def _legend(classes: Sequence[str]) -> str:
    if len(classes) > SERIES * SHAPES:
        return f'<p class="quiet">There are {len(classes):,} labels; colours repeat.</p>'
    groups = [Points(name, [], [], [], series(place), _shape(place)) for place, name in enumerate(classes)]
    return f'<div class="charts">{legend(groups)}</div>'

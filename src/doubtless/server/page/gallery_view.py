"""The gallery as HTML: its map with doubt as size, the most and the least certain items, its curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from doubtless.report.charts import SERIES, SHAPES, Line, Points, legend, series
from doubtless.report.figures import draw
from doubtless.report.markup import text
from doubtless.server.page.answer_view import Thumbnails
from doubtless.server.page.gallery import GalleryPicture
from doubtless.server.page.thumbnails import CELL, COLUMNS
from doubtless.server.page.wording import percent

WIDTH, HEIGHT, MARGIN = 720.0, 520.0, 18.0
SMALLEST, LARGEST = 3.0, 11.0
"""Radii of the dots."""
EXTREMES = 12
"""Items shown as the most, and as the least, certain."""
UNNAMED = "without a label"
KEYS = "Arrow keys go from dot to dot."


def gallery_view(picture: GalleryPicture | None, thumbnails: Thumbnails) -> str:
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


def extremes_view(picture: GalleryPicture, thumbnails: Thumbnails) -> str:
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


def _items(picture: GalleryPicture, places: Sequence[int], thumbnails: Thumbnails) -> str:
    return f'<ol class="extremes">{"".join(_item(picture, place, thumbnails) for place in places)}</ol>'


def _item(picture: GalleryPicture, place: int, thumbnails: Thumbnails) -> str:
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

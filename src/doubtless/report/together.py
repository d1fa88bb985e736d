"""Known and out-of-distribution pictures in one order, and pictures made worse step by step.

After figures 8 and 1 of Warburg, Miani, Brack and Hauberg, *Bayesian Metric Learning for Uncertainty Quantification
in Image Retrieval* (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doubtless.evaluation.ordered import JointOrder
from doubtless.report.images import ImageLookup, embedded_image, label_name
from doubtless.report.page import text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pictures = Callable[[int], NDArray[np.uint8]]

ROW = 12
PLACES = (
    (0.0, "Most certain"),
    (0.25, "After a quarter"),
    (0.5, "In the middle"),
    (0.75, "After three quarters"),
    (1.0, "Least certain"),
)


def order_body(
    orders: Mapping[str, JointOrder],
    strangers: Mapping[str, Pictures],
    *,
    images: ImageLookup | None,
    names: Sequence[str] | None = None,
) -> str:
    """Five places of every order, as pictures; empty where there are no pictures of both."""
    shown = [name for name in orders if name in strangers] if images is not None else []
    parts = []
    for name in shown:
        assert images is not None
        parts.append(_order(orders[name], strangers[name], name, images, names, alone=len(shown) == 1))
    return "".join(parts)


def places_of(count: int, *, row: int = ROW) -> list[tuple[str, range]]:
    """Names of the places and the ranks shown at each: neighbours in the order, none shown twice.

    >>> places_of(1000, row=2)[1:3]
    [('After a quarter', range(250, 252)), ('In the middle', range(499, 501))]
    """
    row = min(row, count // len(PLACES))
    if row < 1:
        return [("All, most certain first", range(count))] if count else []
    return [(title, range(start, start + row)) for share, title in PLACES
            for start in [round(share * (count - row))]]  # fmt: skip


def _order(
    order: JointOrder,
    strange: Pictures,
    name: str,
    images: ImageLookup,
    names: Sequence[str] | None,
    *,
    alone: bool,
) -> str:
    by = "uncertainty" if order.source == "uncertainty" else "distance to the first hit (a free baseline)"
    whole = len(order.outside)
    parts = [] if alone else [f"<h3>{text(name)}</h3>"]
    parts.append(
        f'<p class="note">{whole:,} images in one order, by {text(by)}: the queries, and {text(name)} '
        f"({int(order.outside.sum()):,} images), of which the model was shown nothing. Each row shows neighbours "
        "in that order; nothing is chosen.</p>"
    )
    for title, ranks in places_of(whole):
        other = int(order.outside[ranks.start : ranks.stop].sum())
        parts.append(f"<h3>{title} <small>{other} of {len(ranks)} out-of-distribution</small></h3>")
        items = [_item(order, rank, strange, name, images, names) for rank in ranks]
        parts.append(f'<ul class="strip">{"".join(items)}</ul>')
    return "".join(parts)


def _item(
    order: JointOrder,
    rank: int,
    strange: Pictures,
    name: str,
    images: ImageLookup,
    names: Sequence[str] | None,
) -> str:
    position = int(order.position[rank])
    if bool(order.outside[rank]):
        picture = embedded_image(strange(position), f"{name} {position}")
        return f'<li class="other">{picture}<b>other</b><span>{text(name)}</span></li>'
    label = "" if images.query_label is None else label_name(images.query_label(position), names)
    picture = embedded_image(images.query(position), f"query {position} {label}")
    return f'<li class="known">{picture}<b>known</b><span>{text(label)}</span></li>'


@dataclass(frozen=True)
class Strip:
    """One picture made worse step by step, and what is said below each step."""

    title: str
    pictures: Sequence[NDArray[np.uint8]]
    captions: Sequence[tuple[str, str]]  # how much worse, and what came of it


def strips_body(strips: Sequence[Strip]) -> str:
    """A row of pictures for every way to disturb one."""
    if not strips:
        return ""
    parts = [
        '<p class="note">One picture: of those measured, that of middling uncertainty. Below each step: how many '
        "of all pictures, undisturbed, are more certain than this one is then.</p>"
    ]
    for strip in strips:
        items = "".join(
            f"<li>{embedded_image(picture, f'{strip.title}, {how}')}<b>{text(found)}</b>"
            f"<span>{text(how)}</span></li>"
            for picture, (how, found) in zip(strip.pictures, strip.captions, strict=True)
        )
        parts.append(f'<h3>{text(strip.title)}</h3><ul class="strip">{items}</ul>')
    return "".join(parts)

"""Figures of probabilistic proxies: images by length, similarities around a proxy, the length in the gradient.

After Kirchhof, Roth, Akata, Kasneci 2022: figures of images by norm, distance surfaces, roles of the norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from doubtless.losses.proxy import ProxyLoss
from doubtless.metrics.measure import Curve
from doubtless.report.charts import Frame, Line, draw_axes, drawing, legend, line_chart, series
from doubtless.report.images import LOSSLESS, ImageLookup, data_uri, label_name
from doubtless.report.method_figures.registry import Context, draws_for
from doubtless.report.page import Section, figure, gallery, text

SHOWN = 12  # images at either end
SHOWN_OF_CLASS, CLASSES = 6, 12

THIRDS = {"short": "shortest third", "middle": "middle third", "long": "longest third"}
ROLES = {
    "flatness": (
        "Temperature",
        "entropy of the softmax, share of its largest",
        "Where the length is an image's inverse temperature, the classes of short embeddings are told apart less.",
    ),
    "weight": (
        "Weight",
        "pull on the direction an error, batch = 1",
        "Where the length is an image's weight, the same error moves the direction of a long embedding more.",
    ),
}

SURFACES: dict[tuple[str, str], str] = {
    ("elk", "nivmf"): "Expected likelihood · nivMF",
    ("elk", "vmf"): "Expected likelihood · vMF",
    ("bhattacharyya", "vmf"): "Bhattacharyya · vMF",
    ("kl", "vmf"): "Kullback-Leibler · vMF",
    ("log-likelihood", "nivmf"): "Log-likelihood · nivMF",
    ("log-likelihood", "vmf"): "Log-likelihood · vMF",
    ("cosine", "point"): "Cosine · point",
    ("l2", "point"): "L2 · point",
}
REACH, CELLS, LEVELS = 10.0, 56, 9
PROXY_ANGLE, PROXY_CONCENTRATION, PROXY_SCALES = math.pi / 6, 5.0, (7.0, 3.0)
DRAWS = 2000


@draws_for("proxy")
def proxy_sections(context: Context) -> list[Section]:
    """The sections that reports of proxy runs have besides the common ones."""
    options = context.method.config.to_dict()["proxy"]
    surfaces = similarity_surfaces((options["similarity"], options["family"]))
    return [
        Section("length", "Length of the embeddings", length_figures(context)),
        Section("roles", "The length in the gradient", gallery(role_figures(context.log))),
        Section("surfaces", "Similarities around one proxy", surfaces),
    ]


# -- images by length --------------------------------------------------------------------------------


def length_figures(context: Context) -> str:
    """The shortest and longest embeddings of all, and of every class."""
    length = context.embedding.location.detach().norm(dim=1).cpu()
    if len(length) < 2:
        return ""
    parts = [
        '<p class="note">The length of an embedding is the concentration of its distribution: short ones are '
        "those the network calls ambiguous. Each strip begins with its extreme.</p>"
    ]
    everything = torch.arange(len(length))
    parts.append("<h3>Overall</h3>" + gallery(_ends(context, length, everything, SHOWN, title="")))
    labels = context.labels.cpu()
    classes = labels.unique().tolist()
    figures = []
    for label in classes[:CLASSES]:
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) >= 2:
            title = label_name(label, context.label_names)
            figures.append(_both_ends(context, length, rows, title))
    if figures:
        more = f" <small>the first {CLASSES} of {len(classes)}</small>" if len(classes) > CLASSES else ""
        parts.append(f"<h3>By class{more}</h3>" + gallery(figures))
    return "".join(parts)


def _ends(context: Context, length: Tensor, rows: Tensor, count: int, *, title: str) -> list[str]:
    order = rows[length[rows].argsort()].tolist()
    count = min(count, (len(order) + 1) // 2)
    short, long = order[:count], order[::-1][:count]
    return [
        figure(
            f"{name} embeddings{title}",
            _strip(context.images, chosen, context),
            note=f"lengths {_lengths(length, chosen)}",
        )
        for name, chosen in (("Shortest", short), ("Longest", long))
    ]


def _both_ends(context: Context, length: Tensor, rows: Tensor, title: str) -> str:
    order = rows[length[rows].argsort()].tolist()
    count = min(SHOWN_OF_CLASS, len(order) // 2)
    body = "".join(
        f'<div><p class="note">{name}</p>{_strip(context.images, chosen, context)}</div>'
        for name, chosen in (("shortest", order[:count]), ("longest", order[::-1][:count]))
    )
    return figure(title, body, note=f"{len(order):,} images, lengths {_lengths(length, order)}")


def _lengths(length: Tensor, rows: Sequence[int]) -> str:
    values = length[list(rows)]
    return f"{float(values.min()):.3g} to {float(values.max()):.3g}"


def _strip(images: ImageLookup, rows: Sequence[int], context: Context) -> str:
    """Pictures in a row that wraps."""
    shown = []
    for row in rows:
        picture = images.query(row)
        sharp = ' class="sharp"' if max(picture.shape[:2]) <= LOSSLESS else ""
        name = label_name(int(context.labels[row]), context.label_names)
        shown.append(
            f'<img{sharp} src="{data_uri(picture)}" alt="image {row} {text(name)}" title="{text(name)}">'
        )
    columns = "grid-template-columns: repeat(auto-fill, minmax(44px, 1fr))"
    return f'<div class="pair" style="{columns}">{"".join(shown)}</div>'


# -- the length in the gradient ------------------------------------------------------------------------


def role_figures(log: Sequence[Mapping[str, Any]]) -> list[str]:
    """Flatness and weight over the epochs, by thirds of the images of a batch; none where they were not logged."""
    figures = []
    for role, (title, y_label, note) in ROLES.items():
        lines = [
            Line(name, curve, series(place), marks=len(curve.x) <= 40)
            for place, (third, name) in enumerate(THIRDS.items())
            if (curve := _logged(log, f"train_{role}_{third}")).x
        ]
        if lines:
            description = f"{title}: {y_label} over the epochs for {', '.join(line.name for line in lines)}"
            chart = line_chart(lines, x_label="epoch", y_label=y_label, description=description)
            figures.append(figure(title, chart + legend(lines), note=note))
    return figures


def _logged(log: Sequence[Mapping[str, Any]], name: str) -> Curve:
    points = [
        (float(row.get("epoch", place)), float(row[name])) for place, row in enumerate(log) if row.get(name)
    ]
    return Curve([x for x, _ in points], [y for _, y in points])


# -- surfaces ----------------------------------------------------------------------------------------


def similarity_surfaces(of_run: tuple[str, str]) -> str:
    """The similarity of every embedding of a plane with one proxy, one picture each; the run's own first."""
    order = sorted(SURFACES, key=lambda row: row != of_run)
    figures = []
    for similarity, family in order:
        title = SURFACES[similarity, family] + (" (this run)" if (similarity, family) == of_run else "")
        figures.append(figure(title, _surface(similarity, family, title)))
    intro = (
        '<p class="note" style="margin-bottom: 1rem">Embeddings of two dimensions: the direction is the angle, the '
        "concentration the distance from the middle. The stronger the colour, the more alike to the proxy, a "
        f"dot in its direction with concentration {PROXY_CONCENTRATION:g} (nivMF: {PROXY_SCALES[0]:g} across, "
        f"{PROXY_SCALES[1]:g} up). Every shade covers a tenth of the plane.</p>"
    )
    return intro + gallery(figures)


@torch.no_grad()
def surface_values(similarity: str, family: str) -> Tensor:
    """Similarities (rows, columns) on the grid, the first row at the bottom."""
    loss = ProxyLoss(1, 2, similarity=similarity, family=family, samples=DRAWS).double()  # type: ignore[arg-type]
    direction = torch.tensor([math.cos(PROXY_ANGLE), math.sin(PROXY_ANGLE)], dtype=torch.float64)
    loss.location.copy_(direction * (PROXY_CONCENTRATION if similarity == "l2" else 1.0))
    if family == "vmf":
        loss.log_concentration.fill_(math.log(PROXY_CONCENTRATION))
    elif family == "nivmf":
        loss.log_concentration.copy_(torch.tensor([PROXY_SCALES], dtype=torch.float64).log())
    middle = (torch.arange(CELLS, dtype=torch.float64) + 0.5) * (2 * REACH / CELLS) - REACH
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    embeddings = torch.stack((x, y), 2).flatten(0, 1)  # (cells², 2)
    similarities = loss.similarities(embeddings, generator=torch.Generator().manual_seed(0))
    return similarities.view(CELLS, CELLS)


def _surface(similarity: str, family: str, title: str) -> str:
    values = surface_values(similarity, family)
    low, high = float(values.min()), float(values.max())
    edges = values.flatten().quantile(torch.arange(1, LEVELS + 1, dtype=torch.float64) / (LEVELS + 1))
    level = torch.bucketize(values, edges, right=True)
    side = 182.0
    frame = Frame(-REACH, REACH, -REACH, REACH, left=(360 - side) / 2, right=(360 + side) / 2)
    bands = "".join(_band(frame, level, number) for number in range(1, LEVELS + 1))
    dot = (PROXY_CONCENTRATION * math.cos(PROXY_ANGLE), PROXY_CONCENTRATION * math.sin(PROXY_ANGLE))
    mark = f'<g class="s1"><circle class="mark" cx="{frame.x(dot[0]):.1f}" cy="{frame.y(dot[1]):.1f}" r="4"/></g>'
    axes = draw_axes(frame, x_label=f"similarity from {low:.3g} to {high:.3g}".replace("-", "−"), y_label="")
    return drawing(
        axes + bands + mark, description=f"{title}: similarity of embeddings of a plane with one proxy"
    )


def _band(frame: Frame, level: Tensor, number: int) -> str:
    """All cells of one level as one path: neighbours in a row are one rectangle."""
    width, height = (frame.right - frame.left) / CELLS, (frame.bottom - frame.top) / CELLS
    pieces = []
    for row, cells in enumerate((level == number).tolist()):
        column = 0
        while column < CELLS:
            if not cells[column]:
                column += 1
                continue
            end = column
            while end < CELLS and cells[end]:
                end += 1
            left, top = frame.left + column * width, frame.bottom - (row + 1) * height
            pieces.append(
                f"M{left:.1f} {top:.1f}h{(end - column) * width:.1f}v{height:.1f}h-{(end - column) * width:.1f}z"
            )
            column = end
    opacity = number / (LEVELS + 1)
    fill = f"fill: var(--c0); fill-opacity: {opacity:.2f}; stroke: none; shape-rendering: crispEdges"
    return f'<path style="{fill}" d="{"".join(pieces)}"/>' if pieces else ""

"""Line charts, histograms and scatter plots as SVG text: pure functions from data to a string.

Colours, dashes and fonts live in style.css under the series classes ``s0`` … ``s7``, the classes ``d0`` … ``d7`` of
dashes for more than eight series, and the reference classes ``oracle``, ``random`` and ``diagonal``, so that one
drawing serves light, dark and paper. Every series has a colour *and* a dash (points: a colour and a shape), for
readers who do not tell colours apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from doubtless.metrics.measure import Curve
from doubtless.report.page import text

WIDTH, HEIGHT = 360.0, 250.0
TOP, RIGHT, BOTTOM = 26.0, 14.0, 42.0
CHARACTER = 6.3  # width of a digit at the charts' font size: decides the left margin


def ticks(low: float, high: float, *, count: int = 5) -> list[float]:
    """Round numbers within [low, high], about `count` of them, a step of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        return [low]
    step = _step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_tidy(index * step) for index in range(first, last + 1)]


def widen(low: float, high: float, *, count: int = 5) -> tuple[float, float]:
    """The range grown to whole ticks, so that the first and last grid line close the frame."""
    low, high = open_range(low, high)
    step = _step(high - low, count)
    return _tidy(math.floor(low / step + 1e-9) * step), _tidy(math.ceil(high / step - 1e-9) * step)


def open_range(low: float, high: float) -> tuple[float, float]:
    """The range itself, or room around it where it is too narrow for its ticks to be told apart."""
    if high - low > max(1e-9 * max(abs(low), abs(high)), 1e-290):
        return low, high
    space = max(abs(low), abs(high)) * 0.1
    space = space if space > 1e-290 else 1.0
    return low - space, high + space


def tick_label(value: float, *, step: float) -> str:
    """As many decimals as the step needs; powers of ten for the very small and very large.

    >>> tick_label(0.2, step=0.05), tick_label(3e-7, step=1e-7), tick_label(20000.0, step=10000.0)
    ('0.20', '3e−7', '20,000')
    """
    if step < 1e-4 or max(abs(value), step) >= 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        if not value:
            return "0"
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}".replace("-", "−")


def span(values: Iterable[float | None]) -> tuple[float, float]:
    """Least and greatest finite value; (0, 1) where there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


@dataclass(frozen=True)
class Frame:
    """Where data coordinates lie in the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    left: float
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        """Where a value of the x axis lies in the drawing."""
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value of the y axis lies in the drawing."""
        return self.bottom - (value - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)


Ticks = Sequence[tuple[float, str]]
"""Where an axis is labelled and how: powers of ten on an axis of logarithms."""


def make_frame(
    x_range: tuple[float, float], y_range: tuple[float, float], *, y_ticks: Ticks | None = None
) -> Frame:
    """A frame for these ranges; its left margin has room for the longest label of the y axis."""
    x_range, y_range = open_range(*x_range), open_range(*y_range)
    longest = max(len(label) for _, label in y_ticks or labelled(*y_range))
    return Frame(*x_range, *y_range, left=10 + CHARACTER * longest + 6)


def labelled(low: float, high: float) -> list[tuple[float, str]]:
    """The ticks of an axis with their labels."""
    values = ticks(low, high)
    step = values[1] - values[0] if len(values) > 1 else abs(values[0]) or 1.0
    return [(value, tick_label(value, step=step)) for value in values]


def draw_axes(
    frame: Frame, *, x_label: str, y_label: str, x_ticks: Ticks | None = None, y_ticks: Ticks | None = None
) -> str:
    """Grid lines, tick labels and the names of both axes; the y axis is named above it, where it reads level."""
    parts = []
    for value, label in y_ticks or labelled(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{frame.left - 6:.1f}" y="{y + 3.8:.1f}" text-anchor="end">{label}</text>'
        )
    for value, label in x_ticks or labelled(frame.x_low, frame.x_high):
        x = frame.x(value)
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom + 4:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 16:.1f}" text-anchor="middle">{label}</text>'
        )
    middle, ground = (frame.left + frame.right) / 2, f"{frame.bottom:.1f}"
    parts.append(
        f'<line class="axis" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{ground}" y2="{ground}"/>'
        f'<text class="name" x="{middle:.1f}" y="{HEIGHT - 8:.1f}" text-anchor="middle">{text(x_label)}</text>'
        f'<text class="name" x="2" y="13">{text(y_label)}</text>'
    )
    return "".join(parts)


def drawing(body: str, *, description: str, height: float = HEIGHT) -> str:
    """The SVG element around a drawing; `description` is what a screen reader says in its place."""
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{text(description)}">{body}</svg>'


def _step(width: float, count: int) -> float:
    rough = width / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _tidy(value: float) -> float:
    """Removes what binary fractions leave behind: 0.30000000000000004 is 0.3, −0.0 is 0.0."""
    return float(f"{value:.12g}") + 0.0


SERIES = 8  # colours in style.css
SHAPES = 3  # circle, square, triangle
NEAREST = 0.35  # points closer than this in the drawing are one point


@dataclass(frozen=True)
class Line:
    """A named curve and the class that colours it. `marks` draws its points, sized by the curve's weight."""

    name: str
    curve: Curve
    style: str = "s0"
    marks: bool = False
    of: str = ""  # whose line it is: a page's script finds it by that


@dataclass(frozen=True)
class Points:
    """A named group of dots, all of one colour and shape: x, y and radius of each."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    radius: Sequence[float]
    style: str = "s0"
    shape: int = 0


def series(index: int) -> str:
    """The class of the index-th series: a colour and a dash. After eight the colours repeat, with other dashes.

    >>> series(1), series(9)
    ('s1', 's1 d2')
    """
    turn, colour = divmod(index, SERIES)
    return f"s{colour} d{(colour + turn) % SERIES}" if turn else f"s{colour}"


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    description: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
    x_ticks: Ticks | None = None,
    y_ticks: Ticks | None = None,
) -> str:
    """Lines over common axes; ranges not given are those of the data, grown to whole ticks.

    >>> svg = line_chart([Line("loss", Curve([1.0, 2.0], [0.7, 0.4]))], x_label="epoch", y_label="loss",
    ...                  description="Training loss")
    >>> svg.startswith("<svg") and svg.endswith("</svg>")
    True
    """
    if x_range is None:
        x_range = span(value for line in lines for value in line.curve.x)
    if y_range is None:
        y_range = widen(*span(value for line in lines for value in line.curve.y))
    frame = make_frame(x_range, y_range, y_ticks=y_ticks)
    parts = [draw_axes(frame, x_label=x_label, y_label=y_label, x_ticks=x_ticks, y_ticks=y_ticks)]
    if diagonal:
        parts.append(_diagonal(frame))
    # The first line is the one the figure is about: it is drawn last, over the others.
    parts += [_line(frame, line) for line in reversed(lines)]
    return drawing("".join(parts), description=description)


def histogram(lines: Sequence[Line], *, x_label: str, y_label: str, description: str) -> str:
    """Overlaid histograms; a curve's x are the bins' centres (equal widths), its y their shares."""
    half = _bin_width(lines) / 2
    low, high = span(value for line in lines for value in line.curve.x)
    top = span(value for line in lines for value in line.curve.y)[1]
    frame = make_frame((low - half, high + half), widen(0.0, top if top > 0 else 1.0))
    bars = "".join(_steps(frame, line, half) for line in lines)
    return drawing(draw_axes(frame, x_label=x_label, y_label=y_label) + bars, description=description)


def scatter(groups: Sequence[Points], *, description: str, height: float = 300.0) -> str:
    """Dots on a plane without axes (a map: only nearness means something). Large dots lie below small ones."""
    frame = _map_frame(groups, height)
    dots = [
        (radius, f'<g class="{group.style}">{_dot(frame.x(x), frame.y(y), radius, group.shape)}</g>')
        for group in groups
        for x, y, radius in zip(group.x, group.y, group.radius, strict=True)
    ]
    dots.sort(key=lambda dot: -dot[0])
    return drawing(
        f'<g class="dots">{"".join(dot for _, dot in dots)}</g>', description=description, height=height
    )


def legend(
    lines: Sequence[Line | Points], *, diagonal: str = "", filled: bool = False, kind: str = "legend"
) -> str:
    """Names beside samples of their lines, dots or (`filled`) bars, as an HTML list that wraps on a phone."""
    items = [f"<li{_of(line)}>{_sample(line, filled)}{text(line.name)}</li>" for line in lines]
    if diagonal:
        sample = _swatch('<line class="line diagonal" x1="1" x2="25" y1="6" y2="6"/>', 26)
        items.append(f"<li>{sample}{text(diagonal)}</li>")
    return f'<ul class="{kind}">{"".join(items)}</ul>' if items else ""


def whisker(value: float, *, low: float | None, high: float | None) -> str:
    """A number between 0 and 1 as a tick on a track, its interval as a bar: a picture for a table cell."""
    if not 0 <= value <= 1:
        return ""
    bar = ""
    if low is not None and high is not None and 0 <= low <= high <= 1:
        bar = f'<line class="reach" x1="{4 + 122 * low:.1f}" x2="{4 + 122 * high:.1f}" y1="7" y2="7"/>'
    at = f"{4 + 122 * value:.1f}"
    return (
        '<svg class="whisker" viewBox="0 0 130 14" aria-hidden="true">'
        f'<line class="track" x1="4" x2="126" y1="7" y2="7"/>{bar}'
        f'<line class="at" x1="{at}" x2="{at}" y1="1.5" y2="12.5"/></svg>'
    )


def _line(frame: Frame, line: Line) -> str:
    pieces = [piece for piece in _pieces(frame, line.curve) if len(piece) > 1]
    path = " ".join("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in piece) for piece in pieces)
    marks = _marks(frame, line.curve) if line.marks or not path else ""
    drawn = _inside(frame, f'<path class="line" d="{path}"/>') if path else ""
    return f'<g class="{line.style}"{_of(line)}>{drawn}{marks}</g>' if path or marks else ""


def _of(line: Line | Points) -> str:
    return f' data-of="{text(line.of)}"' if isinstance(line, Line) and line.of else ""


def _inside(frame: Frame, body: str, *, margin: float = 2.0) -> str:
    """Cuts off what lies outside the frame: an inner SVG clips by itself and, unlike a clip path, needs no name."""
    left, top = frame.left - margin, frame.top - margin
    width, height = frame.right - frame.left + 2 * margin, frame.bottom - frame.top + 2 * margin
    box = f"{left:.1f} {top:.1f} {width:.1f} {height:.1f}"
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<svg {place} viewBox="{box}">{body}</svg>'


def _pieces(frame: Frame, curve: Curve) -> Iterator[list[tuple[float, float]]]:
    """The curve in drawing coordinates, broken where a value is missing and thinned where points coincide."""
    piece: list[tuple[float, float]] = []
    skipped: tuple[float, float] | None = None
    for x, y in zip(curve.x, curve.y, strict=True):
        if not (_is_number(x) and _is_number(y)):
            yield [*piece, skipped] if skipped else piece
            piece, skipped = [], None
            continue
        point = (frame.x(x), frame.y(y))
        if piece and math.dist(piece[-1], point) < NEAREST:
            skipped = point
        else:
            piece.append(point)
            skipped = None
    yield [*piece, skipped] if skipped else piece


def _marks(frame: Frame, curve: Curve) -> str:
    """Circles whose area follows the weight; points that nothing stands behind are not drawn."""
    weights = curve.weight or [1.0] * len(curve.x)
    largest = max((weight for weight in weights if _is_number(weight)), default=0.0) or 1.0
    circles = []
    for x, y, weight in zip(curve.x, curve.y, weights, strict=True):
        if _is_number(x) and _is_number(y) and _is_number(weight) and weight > 0:
            radius = 2.6 + (4.0 * math.sqrt(weight / largest) if curve.weight else 0.2)
            circles.append(
                f'<circle class="mark" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="{radius:.1f}"/>'
            )
    return "".join(circles)


def _steps(frame: Frame, line: Line, half: float) -> str:
    corners = [f"M{frame.x(line.curve.x[0] - half):.1f} {frame.bottom:.1f}"] if line.curve.x else []
    for centre, share in zip(line.curve.x, line.curve.y, strict=True):
        y = frame.y(share if _is_number(share) else 0.0)
        corners.append(f"L{frame.x(centre - half):.1f} {y:.1f} L{frame.x(centre + half):.1f} {y:.1f}")
    if not corners:
        return ""
    corners.append(f"L{frame.x(line.curve.x[-1] + half):.1f} {frame.bottom:.1f}")
    return f'<g class="{line.style}"><path class="bars" d="{" ".join(corners)}"/></g>'


def _bin_width(lines: Sequence[Line]) -> float:
    gaps = [b - a for line in lines for a, b in zip(line.curve.x, line.curve.x[1:], strict=False) if b > a]
    return min(gaps, default=1.0)


def _map_frame(groups: Sequence[Points], height: float) -> Frame:
    """One scale for both directions, centred: distances on a map must not depend on their direction."""
    margin = 10.0
    x_low, x_high = span(value for group in groups for value in group.x)
    y_low, y_high = span(value for group in groups for value in group.y)
    scale = max((x_high - x_low) / (360 - 2 * margin), (y_high - y_low) / (height - 2 * margin)) or 1.0
    x_half, y_half = scale * (180 - margin), scale * (height / 2 - margin)
    x_middle, y_middle = (x_low + x_high) / 2, (y_low + y_high) / 2
    return Frame(
        x_middle - x_half, x_middle + x_half, y_middle - y_half, y_middle + y_half,
        left=margin, right=360 - margin, top=margin, bottom=height - margin,
    )  # fmt: skip


def _dot(x: float, y: float, radius: float, shape: int) -> str:
    """A circle, a square or a triangle of the same area."""
    if shape % SHAPES == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
    if shape % SHAPES == 1:
        side = radius * math.sqrt(math.pi)
        return f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}"/>'
    reach = radius * math.sqrt(math.pi / (0.75 * math.sqrt(3)))  # from the centre to a corner
    across, down = reach * math.sqrt(3) / 2, reach / 2
    return f'<path d="M{x:.1f} {y - reach:.1f}L{x + across:.1f} {y + down:.1f}L{x - across:.1f} {y + down:.1f}Z"/>'


def _diagonal(frame: Frame) -> str:
    low, high = max(frame.x_low, frame.y_low), min(frame.x_high, frame.y_high)
    return (
        f'<line class="line diagonal" x1="{frame.x(low):.1f}" y1="{frame.y(low):.1f}" '
        f'x2="{frame.x(high):.1f}" y2="{frame.y(high):.1f}"/>'
    )


def _sample(line: Line | Points, filled: bool) -> str:
    if filled:
        return _swatch(f'<g class="{line.style}"><path class="bars" d="M2 1 L16 1 L16 11 L2 11 Z"/></g>', 18)
    if isinstance(line, Points):
        return _swatch(f'<g class="dots {line.style}">{_dot(6, 6, 4.2, line.shape)}</g>', 12)
    mark = '<circle class="mark" cx="13" cy="6" r="3"/>' if line.marks else ""
    return _swatch(f'<g class="{line.style}"><path class="line" d="M1 6 L25 6"/>{mark}</g>', 26)


def _swatch(body: str, width: int) -> str:
    size = f'viewBox="0 0 {width} 12" width="{width}" height="12"'
    return f'<svg class="swatch" {size} aria-hidden="true">{body}</svg>'


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

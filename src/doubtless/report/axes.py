"""Axes of the charts: round tick values, their labels, and the frame that data is drawn into."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from doubtless.report.markup import text

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
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)


def make_frame(x_range: tuple[float, float], y_range: tuple[float, float]) -> Frame:
    """A frame for these ranges; its left margin has room for the longest label of the y axis."""
    x_range, y_range = open_range(*x_range), open_range(*y_range)
    longest = max(len(label) for _, label in labelled(*y_range))
    return Frame(*x_range, *y_range, left=10 + CHARACTER * longest + 6)


def labelled(low: float, high: float) -> list[tuple[float, str]]:
    values = ticks(low, high)
    step = values[1] - values[0] if len(values) > 1 else abs(values[0]) or 1.0
    return [(value, tick_label(value, step=step)) for value in values]


def draw_axes(frame: Frame, *, x_label: str, y_label: str) -> str:
    """Grid lines, tick labels and the names of both axes; the y axis is named above it, where it reads level."""
    parts = []
    for value, label in labelled(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{frame.left - 6:.1f}" y="{y + 3.8:.1f}" text-anchor="end">{label}</text>'
        )
    for value, label in labelled(frame.x_low, frame.x_high):
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

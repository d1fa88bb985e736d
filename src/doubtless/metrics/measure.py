"""What a metric gives: a number with its interval, or a line of a figure. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A number and its bootstrap 95 % interval (None where there is none)."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """A line of a figure. `weight` is what stands behind each point (a bin's share), where that varies."""

    x: list[float]
    y: list[float]
    weight: list[float] | None = None

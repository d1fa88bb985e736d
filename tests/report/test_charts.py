"""Charts: what is drawn lies where the data says, is valid SVG, and survives gaps, ties and single points."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.evaluation.result import Curve
from doubtless.report.charts import (
    Line,
    Points,
    histogram,
    legend,
    line_chart,
    make_frame,
    scatter,
    tick_label,
    ticks,
    whisker,
    widen,
)

AXES = {"x_label": "x", "y_label": "y", "description": "a chart"}
numbers = st.floats(-1e8, 1e8, allow_nan=False)


def chart(*lines: Line, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(lines, **AXES, **options))  # type: ignore[arg-type]


def line_paths(svg: ElementTree.Element) -> list[str]:
    return [path.attrib["d"] for path in svg.iter("path") if path.get("class") == "line"]


def corners(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


@given(numbers, st.floats(1e-6, 1e8))
def test_ticks_are_even_and_inside(low: float, width: float) -> None:
    high = low + width
    if not high > low:
        return
    found = ticks(low, high)
    slack = 1e-6 * width + 1e-9 * max(abs(low), abs(high))
    assert all(low - slack <= value <= high + slack for value in found)
    if width > 1e-6 * abs(low):  # otherwise twelve digits do not tell the ticks apart
        assert 2 <= len(found) <= 8
        np.testing.assert_allclose(np.diff(found), found[1] - found[0], atol=slack)


@given(st.floats(-1e3, 1e3), st.floats(0, 1e3))
def test_widened_range_holds_the_data_and_ends_on_ticks(low: float, width: float) -> None:
    start, end = widen(low, low + width)
    slack = 1e-8 * (abs(low) + width)
    assert start <= low + slack
    assert end >= low + width - slack
    assert end > start


@pytest.mark.parametrize(
    ("value", "step", "label"),
    [
        (0.2, 0.05, "0.20"),
        (-3.0, 1.0, "−3"),
        (12000.0, 2000.0, "12,000"),
        (2e-7, 1e-7, "2e−7"),
        (0.0, 1e-7, "0"),
    ],
)
def test_tick_labels_have_the_digits_their_step_needs(value: float, step: float, label: str) -> None:
    assert tick_label(value, step=step) == label


def test_line_goes_through_its_points() -> None:
    x, y = [0.0, 0.25, 1.0], [0.0, 0.8, 1.0]
    svg = chart(Line("a", Curve(x, y)), x_range=(0.0, 1.0), y_range=(0.0, 1.0))
    frame = make_frame((0.0, 1.0), (0.0, 1.0))
    expected = [(frame.x(a), frame.y(b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(corners(line_paths(svg)[0]), expected, atol=0.051)
    assert frame.y(1.0) < frame.y(0.0)  # up is more


def test_diagonal_runs_from_corner_to_corner_where_it_is_asked_for() -> None:
    line, unit = Line("a", Curve([0.0, 1.0], [0.0, 1.0])), (0.0, 1.0)
    assert "diagonal" not in line_chart([line], **AXES, x_range=unit, y_range=unit)
    svg = chart(line, x_range=unit, y_range=unit, diagonal=True)
    (found,) = [part.attrib for part in svg.iter("line") if part.get("class") == "line diagonal"]
    frame = make_frame(unit, unit)
    ends = [float(found[name]) for name in ("x1", "y1", "x2", "y2")]
    np.testing.assert_allclose(ends, [frame.left, frame.bottom, frame.right, frame.top], atol=0.051)


def test_missing_values_break_the_line() -> None:
    curve = Curve([0.0, 1.0, 2.0, 3.0, 4.0], [0.1, 0.2, None, math.nan, 0.5])  # type: ignore[list-item]
    (path,) = line_paths(chart(Line("a", curve)))
    assert path.count("M") == 1  # the lone last point is no line
    assert len(corners(path)) == 2
    (path,) = line_paths(chart(Line("a", Curve([*curve.x, 5.0], [*curve.y, 0.6]))))
    assert path.count("M") == 2


def test_long_curves_are_thinned_but_keep_both_ends() -> None:
    x = np.linspace(0, 1, 50_001)
    (path,) = line_paths(
        chart(Line("a", Curve(x.tolist(), (x**2).tolist())), x_range=(0.0, 1.0), y_range=(0.0, 1.0))
    )
    points = corners(path)
    frame = make_frame((0.0, 1.0), (0.0, 1.0))
    assert len(points) < 2000
    np.testing.assert_allclose(points[0], (frame.x(0), frame.y(0)), atol=0.051)
    np.testing.assert_allclose(points[-1], (frame.x(1), frame.y(1)), atol=0.051)


values = st.one_of(
    st.none(), st.floats(-1e150, 1e150), st.sampled_from([math.nan, math.inf, 1.0, 1.0 + 1e-15, 5e-324])
)


@given(st.lists(st.tuples(values, values), max_size=8))
def test_no_data_breaks_a_chart(points: list[tuple[float, float]]) -> None:
    curve = Curve([x for x, _ in points], [y for _, y in points])
    for svg in (line_chart([Line("a", curve, marks=True)], **AXES), line_chart([Line("a", curve)], **AXES)):
        ElementTree.fromstring(svg)
        assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', svg)


@pytest.mark.parametrize("x", [[1.0, 1.0 + 1e-15], [0.0, 5e-324], [3.0], [1e-12, 2e-12]])
def test_histograms_of_nearly_equal_values(x: list[float]) -> None:
    svg = histogram([Line("a", Curve(x, [1.0] * len(x)))], **AXES)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", svg)


def test_a_single_point_is_a_mark_and_an_empty_curve_is_nothing() -> None:
    one = chart(Line("a", Curve([1.0], [0.5])))
    assert len(list(one.iter("circle"))) == 1
    assert not line_paths(one)
    assert not list(chart(Line("a", Curve([], []))).iter("circle"))


def test_marks_grow_with_their_weight_and_vanish_without() -> None:
    curve = Curve([0.1, 0.5, 0.9], [0.1, 0.5, 0.9], [0.1, 0.9, 0.0])
    radii = [float(circle.attrib["r"]) for circle in chart(Line("a", curve, marks=True)).iter("circle")]
    assert len(radii) == 2
    assert radii[0] < radii[1]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any))
def test_histogram_steps_have_the_height_of_their_share(counts: list[int]) -> None:
    shares = [count / sum(counts) for count in counts]
    curve = Curve([place + 0.5 for place in range(len(shares))], shares)
    svg = ElementTree.fromstring(histogram([Line("a", curve)], **AXES))
    (path,) = [path.attrib["d"] for path in svg.iter("path") if path.get("class") == "bars"]
    points = corners(path)
    heights = np.array([points[0][1] - y for _, y in points[1:-1:2]])
    top = max(shares)
    np.testing.assert_allclose(heights / heights.max() * top, shares, atol=0.003 * top)  # drawn to 0.1
    assert points[0][1] == points[-1][1]  # closed on the axis


def test_map_keeps_proportions_and_draws_every_point() -> None:
    group = Points("a", [0.0, 10.0, 0.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0])
    svg = ElementTree.fromstring(scatter([group], description="a map"))
    places = {
        float(dot.attrib["r"]): (float(dot.attrib["cx"]), float(dot.attrib["cy"]))
        for dot in svg.iter("circle")
    }
    across = places[2.0][0] - places[1.0][0]
    up = places[1.0][1] - places[3.0][1]
    assert across / up == pytest.approx(10, rel=0.01)
    assert list(places) == [3.0, 2.0, 1.0]  # the large lie below


def test_shapes_have_equal_area_and_scatter_survives_one_spot() -> None:
    svg = ElementTree.fromstring(
        scatter([Points(str(k), [0.0], [0.0], [30.0], shape=k) for k in range(3)], description="")
    )
    (circle,), (square,) = list(svg.iter("circle")), list(svg.iter("rect"))
    numbers = [float(value) for value in re.findall(r"-?[\d.]+", next(svg.iter("path")).attrib["d"])]
    xs, ys = numbers[::2], numbers[1::2]
    triangle = abs((xs[1] - xs[0]) * (ys[2] - ys[0]) - (xs[2] - xs[0]) * (ys[1] - ys[0])) / 2
    area = math.pi * float(circle.attrib["r"]) ** 2
    assert float(square.attrib["width"]) ** 2 == pytest.approx(area, rel=0.01)
    assert triangle == pytest.approx(area, rel=0.01)


def test_names_are_escaped() -> None:
    evil = '</svg><script>alert("x")</script>'
    for html in (
        line_chart([Line(evil, Curve([0.0, 1.0], [0.0, 1.0]))], x_label=evil, y_label=evil, description=evil),
        legend([Line(evil, Curve([], []))], diagonal=evil),
        legend([Points(evil, [], [], [])]),
    ):
        assert "<script" not in html
        ElementTree.fromstring(html)


def test_whisker_shows_only_what_lies_between_zero_and_one() -> None:
    assert whisker(math.nan, low=None, high=None) == ""
    assert whisker(1.5, low=0.1, high=0.2) == ""
    assert "reach" not in whisker(0.5, low=None, high=None)
    svg = ElementTree.fromstring(whisker(0.5, low=0.25, high=0.75))
    spots = {
        line.get("class"): (float(line.attrib["x1"]), float(line.attrib["x2"])) for line in svg.iter("line")
    }
    start, end = spots["track"]
    assert spots["at"][0] == pytest.approx((start + end) / 2)
    assert spots["reach"] == pytest.approx((start + (end - start) / 4, start + 3 * (end - start) / 4))

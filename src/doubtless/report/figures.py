"""The figures of an evaluation from its curves: which axes, which lines, which sentence beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from doubtless.evaluation.result import Evaluation
from doubtless.metrics.measure import Curve
from doubtless.report.charts import Line, histogram, legend, line_chart, series, span, widen
from doubtless.report.page import figure


@dataclass(frozen=True)
class Kind:
    """How one kind of figure is drawn. `diagonal` names the reference line from corner to corner, if any."""

    title: str
    x_label: str
    y_label: str
    note: str
    diagonal: str = ""
    square: bool = False  # both axes from 0 to 1
    from_zero: bool = False  # the y axis starts at 0
    marks: bool = False
    settled: tuple[float, float] = (0.0, 1.0)  # where enough queries stand behind the curve to set its y axis
    lines: tuple[str, ...] = ()  # those of a run that are drawn beside the references; (): all
    oracle: str = "The oracle knows the errors."

    def reads(self, x: float) -> bool:
        """Whether enough queries stand behind the curve at x."""
        return self.settled[0] <= x <= self.settled[1]


# What figures show that would be crowded with every uncertainty; metrics.json has the others.
OWN_AND_DISTANCE = ("uncertainty", "doubt", "distance")

KINDS = {
    "reliability": Kind(
        "Reliability", "confidence", "share that is right",
        "Above the diagonal the model is too modest, below it too sure. A dot's area is its share of the queries.",
        diagonal="perfectly calibrated", square=True, marks=True,
    ),
    "roc": Kind(
        "Out-of-distribution images found", "known images raised", "out-of-distribution images found",
        "ROC curve of the uncertainty: the further to the upper left, the better the two are told apart.",
        diagonal="guessing", square=True,
    ),
    "sparsification": Kind(
        "Sparsification", "share of queries left out, most uncertain first", "recall@1 of the rest",
        "A useful uncertainty rises steeply: what it leaves out first is wrong.",
        settled=(0.0, 0.95),
    ),
    "risk_coverage": Kind(
        "Risk and coverage", "share of queries answered, most certain first", "share of wrong answers",
        "How many mistakes one accepts for answering this share of the queries: lower is better.",
        from_zero=True, settled=(0.05, 1.0),
    ),
    "oscr": Kind(
        "Right answers and answers to unknown labels", "unknown queries answered", "known queries answered rightly",
        "Open-set classification rate: queries of labels that were left out of the gallery should get no answer.",
        square=True,
    ),
    "open_risk": Kind(
        "Risk with unknown labels", "share of all queries answered, most certain first", "share of wrong answers",
        "Every answer to a query whose label is not in the gallery is wrong; the protocol says how many there are.",
        from_zero=True, settled=(0.05, 1.0),
    ),
    "histogram": Kind(
        "Known and out-of-distribution images", "uncertainty", "share of images",
        "The less the two overlap, the better the others are recognised. The last bar holds all beyond it.",
    ),
    "deciles": Kind(
        "Precision by tenth of uncertainty", "queries in tenths, most certain first", "mean MAP@R of the tenth",
        "A useful uncertainty falls from left to right: the tenth it is least sure of finds least.",
        from_zero=True, marks=True, lines=OWN_AND_DISTANCE, oracle="The oracle knows each query's precision.",
    ),
    "ranked": Kind(
        "Known and other images in one order", "all images in tenths, most certain first",
        "share of out-of-distribution images",
        "Both sets together, ordered by uncertainty: the other images belong at the end.",
        square=True, marks=True, lines=OWN_AND_DISTANCE, oracle="The oracle knows which is which.",
    ),
    "disturbed": Kind(
        "Worse pictures", "strength", "chance",
        "Chance that a disturbed picture is less certain than an undisturbed one: a half at strength 0, where all "
        "are. recall@1: how often its first hit is right.",
        square=True, marks=True, lines=(*OWN_AND_DISTANCE, "recall@1"),
    ),
    "crops": Kind(
        "Crops", "share of the picture that is kept", "share of pictures",
        "A crop shows less than the whole and must be less certain: how often it is, each picture against itself. "
        "recall@1: how often the crop's first hit is right.",
        square=True, marks=True, lines=(*OWN_AND_DISTANCE, "recall@1"),
    ),
}  # fmt: skip

# The line a figure is about comes first, then the free baselines, then the references.
STYLES = {"uncertainty": "s0", "distance": "s1", "ratio": "s2", "spread": "s3", "norm": "s4", "doubt": "s5"}
NOT_FREE = frozenset({"uncertainty", "doubt"})
REFERENCES = {"oracle": "oracle", "random": "random"}


def evaluation_figures(evaluation: Evaluation) -> list[str]:
    """Every figure the evaluation has curves for, in the order of `KINDS`; the others leave no trace."""
    return [
        draw_run(evaluation, name)
        for kind in KINDS
        for name in evaluation.curves
        if name.partition("/")[0] == kind and _drawable(evaluation.curves[name])
    ]


def draw_run(
    evaluation: Evaluation, name: str, *, title: str | None = None, note: str | None = None, of: str = ""
) -> str:
    """One run's figure; `of` names whose it is, where a page has several.

    For points the histograms are of the distance, and say so.
    """
    lines = run_lines(evaluation.curves[name], name)
    kind, _, part = name.partition("/")
    of_distance = kind == "histogram" and "uncertainty" not in evaluation.curves.get(
        f"roc/{part}", {"uncertainty"}
    )
    x_label = "distance to the first hit" if of_distance else KINDS[kind].x_label
    return draw(name, lines, title=title, note=note, x_label=x_label, of=of)


def draw(
    name: str,
    lines: Sequence[Line],
    *,
    title: str | None = None,
    note: str | None = None,
    x_label: str | None = None,
    of: str = "",
    of_all: bool = False,
) -> str:
    """One figure, named as in `Evaluation.curves` (``roc/digits``), with its legend.

    `of_all` leaves its lines out of the legend: one legend stands above the figures of all methods.
    """
    kind_name, _, part = name.partition("/")
    kind = KINDS[kind_name]
    title = title or kind.title + (f" · {part}" if part else "")
    note = kind.note if note is None else note
    if any(line.style == REFERENCES["oracle"] for line in lines):
        note += f" {kind.oracle}"
    x_label = x_label or kind.x_label
    description = f"{title}: {kind.y_label} against {x_label} for {', '.join(line.name for line in lines)}"
    if kind_name == "histogram":
        body = histogram(lines, x_label=x_label, y_label=kind.y_label, description=description)
        return figure(title, body + legend(lines, filled=True), note=note, of=of)
    body = line_chart(
        lines,
        x_label=x_label,
        y_label=kind.y_label,
        description=description,
        x_range=(0.0, 1.0),
        y_range=_y_range(kind, lines),
        diagonal=bool(kind.diagonal),
    )
    return figure(title, body + legend([] if of_all else lines, diagonal=kind.diagonal), note=note)


def run_lines(curves: Mapping[str, Curve], name: str) -> list[Line]:
    """The lines of one run's figure, each with the colour its name always has."""
    kind, _, part = name.partition("/")
    if kind == "histogram":
        names = {"id": "known", "ood": f"out-of-distribution: {part}"}
        return [
            Line(names.get(line, line), curve, series(place))
            for place, (line, curve) in enumerate(curves.items())
        ]
    if chosen := KINDS[kind].lines:
        curves = {line: curve for line, curve in curves.items() if line in chosen or line in REFERENCES}
    styled = [line for line in STYLES if line in curves]
    unstyled = [line for line in curves if line not in STYLES and line not in REFERENCES]
    # A figure whose lines have names of their own (reliability) starts with the first colour.
    styles = (
        STYLES
        | {line: series(place + (len(STYLES) if styled else 0)) for place, line in enumerate(unstyled)}
        | REFERENCES
    )
    order = [*styled, *unstyled, *(line for line in REFERENCES if line in curves)]
    marks = KINDS[kind].marks
    return [
        Line(line_name(line), curves[line], styles[line], marks=marks and line not in REFERENCES)
        for line in order
    ]


def line_name(line: str) -> str:
    """``distance`` is a free baseline wherever it stands beside the learned uncertainty."""
    return f"{line} (free)" if line in STYLES and line not in NOT_FREE else line


def training_figures(log: Sequence[Mapping[str, Any]]) -> list[str]:
    """Losses and validation measures over the epochs. Values may be numbers or their text, as CSV gives them."""
    columns = list(dict.fromkeys(key for row in log for key in row))
    losses = [column for column in columns if "loss" in column]
    validated = [column for column in columns if column.startswith("val") and column not in losses]
    figures = []
    for title, names, note in (
        ("Loss", losses, ""),
        ("Validation", validated, "On images held out from training; the test part selects nothing."),
    ):
        lines = [
            Line(name, curve, series(place), marks=len(curve.x) <= 40)
            for place, name in enumerate(names)
            if (curve := _column(log, name)).x
        ]
        if lines:
            description = f"{title} over the epochs: {', '.join(line.name for line in lines)}"
            chart = line_chart(lines, x_label="epoch", y_label=title.lower(), description=description)
            figures.append(figure(title, chart + legend(lines), note=note or _from_to(lines)))
    return figures


def _from_to(lines: Sequence[Line]) -> str:
    first, last = lines[0].curve.y[0], lines[0].curve.y[-1]
    return f"{lines[0].name} went from {first:.4g} to {last:.4g}."


def _column(log: Sequence[Mapping[str, Any]], name: str) -> Curve:
    points = [(_number(row.get("epoch", place)), _number(row.get(name))) for place, row in enumerate(log)]
    kept = [(x, y) for x, y in points if x is not None and y is not None]
    return Curve([x for x, _ in kept], [y for _, y in kept])


def _number(value: Any) -> float | None:
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        return None
    return parsed if math.isfinite(parsed) else None


def _y_range(kind: Kind, lines: Sequence[Line]) -> tuple[float, float] | None:
    if kind.square:
        return (0.0, 1.0)
    # Where only a handful of queries is left, the curve jumps: that part must not set the axis.
    low, high = span(
        y
        for line in lines
        for x, y in zip(line.curve.x, line.curve.y, strict=True)
        if x is None or kind.reads(x)
    )
    return widen(0.0 if kind.from_zero else low, high if high > 0 or not kind.from_zero else 0.1)


def _drawable(curves: Mapping[str, Curve]) -> bool:
    return any(curve.x for curve in curves.values())

"""The sections of a comparison: best of each key figure, the table, overlaid curves, folded details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from doubtless.metrics.catalogue import better, meaning
from doubtless.metrics.measure import Curve
from doubtless.report.charts import Line, legend, series
from doubtless.report.comparison import WITH_DOUBT, Cell, ComparisonTable, MethodResult
from doubtless.report.comparison_table import results_table
from doubtless.report.figures import KINDS, REFERENCES, draw, draw_run, line_name
from doubtless.report.page import Section, definitions, gallery, number, text
from doubtless.report.sections import MOST_TILES, TILES, certainty_section

MANY = 12  # methods with pictures: a page of more shows fewer pictures of each


def lead(rows: Sequence[MethodResult]) -> str:
    """What was compared, in one sentence."""
    seeds = sorted({len(row.evaluations) for row in rows})
    spread = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = "s" if seeds[-1] != 1 else ""
    without_doubt = [row for row in rows if not row.name.endswith(WITH_DOUBT)]
    methods = f"{len(without_doubt)} methods" if len(without_doubt) != 1 else "One method"
    doubted = (
        f" Rows “{WITH_DOUBT.strip()}” have the combined doubt for uncertainty."
        if len(without_doubt) < len(rows)
        else ""
    )
    counts = rows[0].evaluations[0].counts
    on = f", measured on {counts['queries']:,} queries" if "queries" in counts else ""
    return f"{methods}, {spread} seed{plural} each{on}.{doubted}"


def comparison_sections(
    rows: Sequence[MethodResult], compared: ComparisonTable, *, title: str, names: Sequence[str] | None
) -> list[Section]:
    """The parts of the page, those without content included; `page` leaves them out."""
    return [
        *numbers_sections(compared, title=title),
        Section("figures", "Figures", _overlays(rows)),
        Section("histograms", "Known and out-of-distribution images", _histograms(rows)),
        Section("examples", "Examples", _examples(rows, names)),
        Section("counts", "Counts", _counts(rows)),
    ]


def numbers_sections(compared: ComparisonTable, *, title: str) -> list[Section]:
    """The parts that are drawn from the table alone."""
    return [
        Section("best", "Best of each", _tiles(compared)),
        Section("results", "Results", results_table(compared, title=title)),
    ]


def _tiles(compared: ComparisonTable) -> str:
    """The best method of each key figure; where something free is better still, the tile says so."""
    tiles = []
    for metric in (name for wanted in TILES for name in compared.metrics if name.partition("/")[0] == wanted):
        cells = {method: row[metric] for method, row in compared.cells.items() if metric in row}
        best = [method for method, cell in cells.items() if cell.best]
        if best:
            mean = cells[best[0]].mean
            tied = f" and {len(best) - 1} more" if len(best) > 1 else ""
            tiles.append(
                f'<div class="tile"><b>{text(meaning(metric).title)}</b><strong>{number(mean)}</strong>'
                f"<span>{text(best[0])}{tied}</span>{_still_better(metric, mean, cells)}</div>"
            )
    return f'<div class="tiles">{"".join(tiles[:MOST_TILES])}</div>' if tiles else ""


def _still_better(metric: str, mean: float, cells: Mapping[str, Cell]) -> str:
    name, value = None, mean
    for cell in cells.values():
        if cell.free is not None and better(metric, cell.free, value):
            name, value = cell.free_name, cell.free
    return "" if name is None else f'<span class="warning">free {text(name)}: {number(value)}</span>'


def _overlays(rows: Sequence[MethodResult]) -> str:
    """Calibration, ROC, sparsification, risk-coverage of all methods below one legend; each has its own look."""
    drawn: list[str] = []
    named: dict[str, Line] = {}
    drawing = [row for row in rows if row.evaluations[0].curves]  # the same style in every figure
    for kind in KINDS:
        for name in _figure_names(rows, kind) if kind != "histogram" else []:
            lines = [
                line
                for place, row in enumerate(drawing)
                if (line := _method_line(row, name, place)) is not None
            ]
            if lines:
                drawn.append(draw(name, lines, of_all=True))
            for line in lines:  # a name that says which free score is drawn is the longer one
                named[line.of] = max(named.get(line.of, line), line, key=lambda one: len(one.name))
    shared = [named[row.name] for row in drawing if row.name in named]
    return legend(shared, kind="legend shared") + gallery(drawn) if drawn else ""


def _figure_names(rows: Sequence[MethodResult], kind: str) -> list[str]:
    names = (name for row in rows for name in row.evaluations[0].curves if name.partition("/")[0] == kind)
    return list(dict.fromkeys(names))


def _method_line(row: MethodResult, figure: str, place: int) -> Line | None:
    """The method's own uncertainty; for points the free distance, said in the legend."""
    curves: Mapping[str, Curve] = row.evaluations[0].curves.get(figure, {})
    drawable = [line for line in curves if line not in REFERENCES and curves[line].x]
    chosen = next((line for line in ("uncertainty", "distance", *drawable) if line in drawable), None)
    if chosen is None:
        return None
    name = row.name if chosen != "distance" else f"{row.name}: {line_name(chosen)}"
    marks = KINDS[figure.partition("/")[0]].marks
    return Line(name, curves[chosen], series(place), marks=marks, of=row.name)


def _histograms(rows: Sequence[MethodResult]) -> str:
    """Small multiples, one histogram for each method, folded by OOD set."""
    parts = []
    for name in _figure_names(rows, "histogram"):
        ood, drawn = name.partition("/")[2], []
        for row in rows:
            curves = row.evaluations[0].curves.get(name, {})
            if any(curve.x for curve in curves.values()):
                one = draw_run(row.evaluations[0], name, title=f"{row.name} · {ood}", note="", of=row.name)
                drawn.append(one)
        if drawn:
            parts.append(f"<details><summary>{text(ood)}</summary>{gallery(drawn)}</details>")
    return _folds(parts)


def _examples(rows: Sequence[MethodResult], names: Sequence[str] | None) -> str:
    """Most and least certain queries of each method, folded."""
    parts: list[str] = []
    count = 12 if sum(row.images is not None for row in rows) <= MANY else 4
    for row in rows:
        body = certainty_section(row.evaluations[0], images=row.images, names=names, count=count)
        if body:
            parts.append(
                f'<details data-of="{text(row.name)}"><summary>{text(row.name)}</summary>{body}</details>'
            )
    return _folds(parts)


def _folds(parts: Sequence[str]) -> str:
    return f'<div class="folds">{"".join(parts)}</div>' if parts else ""


def _counts(rows: Sequence[MethodResult]) -> str:
    counts = rows[0].evaluations[0].counts
    return definitions(
        [(text(name.replace("_", " ").replace("/", " · ")), f"{count:,}") for name, count in counts.items()]
    )

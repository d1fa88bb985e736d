"""The sections of a comparison: best of each key figure, tables with footnotes, overlaid curves, examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from doubtless.metrics.catalogue import better, groups, in_order, meaning
from doubtless.metrics.measure import Curve
from doubtless.report.charts import Line, series
from doubtless.report.comparison import WITH_DOUBT, Cell, ComparisonTable, MethodResult
from doubtless.report.figures import KINDS, REFERENCES, draw, draw_run, line_name
from doubtless.report.page import Column, Section, definitions, gallery, interval, number, table, text
from doubtless.report.sections import MOST_TILES, TILES, certainty_section

SIGNIFICANT = "†"
MANY = 12  # methods with pictures: a page of more shows fewer pictures of each


class Footnotes:
    """Letters for sentences; the same sentence keeps its letter."""

    def __init__(self) -> None:
        self._sentences: list[str] = []

    def mark(self, sentence: str) -> str:
        """The letter of a sentence (HTML), a new one where it is new."""
        if sentence not in self._sentences:
            self._sentences.append(sentence)
        return f"<sup>{self._letter(self._sentences.index(sentence))}</sup>"

    def listed(self) -> str:
        """All sentences with their letters (HTML)."""
        items = "".join(
            f"<li><sup>{self._letter(place)}</sup> {text(sentence)}</li>"
            for place, sentence in enumerate(self._sentences)
        )
        return f'<ul class="footnotes">{items}</ul>' if items else ""

    @staticmethod
    def _letter(place: int) -> str:
        return chr(ord("a") + place % 26) * (1 + place // 26)


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
    rows: Sequence[MethodResult], compared: ComparisonTable, *, names: Sequence[str] | None
) -> list[Section]:
    """The parts of the page, those without content included; `page` leaves them out."""
    return [
        Section("best", "Best of each", _tiles(compared)),
        Section("results", "Results", _tables(compared)),
        Section("figures", "Figures", gallery(_overlays(rows))),
        Section("histograms", "Known and out-of-distribution images", gallery(_histograms(rows))),
        Section("examples", "Examples", _examples(rows, names)),
        Section("counts", "Counts", _counts(rows)),
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


def _tables(compared: ComparisonTable) -> str:
    """One table for each group of metrics, so that each fits a screen; marks are explained below them."""
    footnotes, parts = Footnotes(), []
    for group in groups():
        metrics = in_order(compared.metrics, group)
        if not metrics:
            continue
        columns = [Column("method"), *(Column(_heading(metric), numeric=True) for metric in metrics)]
        body = [
            [text(method), *(_cell(row.get(metric), metric, footnotes) for metric in metrics)]
            for method, row in compared.cells.items()
            if any(metric in row for metric in metrics)  # a doubt retrieves nothing
        ]
        parts.append(f"<h3>{text(group)}</h3>{table(columns, body, label=group)}")
    parts.append(
        '<p class="note">Mean ± standard deviation over seeds; ● marks the best mean, # is the rank. '
        "In small print: the best free baseline of the same embedding, a paper's number."
        f"{_explained(compared)}</p>"
    )
    parts.append(footnotes.listed())
    if compared.notes:
        parts.append(f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in compared.notes)}</ul>')
    return "".join(parts)


def _explained(compared: ComparisonTable) -> str:
    """What the mark of significance says, where it stands somewhere."""
    if not any(cell.significant for row in compared.cells.values() for cell in row.values()):
        return ""
    return f" {SIGNIFICANT}: more than chance; what was compared is shown under the pointer and in the JSON."


def _heading(metric: str) -> str:
    words = meaning(metric)
    direction = f"<small>{words.direction}</small>" if words.sentence else ""
    return f"{text(words.title)}{direction}"


def _cell(cell: Cell | None, metric: str, footnotes: Footnotes) -> str:
    """The number, then in small print: rank and interval, the free baseline, the published number."""
    if cell is None:
        return number(None)
    shown = f"<b>{number(cell.mean)}</b>" if cell.best else number(cell.mean)
    spread = f" ± {number(cell.std)}" if cell.std is not None else ""
    dot = '<span class="best" title="best of its column">●</span> ' if cell.best else ""
    significant = f'<sup title="{text(cell.significant)}">{SIGNIFICANT}</sup>' if cell.significant else ""
    rank = f"#{cell.rank}" if cell.rank is not None else ""
    small = [" · ".join(part for part in (rank, interval(cell.low, cell.high)) if part)]
    if cell.free is not None:
        small.append(_free(cell, cell.free, metric, footnotes))
    if cell.published is not None:
        small.append(_published(cell, cell.published, footnotes))
    return f"{dot}{shown}{spread}{significant}" + "".join(f"<small>{line}</small>" for line in small if line)


def _free(cell: Cell, free: float, metric: str, footnotes: Footnotes) -> str:
    """The best free baseline; a learned uncertainty that does not beat it says so."""
    shown = f"free {number(free)} ({text(cell.free_name)})"
    if math.isfinite(cell.mean) and not better(metric, cell.mean, free):
        return f'<span class="warning">{shown}{footnotes.mark(_NOT_BEATEN)}</span>'
    return shown


_NOT_BEATEN = "The learned uncertainty does not beat this free baseline of the same embedding."


def _published(cell: Cell, value: float, footnotes: Footnotes) -> str:
    if cell.not_comparable:
        mark = footnotes.mark(f"Not comparable: {cell.not_comparable}")
        return f'paper {number(value)} <span class="warning">not comparable{mark}</span>'
    difference = cell.mean - value
    sign = "+" if difference >= 0 else ""
    return f"paper {number(value)} ({sign}{number(difference)})"


def _overlays(rows: Sequence[MethodResult]) -> list[str]:
    """Calibration, ROC, sparsification, risk-coverage of all methods, each with its own colour and dash."""
    drawn = []
    drawing = [row for row in rows if row.evaluations[0].curves]  # the same style in every figure
    for kind in KINDS:
        for name in _figure_names(rows, kind) if kind != "histogram" else []:
            lines = [
                line
                for place, row in enumerate(drawing)
                if (line := _method_line(row, name, place)) is not None
            ]
            if lines:
                drawn.append(draw(name, lines))
    return drawn


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
    return Line(name, curves[chosen], series(place), marks=KINDS[figure.partition("/")[0]].marks)


def _histograms(rows: Sequence[MethodResult]) -> list[str]:
    """Small multiples: one histogram for each OOD set and method."""
    drawn = []
    for name in _figure_names(rows, "histogram"):
        for row in rows:
            curves = row.evaluations[0].curves.get(name, {})
            if any(curve.x for curve in curves.values()):
                title = f"{row.name} · {name.partition('/')[2]}"
                drawn.append(draw_run(row.evaluations[0], name, title=title, note=""))
    return drawn


def _examples(rows: Sequence[MethodResult], names: Sequence[str] | None) -> str:
    """Most and least certain queries of each method, folded: the first is open."""
    parts: list[str] = []
    count = 12 if sum(row.images is not None for row in rows) <= MANY else 4
    for row in rows:
        body = certainty_section(row.evaluations[0], images=row.images, names=names, count=count)
        if body:
            state = "" if parts else " open"
            parts.append(f"<details{state}><summary>{text(row.name)}</summary>{body}</details>")
    return "".join(parts)


def _counts(rows: Sequence[MethodResult]) -> str:
    counts = rows[0].evaluations[0].counts
    return definitions(
        [(text(name.replace("_", " ").replace("/", " · ")), f"{count:,}") for name, count in counts.items()]
    )

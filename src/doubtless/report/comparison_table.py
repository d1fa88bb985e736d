"""The table of a comparison: one for all metrics, and what a reader sorts, filters, chooses and downloads it with.

The whole table is in the file, so that it reads without its script (comparison.js), which only hides, orders and
writes out what stands here. Words are here, looks in comparison.css.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from doubtless.metrics.catalogue import better, groups, in_order, meaning
from doubtless.report.comparison import Cell, ComparisonTable
from doubtless.report.page import interval, number, text
from doubtless.report.sections import TILES

SIGNIFICANT = "†"
MANY_COLUMNS = 10  # a wider table begins with its key figures; the others are one click away


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


def results_table(compared: ComparisonTable, *, title: str) -> str:
    """Controls, the table, and what its marks mean (HTML). The title is the caption of what is downloaded."""
    grouped = [(group, names) for group in groups() if (names := in_order(compared.metrics, group))]
    metrics = [name for _, names in grouped for name in names]
    if not metrics:
        return ""
    footnotes = Footnotes()
    rows = "".join(
        f'<tr data-method="{text(method)}"><th scope="row">{text(method)}</th>'
        f"{''.join(_cell(row.get(metric), metric, footnotes) for metric in metrics)}</tr>"
        for method, row in compared.cells.items()
    )
    notes = "".join(f"<li>{text(note)}</li>" for note in compared.notes)
    return (
        f"{_controls(list(compared.cells), grouped)}"
        '<div class="scroll results" role="region" tabindex="0" aria-label="Results of all methods">'
        f'<table id="comparison" data-title="{text(title)}"><thead>{_head(grouped)}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<p class="note">{_explained(compared)}</p>{footnotes.listed()}'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _head(grouped: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Two rows: groups of metrics, and the metrics."""
    over = "".join(
        f'<th scope="colgroup" colspan="{len(names)}">{text(group)}</th>' for group, names in grouped
    )
    key = _key_figures([name for _, names in grouped for name in names])
    below = "".join(_heading(name, group, key=name in key) for group, names in grouped for name in names)
    return (
        f'<tr class="groups"><td></td>{over}</tr>'
        f'<tr><th scope="col" data-heading="method"><span class="heading">method</span></th>{below}</tr>'
    )


def _heading(metric: str, group: str, *, key: bool) -> str:
    """A heading says what the script has to know of its column: group, direction, whether it is shown at first."""
    words = meaning(metric)
    direction = f"<small>{words.direction}</small>" if words.sentence else ""
    higher = {True: "yes", False: "no", None: ""}[words.higher]
    return (
        f'<th scope="col" class="number" data-metric="{text(metric)}" data-heading="{text(words.title)}" '
        f'data-group="{text(group)}" data-higher="{higher}"{" data-key" if key else ""}>'
        f'<span class="heading">{text(words.title)}</span>{direction}</th>'
    )


def _key_figures(metrics: Sequence[str]) -> set[str]:
    """What a wide table begins with: the figures of the tiles and the first of each group; else everything."""
    if len(metrics) <= MANY_COLUMNS:
        return set(metrics)
    first_of_group = {meaning(name).group: name for name in reversed(metrics)}
    return {name for name in metrics if name.partition("/")[0] in TILES} | set(first_of_group.values())


def _controls(methods: Sequence[str], grouped: Sequence[tuple[str, Sequence[str]]]) -> str:
    """What the script makes work, and shows: without it nothing stands here that does nothing."""
    columns = "".join(
        f'<fieldset><legend><label><input type="checkbox" data-shows-group="{text(group)}"> {text(group)}</label>'
        f"</legend>{''.join(_choice(meaning(name).title, 'column', name) for name in names)}</fieldset>"
        for group, names in grouped
    )
    rows = "".join(_choice(method, "method", method) for method in methods)
    return (
        f'<form class="controls" hidden>{_BAR}<details><summary>Methods</summary><div class="all">'
        '<button type="button" data-methods="all">all</button>'
        f'<button type="button" data-methods="none">none</button></div><div class="choices">{rows}</div></details>'
        '<details><summary>Columns</summary><div class="all">'
        '<button type="button" data-columns="key">key figures</button>'
        f'<button type="button" data-columns="all">all</button></div><div class="groups">{columns}</div></details>'
        "</form>"
    )


_BAR = (
    '<div class="bar"><label class="search"><span>Filter</span> <input type="search" placeholder="lam pfe -doubt" '
    'autocomplete="off" spellcheck="false" aria-describedby="filter-hint"></label>'
    '<label><input type="checkbox" data-small-print> small print</label>'
    '<span class="downloads"><button type="button" data-download="csv">CSV</button>'
    '<button type="button" data-download="tex">LaTeX</button></span><output role="status"></output></div>'
    '<p id="filter-hint" class="note">A method is shown whose name has one of the words, and none that has a minus '
    "before it. A heading sorts. Downloads hold what is shown; figures and examples follow the methods.</p>"
)


def _choice(title: str, kind: str, name: str) -> str:
    return f'<label><input type="checkbox" data-shows-{kind}="{text(name)}" checked> {text(title)}</label>'


def _explained(compared: ComparisonTable) -> str:
    """What the marks say, those that stand somewhere."""
    cells = [cell for row in compared.cells.values() for cell in row.values()]
    sentences = ["Mean ± standard deviation over seeds; ● marks the best mean of the methods shown."]
    if any(not math.isfinite(cell.mean) and cell.free is not None for cell in cells):
        sentences.append("In italics: the best free signal, where a method learns no uncertainty.")
    if any(cell.significant for cell in cells):
        sentences.append(
            f"{SIGNIFICANT}: more than chance; what was compared is shown under the pointer and in the JSON."
        )
    sentences.append(
        "In small print: rank (#) among all methods, best free signal of the same embedding, be it of the picture "
        "or of the gallery, a paper's number."
    )
    return " ".join(sentences)


def _cell(cell: Cell | None, metric: str, footnotes: Footnotes) -> str:
    """The number, then in small print: rank and interval, the free baseline, the published number."""
    if cell is None:
        return '<td class="number"></td>'
    shown = f'<span class="mean">{number(cell.mean)}</span>'
    if not math.isfinite(cell.mean) and cell.free is not None:
        shown = f'<i class="mean" title="free {text(cell.free_name)}">{number(cell.free)}</i>'
    spread = f'<span class="spread"> ± {number(cell.std)}</span>' if cell.std is not None else ""
    significant = f'<sup title="{text(cell.significant)}">{SIGNIFICANT}</sup>' if cell.significant else ""
    beaten = f'<span class="warning">{footnotes.mark(_NOT_BEATEN)}</span>' if _is_beaten(cell, metric) else ""
    rank = f"#{cell.rank}" if cell.rank is not None else ""
    small = [" · ".join(part for part in (rank, interval(cell.low, cell.high)) if part)]
    if cell.free is not None:
        free = f"free {number(cell.free)} ({text(cell.free_name)})"
        small.append(f'<span class="warning">{free}</span>' if beaten else free)
    if cell.published is not None:
        small.append(_published(cell, cell.published, footnotes))
    lines = "".join(f"<small>{line}</small>" for line in small if line)
    return (
        f'<td class="number{" first" if cell.best else ""}">{shown}{spread}{significant}{beaten}{lines}</td>'
    )


def _is_beaten(cell: Cell, metric: str) -> bool:
    """Whether something free does as well as what was learned."""
    return cell.free is not None and math.isfinite(cell.mean) and not better(metric, cell.mean, cell.free)


_NOT_BEATEN = (
    "The learned uncertainty does not beat the best free signal of the same embedding (small print)."
)


def _published(cell: Cell, value: float, footnotes: Footnotes) -> str:
    if cell.not_comparable:
        mark = footnotes.mark(f"Not comparable: {cell.not_comparable}")
        return f'paper {number(value)} <span class="warning">not comparable{mark}</span>'
    difference = cell.mean - value
    sign = "+" if difference >= 0 else ""
    return f"paper {number(value)} ({sign}{number(difference)})"

"""The report of one run: everything an `Evaluation` holds, as one HTML file that needs nothing else.

Its sections are key figures, tables, pictures and the protocol: data in, HTML out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from doubtless.evaluation.result import Evaluation
from doubtless.files import write_text
from doubtless.metrics.catalogue import better, groups, in_order, meaning
from doubtless.metrics.measure import Measure
from doubtless.report.charts import whisker
from doubtless.report.figures import evaluation_figures, training_figures
from doubtless.report.images import EmbeddingMap, ImageLookup, draw_map, grid, most_and_least_certain
from doubtless.report.page import (
    Column,
    Section,
    definitions,
    gallery,
    interval,
    json_block,
    number,
    page,
    provenance,
    table,
    text,
)
from doubtless.report.timing import timing_section
from doubtless.report.together import Strip, order_body, strips_body

if TYPE_CHECKING:
    from doubtless.report.together import Pictures

TILES = ("recall@1", "map@r", "error_auroc", "ood_auroc", "ausc", "ece")
MOST_TILES = 6
NO_UNCERTAINTY = (
    "This embedding is made of points: it has no learned uncertainty, so only free scores are shown."
)


def lead_sentence(evaluation: Evaluation) -> str:
    """The result in one sentence."""
    counts, kind = evaluation.counts, evaluation.protocol.get("kind")
    parts = []
    if "recall@1" in evaluation.measures:
        parts.append(f"The first hit is right for {100 * evaluation['recall@1']:.1f} % of")
    parts.append(f"{counts['queries']:,} queries" if "queries" in counts else "the queries")
    if "gallery" in counts:
        parts.append(f"against a gallery of {counts['gallery']:,} images")
    if "classes" in counts:
        parts.append(f"of {counts['classes']:,} classes")
    sentence = " ".join(parts) + (f" ({kind})." if kind else ".")
    return sentence[0].upper() + sentence[1:]


def key_figures(evaluation: Evaluation) -> str:
    """Tiles of the numbers one looks at first; for points, error and OOD show the free baseline distance."""
    tiles = []
    free = evaluation.baselines.get("distance", {}) if not has_uncertainty(evaluation) else {}
    for wanted in TILES:
        for name, measure in (evaluation.measures | free).items():
            if name == wanted or name.startswith(f"{wanted}/"):
                tiles.append(_tile(name, measure, note="free baseline: distance" if name in free else ""))
    return f'<div class="tiles">{"".join(tiles[:MOST_TILES])}</div>' if tiles else ""


def has_uncertainty(evaluation: Evaluation) -> bool:
    """Whether the embedding itself says how sure it is: then its errors were detected by it."""
    if evaluation.queries is not None:
        return evaluation.queries.uncertainty is not None
    return any(name in evaluation.measures for name in ("error_auroc", "ausc"))


def measure_tables(evaluation: Evaluation) -> str:
    """All measures, one table per group, each with its interval, its direction and what it means."""
    parts = []
    for group in groups():
        rows = [
            _measure_row(name, evaluation.measures[name]) for name in in_order(evaluation.measures, group)
        ]
        if rows:
            parts.append(f"<h3>{text(group)}</h3>{table(_MEASURE_COLUMNS, rows, label=group)}")
    if any(measure.low is not None for measure in evaluation.measures.values()):
        parts.append('<p class="note">Intervals are bootstrap 95 % intervals over the queries.</p>')
    return "".join(parts)


def baseline_section(evaluation: Evaluation) -> str:
    """The learned uncertainty beside those that cost nothing, and in words whether it beats them."""
    if not evaluation.baselines:
        return ""
    rows_of = (*evaluation.baselines.values(), *evaluation.doubts.values())
    metrics = list(dict.fromkeys(metric for row in rows_of for metric in row))
    learned = {metric: evaluation.measures[metric] for metric in metrics if metric in evaluation.measures}
    columns = [Column("score"), *(Column(_heading(metric), numeric=True) for metric in metrics)]
    sources = {
        **({"learned uncertainty": learned} if learned else {}),
        **evaluation.doubts,
        **evaluation.baselines,
    }
    best = {metric: _best(metric, sources) for metric in metrics}
    rows = [
        [
            _source(name, bold=row is learned or name == DOUBT),
            *(_baseline_cell(row.get(metric), best=name == best[metric]) for metric in metrics),
        ]
        for name, row in sources.items()
    ]
    verdict = _verdict(learned, evaluation.baselines) if learned else NO_UNCERTAINTY
    shown = table(columns, rows, label="Free baselines")
    return f'<p class="verdict-line">{text(verdict)}</p>{shown}{_BASELINES_NOTE}'


def certainty_section(
    evaluation: Evaluation, *, images: ImageLookup | None, names: Sequence[str] | None, count: int = 12
) -> str:
    """The most and least certain queries beside their first hits, if there are images and something to order by."""
    if evaluation.queries is None or images is None:
        return ""
    extremes = most_and_least_certain(evaluation.queries, count=count)
    if extremes is None:
        return ""
    source, most, least = extremes
    parts = [
        f'<p class="note">Each picture pair is a query and its nearest neighbour, ordered by {text(source)}. '
        "A green frame and ✓: the same class. A red frame and ✗: another.</p>"
    ]
    for title, rows in (("Most certain", most), ("Least certain", least)):
        if rows:
            wrong = sum(not bool(evaluation.queries.correct[row]) for row in rows)
            parts.append(f"<h3>{title} <small>{wrong} of {len(rows)} wrong</small></h3>")
            parts.append(grid(evaluation.queries, rows, images=images, names=names))
    return "".join(parts)


def protocol_section(evaluation: Evaluation) -> str:
    """Counts, how it was measured, and the notes of the evaluation."""
    counted = [(text(_spaced(name)), f"{count:,}") for name, count in evaluation.counts.items()]
    notes = evaluation.protocol.get("notes", [])
    how = [
        (text(_spaced(name)), text(_said(value)))
        for name, value in evaluation.protocol.items()
        if name != "notes" and value is not None
    ]
    parts = [definitions(counted + how)]
    if notes:
        parts.append(f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>')
    return "".join(parts)


def _tile(name: str, measure: Measure, *, note: str) -> str:
    words = meaning(name)
    reach = interval(measure.low, measure.high)
    details = "".join(f"<span>{text(line)}</span>" for line in (reach and f"95 %: {reach}", note) if line)
    return (
        f'<div class="tile"><b>{text(words.title)}</b><strong>{number(measure.value)}</strong>{details}</div>'
    )


_MEASURE_COLUMNS = (
    Column("measure", kind="measure"),
    Column("value", numeric=True, kind="value"),
    Column("95 % interval", numeric=True, kind="reach-text"),
    Column("0 … 1", kind="picture"),
    Column("better", kind="better"),
    Column("what it means", kind="meaning"),
)


def _measure_row(name: str, measure: Measure) -> list[str]:
    words = meaning(name)
    code = f"<code>{text(name)}</code>" if words.title != name else ""
    return [
        f"{text(words.title)}{code}",
        number(measure.value),
        interval(measure.low, measure.high),
        whisker(measure.value, low=measure.low, high=measure.high),
        words.direction if words.sentence else "",
        text(words.sentence),
    ]


DOUBT = "doubt"  # the combined one
_SOURCES = {
    DOUBT: "one doubt from several sources, fitted on the validation part",
    "disagreement": "share of the first ten hits that disagree with the first",
    "novelty": "distance to the nearest known feature before the head",
    "distance": "distance to the first hit",
    "ratio": "ratio of the first two distances",
    "spread": "spread of the first ten scores",
    "norm": "norm of the embedding",
}
_BASELINES_NOTE = '<p class="note">● marks the best of each column. Free scores need no training.</p>'


def _source(name: str, *, bold: bool) -> str:
    shown = f"<b>{text(name)}</b>" if bold else text(name)
    return f"{shown}<small>{text(_SOURCES[name])}</small>" if name in _SOURCES else shown


def _baseline_cell(measure: Measure | None, *, best: bool) -> str:
    if measure is None:
        return number(None)
    reach = interval(measure.low, measure.high)
    mark = '<span class="best" title="best of its column">●</span> ' if best else ""
    shown = f"<b>{number(measure.value)}</b>" if best else number(measure.value)
    return f"{mark}{shown}" + (f"<small>{reach}</small>" if reach else "")


def _best(metric: str, sources: Mapping[str, Mapping[str, Measure]]) -> str | None:
    """The source with the best finite value of this metric; on a tie the first."""
    best: str | None = None
    for name, row in sources.items():
        value = row[metric].value if metric in row else float("nan")
        if not math.isnan(value) and (best is None or better(metric, value, sources[best][metric].value)):
            best = name
    return best


def _verdict(learned: Mapping[str, Measure], baselines: Mapping[str, Mapping[str, Measure]]) -> str:
    """Says where the learned uncertainty does not beat what costs nothing."""
    lost, compared = [], 0
    for metric, measure in learned.items():
        rivals = {name: row for name, row in baselines.items() if metric in row}
        best = _best(metric, rivals)
        if best is None or math.isnan(measure.value):
            continue
        compared += 1
        if not better(metric, measure.value, rivals[best][metric].value):
            lost.append(meaning(metric).title)
    if not lost:
        return "The learned uncertainty beats every free baseline in every column."
    where = f"{len(lost)} of {compared} columns: {', '.join(lost)}"
    return f"The learned uncertainty does not beat the best free baseline in {where}."


def _heading(metric: str) -> str:
    words = meaning(metric)
    return f"{text(words.title)}<small>{words.direction}</small>"


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace("/", " · ")


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_said(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_said(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int and abs(value) >= 10_000 else str(value)


NO_VERSIONS: Mapping[str, str] = MappingProxyType({})
NO_TIMES: Mapping[str, float] = MappingProxyType({})
NO_STRANGERS: Mapping[str, Pictures] = MappingProxyType({})


def write_report(
    path: str | Path,
    *,
    title: str,
    evaluation: Evaluation,
    config: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]] = (),
    versions: Mapping[str, str] = NO_VERSIONS,
    command: str | None = None,
    images: ImageLookup | None = None,
    embedding_map: EmbeddingMap | None = None,
    label_names: Sequence[str] | None = None,
    of_method: Sequence[Section] = (),
    timing: Mapping[str, float] = NO_TIMES,
    strangers: Mapping[str, Pictures] = NO_STRANGERS,
    strips: Sequence[Strip] = (),
) -> None:
    """Writes the report of one run: tables, figures and pictures in one HTML file, the numbers as JSON inside.

    log            one mapping per epoch: epoch, train_loss, val_recall@1, …
    images         where the pictures of queries and gallery come from; without it there is no grid of examples
    embedding_map  from `doubtless.report.embedding_map`; without it there is no map
    label_names    names of the labels 0, 1, …
    of_method      what only this method has to show (`doubtless.report.method_figures`)
    timing         phase → seconds it took
    strangers      out-of-distribution set → where its pictures come from, by position
    strips         a picture made worse step by step

    The same input gives the same file, byte for byte. The numbers are in the element ``doubtless-metrics`` in
    the form of `Evaluation.to_json`.

    >>> from tempfile import TemporaryDirectory
    >>> evaluation = Evaluation({"recall@1": Measure(0.9)})
    >>> with TemporaryDirectory() as folder:
    ...     write_report(Path(folder, "report.html"), title="Fashion", evaluation=evaluation, config={"seed": 0})
    ...     "Recall@1" in Path(folder, "report.html").read_text()
    True
    """
    drawn_map = [draw_map(embedding_map, names=label_names)] if embedding_map is not None else []
    sections = [
        Section("key-figures", "Key figures", key_figures(evaluation)),
        Section("figures", "Figures", gallery(evaluation_figures(evaluation))),
        Section("examples", "Examples", certainty_section(evaluation, images=images, names=label_names)),
        Section(
            "order",
            "Known and other images in one order",
            order_body(evaluation.orders, strangers, images=images, names=label_names),
        ),
        Section("disturbed", "Pictures made worse", strips_body(strips)),
        Section("measures", "All measures", measure_tables(evaluation)),
        Section("baselines", "Learned, combined and free uncertainties", baseline_section(evaluation)),
        Section("map", "Map", "".join(drawn_map)),
        *of_method,
        Section("training", "Training", gallery(training_figures(log))),
        Section("protocol", "Protocol", protocol_section(evaluation)),
        Section("timing", "Where the time went", timing_section(timing)),
        Section("provenance", "Made with", provenance(config=config, versions=versions, command=command)),
    ]
    data = json_block(evaluation.to_json(), identifier="doubtless-metrics")
    write_text(path, page(title=title, lead=lead_sentence(evaluation), sections=sections, data=data))

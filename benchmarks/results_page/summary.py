"""One table over all data sets: the best of each track, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results_page.measured import OWN, TRACKS, Measured
from benchmarks.results_page.pages import Page
from benchmarks.results_page.tables import in_track
from benchmarks.results_page.writing import cell, table


def summary(found: Sequence[tuple[Page, Measured]]) -> str:
    """The best row per measure and track, over all rows of the main table."""
    heading = ["", *(f"[{page.title}](results/{page.name}.md)" for page, _ in found)]
    rows = [
        ["recall@1", *(_best(measured, "recall@1", [OWN]) for _, measured in found)],
        ["ECE as is", *(_best(measured, "ece", [OWN]) for _, measured in found)],
        ["ECE tuned", *(_best(measured, "ece_tuned", [OWN]) for _, measured in found)],
    ]
    for title, metric in (("error AUROC", "error_auroc"), ("AUSC", "ausc")):
        for track in TRACKS:
            cells = (_best(measured, metric, in_track(measured.sources, track)) for _, measured in found)
            rows.append([f"{title}, {track}", *cells])
    for track in TRACKS:
        cells = (_ood(measured, track) for _, measured in found)
        rows.append([f"OOD AUROC, {track}", *cells])
    return table(heading, [row for row in rows if any(row[1:])])


def _best(measured: Measured, metric: str, sources: list[str]) -> str:
    """The value and whose it is."""
    best = sorted(measured.best(metric, sources))
    if not best:
        return ""
    method, source = best[0]
    more = f" and {len(best) - 1} more" if len(best) > 1 else ""
    by = "" if source == OWN else f", {source}"
    return f"{cell(measured.value(method, source, metric))} `{method}`{by}{more}"


def _ood(measured: Measured, track: str) -> str:
    """Against the set nothing was chosen on, where there is one, else the first."""
    name = measured.result.get("untouched_ood") or measured.ood[0]
    shown = _best(measured, f"ood_auroc/{name}", in_track(measured.sources, track))
    return f"{name}: {shown}" if shown else ""

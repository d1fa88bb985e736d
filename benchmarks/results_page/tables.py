"""The tables of one suite: retrieval, calibration, and one per measure of doubt with every source beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.results_page.measured import OWN, PICTURE, TRACKS, Measured, track_of
from benchmarks.results_page.pages import CALIBRATION, FLOORS, Page
from benchmarks.results_page.writing import cell, number, table

REWEIGHTED, BALANCED, PRECISION = "ood_auprc_reweighted", "ood_auprc_balanced", "ood_auprc"
COMPACT = {
    "R@1": "recall@1",
    "mAP@R": "map@r",
    "ECE as is": "ece",
    "ECE tuned": "ece_tuned",
    "error AUROC": "error_auroc",
    "AUSC": "ausc",
}


@dataclass(frozen=True)
class Tables:
    """What a page shows of one suite."""

    page: Page
    measured: Measured

    @property
    def published(self) -> Mapping[str, Any]:
        """The paper's numbers, as the suite has them."""
        found: Mapping[str, Any] = self.measured.result["published"] or {"methods": {}, "source": ""}
        return found

    def retrieval(self) -> str:
        """One row per method; bold is the best of a column."""
        return self._plain(self.page.columns)

    def calibration(self) -> str:
        """One row per method with draws; nothing where no method has any."""
        columns = {
            heading: metric
            for heading, metric in CALIBRATION.items()
            if any(self.measured.cells(metric, [OWN]))
        }
        return self._plain(columns) if columns else ""

    def compact(self) -> str:
        """What every row has of its own in one table: for rows that differ in one thing each."""
        strangers = {f"OOD AUROC, {name}": f"ood_auroc/{name}" for name in self.measured.ood}
        return self._plain({**COMPACT, **strangers})

    def _plain(self, columns: Mapping[str, str]) -> str:
        rows = []
        for method in self.measured.runs:
            values = [self.measured.value(method, OWN, metric) for metric in columns.values()]
            if not any(values):
                continue
            best = [(method, OWN) in self.best(metric, [OWN]) for metric in columns.values()]
            papers = [self.paper(method, metric) for metric in columns.values()]
            entries = zip(values, best, papers, strict=True)
            shown = [cell(value, bold=bold, paper=paper) for value, bold, paper in entries]
            rows.append([f"`{method}`", *shown])
        return table(["", *columns], rows)

    def by_source(self, metric: str) -> str:
        """One row per method, one column per source of doubt; bold is the best of a track, a star of both."""
        sources = [source for source in self.measured.sources if any(self.measured.cells(metric, [source]))]
        of_all = self.best(metric, sources)
        of_tracks = {entry for track in TRACKS for entry in self.best(metric, in_track(sources, track))}
        rows = []
        for method in self.measured.runs:
            shown = [
                cell(
                    self.measured.value(method, source, metric),
                    bold=(method, source) in of_tracks,
                    star=(method, source) in of_all,
                    paper=self.paper(method, metric) if source == OWN else "",
                )
                for source in sources
            ]
            rows.append([f"`{method}`", *shown])
        heading = [f"{'◧' if track_of(source) == PICTURE else '▦'} {source}" for source in sources]
        return table(["", *heading], rows)

    def best(self, metric: str, sources: list[str]) -> set[tuple[str, str]]:
        """What is bold; a floor is no achievement."""
        return set() if metric in FLOORS else self.measured.best(metric, sources)

    def doubt_metrics(self) -> dict[str, str]:
        """Heading → measure of every table by source."""
        found = {"Errors: error AUROC": "error_auroc", "Errors: AUSC": "ausc"}
        for name in self.measured.ood:
            found[f"Out of distribution: AUROC, {name}{self._role(name)}"] = f"ood_auroc/{name}"
        if (paper := self.page.paper_ood) in self.measured.ood:
            metric = self.precision()
            ratio = self.page.paper_ratio if metric.startswith(REWEIGHTED) else 1
            found[f"Out of distribution: AUPRC at {ratio:g} : 1, {paper}"] = metric
        return found

    def _role(self, name: str) -> str:
        if name == self.measured.result.get("untouched_ood"):
            return " (nothing was ever chosen on it)"
        return ""

    def precision(self) -> str:
        """AUPRC at the paper's set sizes where it was measured, else at sets of one size."""
        at_papers = f"{REWEIGHTED}/{self.page.paper_ood}"
        measured = any(self.measured.cells(at_papers, self.measured.sources))
        return at_papers if measured else f"{BALANCED}/{self.page.paper_ood}"

    def paper(self, method: str, metric: str) -> str:
        """``[.81]``, with an asterisk where the paper measures something else."""
        value = self.published["methods"].get(method, {}).get(papers_name(metric))
        if value is None:
            return ""
        digits = 2 if round(value, 2) == value else 3
        star = "" if self.reason(method, metric) is None else "\\*"
        return f"[{number(value, digits)}{star}]"

    def reason(self, method: str, metric: str) -> str | None:
        """Why the paper's number is of something else, if it is."""
        at_papers_ratio = metric.startswith(REWEIGHTED) or self.page.paper_ratio == 1
        if metric.startswith(PRECISION) and at_papers_ratio:
            return None
        reasons: Mapping[str, str] = self.published.get("not_comparable", {})
        return reasons.get(papers_name(metric)) or reasons.get(method)


def in_track(sources: list[str], track: str) -> list[str]:
    """Those of the sources that see no more than the track says."""
    return [source for source in sources if track_of(source) == track]


def papers_name(metric: str) -> str:
    """The suite's name for the paper's number of this measure."""
    kind, _, name = metric.partition("/")
    return f"{PRECISION}/{name}" if kind.startswith(PRECISION) else metric

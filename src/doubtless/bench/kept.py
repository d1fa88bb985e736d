"""Runs that an earlier bench of a suite left in its JSON, known by their keys: a table grows over several machines.

Their networks and queries are gone, so nothing is paired with them; their numbers are those that were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doubtless.bench.plan import Job
from doubtless.files import read_json, reading


@dataclass(frozen=True)
class KeptRuns:
    """What the JSON of an earlier bench has of this suite."""

    records: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Key → one run as it is written, with the commit that its settings were in."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What measured them."""

    def of(self, job: Job) -> dict[str, Any] | None:
        """What was measured of this very run, whose folder may be gone."""
        return self.records.get(job.folder.name)


NOTHING_KEPT = KeptRuns()


def kept_runs(path: Path) -> KeptRuns:
    """Those of the JSON that a bench wrote; none where there is no such file."""
    if not path.is_file():
        return NOTHING_KEPT
    with reading(path, "results of a bench"):
        result = read_json(path)
        records = {run["key"]: {"frozen": result.get("frozen"), **run} for run in result["runs"]}
        return KeptRuns(records, result["versions"])


def jobs_to_make(wanted: Sequence[Job], every: Sequence[Job], kept: KeptRuns) -> list[Job]:
    """The wanted jobs that are not kept, and before them the runs of the suite that they start from.

    Such a run is made even where its numbers are kept: its network is needed.
    """
    missing = [job for job in wanted if kept.of(job) is None]
    chosen = {job.folder for job in missing} | {job.base for job in missing if not job.is_done}
    return [job for job in every if job.folder in chosen]

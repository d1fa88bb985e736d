"""Hyper-parameters chosen on validation data, once a method, and written down with all that was tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from doubtless.bench.plan import Job
from doubtless.files import write_text
from doubtless.training import Run


def choose(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Method → the grid values of its best validation score, and every value tried with its score.

    The score is the best epoch's, by the metric that `training.monitor` names. Test data is not looked at.
    """
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        log = Run(job.folder).log
        if not job.is_done or not log:
            continue
        monitor = f"validation_{job.config.training.monitor}"
        score = max(row[monitor] for row in log)
        entry = found.setdefault(job.method, {"chosen": {}, "score": -1.0, "by": monitor, "tried": []})
        entry["tried"].append({**job.tuning, "score": round(score, 5)})
        if score > entry["score"]:
            entry |= {"chosen": dict(job.tuning), "score": round(score, 5)}
    return found


def save_choices(path: Path, found: dict[str, dict[str, Any]]) -> None:
    header = (
        "# Chosen on validation data by `doubtless bench --tune`; everything that was tried is below each.\n"
    )
    write_text(path, header + yaml.safe_dump(found, sort_keys=False))

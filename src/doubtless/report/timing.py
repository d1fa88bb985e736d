"""Where a run's time went, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from doubtless.progress import describe_seconds
from doubtless.report.charts import whisker
from doubtless.report.page import Column, number, table, text

PHASES = {
    "start": "Python, its libraries and the configuration are loaded",
    "data": "sources are opened and split",
    "images": "images are decoded, or read from where they were kept",
    "head start": "features of the training part, from which the head starts",
    "estimate": "a few steps, to say how long the training will take",
    "training": "all epochs, without validation",
    "validation": "the validation part is embedded and searched after every epoch",
    "finishing": "features of the training part, and what is fitted to them when training is over",
    "curvature": "the curvature of the head over the training part",
    "tuning": "scale and prior of the posterior are chosen on the validation part",
    "embedding": "the parts that are measured, the out-of-distribution sets and what the doubt is fitted on",
    "doubt": "the combined doubt is fitted and asked",
    "measuring": "neighbours, retrieval, verification and clusters",
    "intervals": "what each uncertainty knows, with its bootstrap intervals",
    "consensus": "draws of every query search the gallery",
    "report": "pictures, figures and this page",
    "other": "all the rest",
}
_COLUMNS = (
    Column("phase"),
    Column("time", numeric=True, kind="value"),
    Column("share", numeric=True),
    Column("0 … 1", kind="picture"),
    Column("what is done", kind="meaning"),
)


def timing_section(seconds: Mapping[str, float]) -> str:
    """Phase → seconds as a table, in the order they were gone through; nothing where nothing was measured."""
    total = sum(seconds.values())
    if not total > 0:
        return ""
    rows = [
        [
            text(name),
            text(describe_seconds(part)),
            number(part / total, digits=2),
            whisker(part / total, low=0.0, high=part / total),
            text(PHASES.get(name, "")),
        ]
        for name, part in seconds.items()
    ]
    whole = f"<p>The run took {text(describe_seconds(total))} until this page was begun.</p>"
    return whole + table(_COLUMNS, rows, label="Where the time went")

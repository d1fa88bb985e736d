"""What a reader of the numbers must know: counts, how it was measured, and what to be careful about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from doubtless.evaluation.setting import DEFAULT_KS, Setting
from doubtless.evaluation.uncertainties import Uncertainties
from doubtless.metrics.catalogue import metric_of
from doubtless.metrics.measure import Measure
from doubtless.metrics.metric import Metric
from doubtless.search.relevance import Positions


def count(setting: Setting, ood: Mapping[str, Uncertainties]) -> dict[str, int]:
    """How many of everything; out-of-distribution sets as "ood/<name>"."""
    labels = setting.labels
    counts = {
        "queries": len(labels),
        "gallery": len(setting.gallery_labels),
        **({} if isinstance(labels, Positions) else {"classes": len(labels.unique())}),
        "without_positive": len(labels) - len(setting.counted),
    }
    return counts | {f"ood/{name}": len(values["distance"]) for name, values in ood.items()}


def describe(
    setting: Setting, counts: Mapping[str, int], *, reweighted_to: float | None = None
) -> dict[str, Any]:
    """Which protocol, and how many out-of-distribution items there are to one query, on which `ood_auprc` depends.

    `reweighted_to`: the ratio of `ood_auprc_reweighted`, where it was measured.
    """
    ratios = {
        name.removeprefix("ood/"): size / counts["queries"] for name, size in counts.items() if "/" in name
    }
    kind = "leave-one-out" if setting.leave_one_out else "query-gallery"
    right = (
        f"within {setting.labels.radius:g} m"
        if isinstance(setting.labels, Positions)
        else "of the same label"
    )
    stated = {} if reweighted_to is None else {"ood_reweighted_to": reweighted_to}
    return {"kind": kind, "right": right, "score": setting.search.score, "ood_ratio": ratios, **stated}


def write_notes(
    setting: Setting,
    measures: Mapping[str, Measure],
    baselines: Mapping[str, Mapping[str, Measure]],
    *,
    ks: Sequence[int] | None,
) -> list[str]:
    """Sentences for the foot of a table. `ks`: those that were asked for, None where the usual ones were taken."""
    notes = [*_beaten(measures, baselines), *_undefined(measures)]
    if ks is None and len(setting.ks) < len(DEFAULT_KS):
        dropped = ", ".join(f"@{k}" for k in DEFAULT_KS if k not in setting.ks)
        notes.append(f"{dropped} is left out: a query can find only {setting.available} items.")
    metrics = (metric_of(name) for name in measures)
    return [*notes, *dict.fromkeys(metric.note for metric in metrics if metric is not None and metric.note)]


def _beaten(measures: Mapping[str, Measure], baselines: Mapping[str, Mapping[str, Measure]]) -> list[str]:
    """Where the learned uncertainty does not beat one that costs nothing."""
    sentences = []
    for name, measure in measures.items():
        metric = metric_of(name)
        if metric is None or not metric.noted or metric.higher is None or math.isnan(measure.value):
            continue
        sign = 1 if metric.higher else -1
        rivals = {baseline: row[name].value for baseline, row in baselines.items() if name in row}
        as_good = {
            baseline: value for baseline, value in rivals.items() if sign * value >= sign * measure.value
        }
        if as_good:
            listed = ", ".join(f"{baseline} {value:.4f}" for baseline, value in as_good.items())
            sentences.append(
                f"{name}: the learned uncertainty ({measure.value:.4f}) does not beat what is free ({listed})."
            )
    return sentences


def _undefined(measures: Mapping[str, Measure]) -> list[str]:
    sentences = []
    for name, measure in measures.items():
        if math.isnan(measure.value):
            metric = metric_of(name)
            reason = Metric.undefined if metric is None else metric.undefined
            sentences.append(f"{name} has no value: {reason}.")
    return sentences

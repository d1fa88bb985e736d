"""What a reader of the numbers must know: counts, how it was measured, and what to be careful about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from doubtless.evaluation.setting import DEFAULT_KS, Setting
from doubtless.evaluation.uncertainties import Doubts
from doubtless.metrics.measure import Measure
from doubtless.search.relevance import Positions

COMPARED = {"error_auroc": 1, "ausc": 1, "ood_auroc": 1, "ood_auprc": 1, "ood_fpr95": -1}
"""Metrics on which a learned uncertainty should beat the free ones, and whether higher (1) is better."""


def count(setting: Setting, strangers: Mapping[str, Doubts]) -> dict[str, int]:
    """How many of everything; OOD sets as "ood/<name>"."""
    labels = setting.labels
    counts = {
        "queries": len(labels),
        "gallery": len(setting.gallery_labels),
        **({} if isinstance(labels, Positions) else {"classes": len(labels.unique())}),
        "without_positive": len(labels) - len(setting.counted),
    }
    return counts | {f"ood/{name}": len(doubts["distance"]) for name, doubts in strangers.items()}


def describe(
    setting: Setting, counts: Mapping[str, int], *, reweighted_to: float | None = None
) -> dict[str, Any]:
    """Which protocol, and how many OOD items stand against one query: what `ood_auprc` depends on.

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
    asked = {} if reweighted_to is None else {"ood_reweighted_to": reweighted_to}
    return {"kind": kind, "right": right, "score": setting.search.score, "ood_ratio": ratios, **asked}


def write_notes(
    setting: Setting,
    measures: Mapping[str, Measure],
    baselines: Mapping[str, Mapping[str, Measure]],
    *,
    asked: Sequence[int] | None,
) -> list[str]:
    """Sentences for the foot of a table."""
    notes = [*_beaten(measures, baselines), *_undefined(measures)]
    if asked is None and len(setting.ks) < len(DEFAULT_KS):
        dropped = ", ".join(f"@{k}" for k in DEFAULT_KS if k not in setting.ks)
        notes.append(f"{dropped} is left out: a query can find only {setting.available} items.")
    if any(name.startswith("ece@") for name in measures):
        notes.append("ece@k is of a rank, not of a probability: a perfect retriever scores 0.45.")
    return notes


def _beaten(measures: Mapping[str, Measure], baselines: Mapping[str, Mapping[str, Measure]]) -> list[str]:
    """Where the learned uncertainty does not beat one that costs nothing."""
    sentences = []
    for name, measure in measures.items():
        sign = COMPARED.get(name.split("/")[0])
        if sign is None or math.isnan(measure.value):
            continue
        better = {
            baseline: found[name].value
            for baseline, found in baselines.items()
            if sign * found[name].value >= sign * measure.value
        }
        if better:
            listed = ", ".join(f"{baseline} {value:.4f}" for baseline, value in better.items())
            sentences.append(
                f"{name}: the learned uncertainty ({measure.value:.4f}) does not beat what is free ({listed})."
            )
    return sentences


def _undefined(measures: Mapping[str, Measure]) -> list[str]:
    reasons = {
        "error_auroc": "every first hit is right, or every one is wrong",
        "f1": "no two items share a class or a cluster",
    }
    return [
        f"{name} has no value: {reasons.get(name, 'it is not defined for these data')}."
        for name, measure in measures.items()
        if math.isnan(measure.value)
    ]

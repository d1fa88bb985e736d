"""The score that picks the best epoch: retrieval within the validation part, quick and without intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from doubtless.data import Places
from doubtless.evaluation.neighbors import ranked
from doubtless.evaluation.relevance import Positions, Truth, count_right, is_right
from doubtless.evaluation.retrieval import map_at_r, recall_at
from doubtless.evaluation.uncertainty import error_auroc


def validation_scores(
    direction: Tensor, labels: Tensor, *, uncertainty: Tensor | None = None, places: Places | None = None
) -> dict[str, float]:
    """recall@1 and map@r, leave-one-out; items without a second of their class count only as distractors.

    direction (n, D) unit rows, labels (n,). With places the queries among them search the database among them,
    and what lies within the radius is right. With an uncertainty (n,) also error_auroc, which is what methods that
    learn nothing but an uncertainty are chosen by; where all hits are right or all wrong it is chance, .5.
    """
    truth: Truth = labels
    asking = answering = torch.arange(len(labels), device=labels.device)
    if places is not None:
        truth = Positions(places.position.to(labels.device), places.radius)
        asked = places.query.to(labels.device)
        asking, answering = asking[asked], asking[~asked]
    asked_truth, gallery_truth = (_rows_of(truth, rows) for rows in (asking, answering))
    positives = count_right(asked_truth, gallery_truth, leave_one_out=places is None)  # (queries,)
    counted = torch.nonzero(positives)[:, 0]
    queries = asking[counted]
    precision = torch.zeros(len(labels), dtype=torch.double, device=labels.device)
    right = torch.zeros_like(precision)
    for rows, found in ranked(
        direction[queries],
        direction[answering],
        depth=positives[counted],
        exclude=queries if places is None else None,
    ):
        relevant = is_right(
            asked_truth, gallery_truth, rows=counted[rows], found=found.index
        )  # (chunk, depth)
        precision[queries[rows]] = map_at_r(relevant, positives[counted[rows]])
        right[queries[rows]] = recall_at(relevant, 1).double()
    count = max(len(queries), 1)
    scores = {"map@r": float(precision.sum()) / count, "recall@1": float(right.sum()) / count}
    if uncertainty is not None and len(queries):
        found_errors = error_auroc(uncertainty[queries].double(), right[queries] > 0)
        scores["error_auroc"] = 0.5 if math.isnan(found_errors) else found_errors
    return scores


def _rows_of(truth: Truth, rows: Tensor) -> Truth:
    return Positions(truth.metres[rows], truth.radius) if isinstance(truth, Positions) else truth[rows]

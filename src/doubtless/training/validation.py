"""The score that picks the best epoch: retrieval within the validation part, quick and without intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from doubtless.evaluation.neighbors import ranked
from doubtless.evaluation.retrieval import count_positives, map_at_r, recall_at
from doubtless.evaluation.uncertainty import error_auroc


def validation_scores(
    direction: Tensor, labels: Tensor, *, uncertainty: Tensor | None = None
) -> dict[str, float]:
    """recall@1 and map@r, leave-one-out; items without a second of their class count only as distractors.

    direction (n, D) unit rows, labels (n,). With an uncertainty (n,) also error_auroc, which is what methods that
    learn nothing but an uncertainty are chosen by; where all hits are right or all wrong it is chance, .5.
    """
    positives = count_positives(labels, labels, leave_one_out=True)  # (n,)
    queries = torch.nonzero(positives)[:, 0]
    precision = torch.zeros(len(labels), dtype=torch.double, device=labels.device)
    right = torch.zeros_like(precision)
    for rows, found in ranked(direction[queries], direction, depth=positives[queries], exclude=queries):
        chosen = queries[rows]
        relevant = labels[found.index] == labels[chosen, None]  # (chunk, depth)
        precision[chosen] = map_at_r(relevant, positives[chosen])
        right[chosen] = recall_at(relevant, 1).double()
    count = max(len(queries), 1)
    scores = {"map@r": float(precision.sum()) / count, "recall@1": float(right.sum()) / count}
    if uncertainty is not None and len(queries):
        found_errors = error_auroc(uncertainty[queries].double(), right[queries] > 0)
        scores["error_auroc"] = 0.5 if math.isnan(found_errors) else found_errors
    return scores

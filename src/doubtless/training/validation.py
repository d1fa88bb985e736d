"""The score that picks the best epoch: retrieval within the validation part, quick and without intervals."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.evaluation.neighbors import ranked
from doubtless.evaluation.retrieval import count_positives, map_at_r, recall_at


def validation_scores(direction: Tensor, labels: Tensor) -> dict[str, float]:
    """recall@1 and map@r, leave-one-out; items without a second of their class count only as distractors.

    direction (n, D) unit rows, labels (n,).
    """
    positives = count_positives(labels, labels, leave_one_out=True)  # (n,)
    queries = torch.nonzero(positives)[:, 0]
    sums = {"map@r": 0.0, "recall@1": 0.0}
    for rows, found in ranked(direction[queries], direction, depth=positives[queries], exclude=queries):
        chosen = queries[rows]
        relevant = labels[found.index] == labels[chosen, None]  # (chunk, depth)
        sums["map@r"] += float(map_at_r(relevant, positives[chosen]).sum())
        sums["recall@1"] += float(recall_at(relevant, 1).sum())
    return {name: total / max(len(queries), 1) for name, total in sums.items()}

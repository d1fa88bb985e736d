"""Our measures as `torchmetrics.Metric`: updated batch by batch, gathered over processes, reset by Lightning.

Retrieval needs all embeddings of a part, so these are kept until `compute`; of doubts and hits only two numbers per
query are. Values are those of `doubtless.evaluation.evaluate`, without intervals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import EvaluationOptions, GivenScores, evaluate
from doubtless.metrics import augrc, aurc, ausc, error_auroc

RETRIEVAL = ("recall@1", "recall@5", "recall@10", "map@5", "map@10", "map@r", "r_precision")
DOUBT = ("error_auroc", "ausc", "aurc", "augrc")


class RetrievalMeasures(Metric):
    """Leave-one-out retrieval of all that was seen, and whether the doubt knows where it fails.

    update      embeddings (b, D), an `Embedding` or plain vectors; labels (b,); and uncertainties (b,) of plain
                vectors where there are any, higher is less sure. An `Embedding` brings its own
    compute     name → number: recall@1, map@r, …; of the uncertainty error_auroc, ausc, aurc, augrc, by the
                distance to the first hit where none is given

    >>> metric = RetrievalMeasures()
    >>> for number in range(2):
    ...     metric.update(torch.eye(4), torch.arange(4))
    >>> float(metric.compute()["recall@1"])
    1.0
    """

    full_state_update = False
    location: list[Tensor]
    label: list[Tensor]
    doubt: list[Tensor]

    def __init__(self, **options: Any) -> None:
        """options: of `torchmetrics.Metric`, such as `sync_on_compute`."""
        super().__init__(**options)
        for name in ("location", "label", "doubt"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self, embeddings: Embedding | Tensor, labels: Tensor, uncertainty: Tensor | None = None
    ) -> None:
        """Takes note of a batch."""
        if isinstance(embeddings, Embedding):
            uncertainty = embeddings.uncertainty if uncertainty is None else uncertainty
            embeddings = embeddings.direction
        if embeddings.dim() != 2 or labels.shape != embeddings.shape[:1]:
            raise InputError(
                f"Embeddings must be (b, D) and labels (b,), got {tuple(embeddings.shape)}, {tuple(labels.shape)}."
            )
        if uncertainty is not None and uncertainty.shape != labels.shape:
            raise InputError(f"Uncertainties must be as the labels, got {tuple(uncertainty.shape)}.")
        if self.label and bool(self.doubt) != (uncertainty is not None):
            raise InputError("Either all batches have uncertainties, or none has.")
        self.location.append(embeddings.detach().float())
        self.label.append(labels.detach())
        if uncertainty is not None:
            self.doubt.append(uncertainty.detach().float())

    def compute(self) -> dict[str, Tensor]:
        """Everything that is defined of what was seen."""
        if not len(self.label):
            raise InputError("Nothing was seen yet: call update first.")
        location, labels = dim_zero_cat(self.location), dim_zero_cat(self.label)
        doubt = dim_zero_cat(self.doubt) if len(self.doubt) else None
        given = GivenScores() if doubt is None else GivenScores(uncertainty=doubt.cpu())
        options = EvaluationOptions(bootstrap=0, consensus_samples=0, clusters=False)
        found = evaluate(Embedding.point(location.cpu()), labels.cpu().long(), given=given, options=options)
        values = {name: measure.value for name, measure in found.measures.items()}
        if doubt is None:
            values |= {name: measure.value for name, measure in found.baselines["distance"].items()}
        return {name: torch.tensor(values[name]) for name in (*RETRIEVAL, *DOUBT) if name in values}


class DoubtMeasures(Metric):
    """Does an uncertainty know which answers are wrong? Two numbers per query are kept.

    >>> metric = DoubtMeasures()
    >>> metric.update(torch.tensor([0.1, 0.9]), torch.tensor([True, False]))
    >>> metric.update(torch.tensor([0.2]), torch.tensor([True]))
    >>> float(metric.compute()["error_auroc"])
    1.0
    """

    full_state_update = False
    uncertainty: list[Tensor]
    correct: list[Tensor]

    def __init__(self, **options: Any) -> None:
        """options: of `torchmetrics.Metric`."""
        super().__init__(**options)
        for name in ("uncertainty", "correct"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, uncertainty: Tensor, correct: Tensor) -> None:
        """Uncertainties (b,), higher is less sure, and whether each answer was right (b,)."""
        if uncertainty.dim() != 1 or correct.shape != uncertainty.shape:
            raise InputError(
                f"Uncertainties and truths must be (b,), got {tuple(uncertainty.shape)}, {tuple(correct.shape)}."
            )
        self.uncertainty.append(uncertainty.detach())
        self.correct.append(correct.detach().bool())

    def compute(self) -> dict[str, Tensor]:
        """error_auroc, ausc, aurc and augrc; NaN where all answers are right, or all wrong, and it says nothing."""
        if not len(self.correct):
            raise InputError("Nothing was seen yet: call update first.")
        uncertainty, correct = dim_zero_cat(self.uncertainty).cpu(), dim_zero_cat(self.correct).cpu()
        measures = {"error_auroc": error_auroc, "ausc": ausc, "aurc": aurc, "augrc": augrc}
        return {name: torch.tensor(measure(uncertainty, correct)) for name, measure in measures.items()}

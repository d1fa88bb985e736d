"""`Calibrator`: the probability that a hit is right, from its similarity, both uncertainties, gap, rank, labels.

The first hit has a model of its own: it is what is answered, and it differs from the others (it was chosen for
being nearest). All later hits share one, of which the rank is a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH, PAIR, hit_features, pair_features, stacked
from doubtless.calibration.regression import Method, ProbabilityModel, cross_fitted
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics.calibration import match_brier, match_ece
from doubtless.search.hits import Hits, hits_among

ATTACHMENT = "calibrator"
OF_LATER_HITS = ("behind", "rank")  # constant for the first hit
LATER = 10
"""Hits per query down to which the model of later hits is fitted."""


@dataclass(frozen=True, eq=False)
class Calibrator:
    """P(this hit is right) for every hit.

    >>> from doubtless.embedding import Embedding
    >>> rows = torch.nn.functional.normalize(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    >>> labels = rows.argmax(1)
    >>> calibrator = Calibrator.fit(Embedding.point(rows), labels)
    >>> hits = hits_among(Embedding.point(rows), Embedding.point(rows), k=20, gallery_labels=labels)
    >>> calibrator.probability(hits).shape
    torch.Size([60, 20])
    """

    first: ProbabilityModel
    later: ProbabilityModel | None
    """None: fitted on first hits, or pairs, only; `first` serves all."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """How it was fitted and how good it is on queries it was not fitted on."""

    @classmethod
    def fit(
        cls,
        embedding: Embedding,
        labels: Tensor,
        *,
        gallery: Embedding | None = None,
        gallery_labels: Tensor | None = None,
        method: Method = "auto",
    ) -> Calibrator:
        """From n labelled items (n,) that search each other, themselves left out, or a labelled gallery."""
        if (gallery is None) != (gallery_labels is None):
            raise InputError(
                "A gallery needs gallery_labels, and gallery_labels a gallery; got one of the two."
            )
        alone = gallery is None
        gallery, known = (embedding, labels) if gallery is None else (gallery, gallery_labels)
        assert known is not None
        itself = torch.arange(len(embedding)) if alone else None
        hits = hits_among(embedding, gallery, k=DEPTH, gallery_labels=known, itself=itself)
        assert hits.label is not None
        right = hits.label == labels.unsqueeze(1)
        return cls.fit_hits(hits, right, method=method, query_label=labels)

    @classmethod
    def fit_hits(
        cls,
        hits: Hits,
        right: Tensor,
        *,
        method: Method = "auto",
        names: Sequence[str] | None = None,
        query_label: Tensor | None = None,
    ) -> Calibrator:
        """From hits whose rightness (n, k) is known. `names` chooses among the features; None: all there are.

        `query_label` (n,) adds to the record what the probabilities are worth for queries, and for classes, that
        had no part in them; that takes several times as long as the fit.
        """
        _check(hits, right)
        features = hit_features(hits)
        kept = tuple(features) if names is None else tuple(names)
        of_first = tuple(name for name in kept if name not in OF_LATER_HITS)
        table = stacked(features, kept)  # (n, k, F)
        front = stacked(features, of_first)[:, 0]
        answered = hits.found[:, 0]
        front, outcome = front[answered], right[answered, 0]
        first = ProbabilityModel.fit(front, outcome, names=of_first, method=method)
        later = None
        if hits.depth > 1 and names is None:
            place = hits.found[:, 1:LATER].nonzero(as_tuple=True)
            rows, truth = table[:, 1:LATER][place], right[:, 1:LATER][place]
            if len(truth):
                later = ProbabilityModel.fit(rows, truth, names=kept, group=place[0], method="stacked")
        record: dict[str, Any] = {"queries": len(outcome), "right": float(outcome.double().mean())}
        if query_label is not None:
            group = query_label[answered]
            record |= _figures(front, outcome, names=of_first, method=method, label=group)
        return cls(first, later, record)

    @classmethod
    def fit_pairs(
        cls, first: Embedding, second: Embedding, same: Tensor, *, method: Method = "auto"
    ) -> Calibrator:
        """From pairs: item i of one embedding, item i of the other, and whether they are the same (n,).

        Nothing is known of what stood around a pair, so gap, rank and labels have no say. The probability is
        for pairs that come about as these did: hits of a search, if these were hits.
        """
        features = pair_features(first, second, symmetric=False)
        names = tuple(name for name in PAIR if name in features)
        table = stacked(features, names)
        model = ProbabilityModel.fit(table, same, names=names, method=method)
        record = _figures(table, same, names=names, method=method, label=None) | {"pairs": len(same)}
        return cls(model, None, record)

    def probability(self, hits: Hits) -> Tensor:
        """P (n, k) float64; 0 where there is no item. The hits must reach as deep as when it was fitted."""
        features = hit_features(hits)
        front = features if self.later is None else {name: value[:, :1] for name, value in features.items()}
        chance = self.first(stacked(front, self.first.names))
        if self.later is not None and hits.depth > 1:
            behind = {name: features[name][:, 1:] for name in self.later.names}
            chance = torch.cat([chance, self.later(stacked(behind, self.later.names))], dim=1)
        return chance.masked_fill(~hits.found, 0.0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        tensors, record = (
            self.first.tensors("first."),
            {"first": self.first.record(), "fit": dict(self.record)},
        )
        if self.later is not None:
            tensors |= self.later.tensors("later.")
            record["later"] = self.later.record()
        return tensors, record

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Calibrator:
        """The calibrator whose `state` this is."""
        later = record.get("later")
        return cls(
            ProbabilityModel.from_state(tensors, record["first"], "first."),
            None if later is None else ProbabilityModel.from_state(tensors, later, "later."),
            record["fit"],
        )


def _figures(
    features: Tensor, right: Tensor, *, names: Sequence[str], method: Method, label: Tensor | None
) -> dict[str, Any]:
    """match_ece and match_brier of first hits by models that had not seen the query, then not even its class."""
    groups = {"exchangeable": torch.arange(len(right))}
    if label is not None and len(label.unique()) > 1:
        groups["class_disjoint"] = label
    figures: dict[str, Any] = {}
    for name, group in groups.items():
        chance = cross_fitted(features, right, names=names, group=group, method=method)
        figures[name] = {"match_ece": match_ece(chance, right), "match_brier": match_brier(chance, right)}
    return figures


def _check(hits: Hits, right: Tensor) -> None:
    if right.shape != hits.row.shape or right.dtype != torch.bool:
        raise InputError(
            f"Whether hits are right must be booleans of shape {tuple(hits.row.shape)}, got {right.dtype} of "
            f"shape {tuple(right.shape)}."
        )
    if not bool(hits.found[:, :1].any()):
        raise InputError("There is no hit to calibrate on: every query found an empty gallery.")

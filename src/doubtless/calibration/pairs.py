"""Are two items the same? `PairCalibrator` says how likely, under a stated prior; `PairAnswer` is what is shown.

The calibrator is fitted on as many pairs of one class as of two, so its odds are those of the evidence alone; the
prior odds of the question (one half for "these two, which I believe may be the same") are added when it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.features import PAIR, pair_features, stacked
from doubtless.calibration.regression import ProbabilityModel, cross_fitted
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics.calibration import match_brier, match_ece

ATTACHMENT = "pairs"
PAIRS = 5_000
"""Pairs of each kind that are drawn at most."""


@dataclass(frozen=True, eq=False)
class PairCalibrator:
    """P(same) of two items.

    >>> rows = torch.eye(4).repeat(5, 1) + 0.1 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    >>> points = Embedding.point(rows)
    >>> pairs = PairCalibrator.fit(points, torch.arange(4).repeat(5))
    >>> (pairs.probability(points[[0, 0]], points[[4, 1]]) > 0.5).tolist()
    [True, False]
    """

    model: ProbabilityModel
    share: float
    """Of the pairs it was fitted on, how many were the same: its own prior."""
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        embedding: Embedding,
        labels: Tensor,
        *,
        pairs: int = PAIRS,
        generator: torch.Generator | None = None,
    ) -> PairCalibrator:
        """From labelled items: up to `pairs` pairs of one class and as many of two, drawn by `generator`."""
        drawn = torch.Generator().manual_seed(0) if generator is None else generator
        first, second = draw_pairs(labels, pairs, generator=drawn)
        same = labels[first] == labels[second]
        return cls.fit_pairs(embedding[first], embedding[second], same, group=labels[first])

    @classmethod
    def fit_pairs(
        cls, first: Embedding, second: Embedding, same: Tensor, *, group: Tensor | None = None
    ) -> PairCalibrator:
        """From pairs known to be the same or not (n,); `group` (n,) adds class-disjoint figures to the record."""
        if not bool(same.any()) or bool(same.all()):
            raise InputError("Telling pairs apart needs some that are the same and some that are not.")
        features = pair_features(first, second)
        names = tuple(name for name in PAIR if name in features)
        table = stacked(features, names)
        record: dict[str, Any] = {"pairs": len(same)}
        groups = {"exchangeable": torch.arange(len(same))} | (
            {} if group is None else {"class_disjoint": group}
        )
        for name, rows in groups.items():
            chance = cross_fitted(table, same, names=names, group=rows, method="stacked")
            record[name] = {"match_ece": match_ece(chance, same), "match_brier": match_brier(chance, same)}
        model = ProbabilityModel.fit(table, same, names=names, method="stacked")
        return cls(model, float(same.double().mean()), record)

    def probability(self, first: Embedding, second: Embedding, *, prior: float = 0.5) -> Tensor:
        """P(same) (n,) of item i of one embedding and item i of the other, where a share `prior` is the same."""
        if not 0 < prior < 1:
            raise InputError(f"The prior must be a probability between 0 and 1, got {prior}.")
        chance = self.model(stacked(pair_features(first, second), self.model.names))
        return torch.sigmoid(torch.logit(chance) + _log_odds(prior) - _log_odds(self.share))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        return self.model.tensors("model."), {
            "model": self.model.record(),
            "share": self.share,
            "fit": dict(self.record),
        }

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> PairCalibrator:
        """The calibrator whose `state` this is."""
        model = ProbabilityModel.from_state(tensors, record["model"], "model.")
        return cls(model, record["share"], record["fit"])


def draw_pairs(labels: Tensor, count: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of `count` pairs of one class, then of as many of two; no item with itself.

    An item is drawn at random, and its partner at random among its class, or among all others.
    """
    order = labels.argsort(stable=True)
    classes, place, size = torch.unique(labels, return_inverse=True, return_counts=True)
    shared = (size[place] > 1).nonzero().squeeze(1)
    if not len(shared) or len(classes) < 2:
        raise InputError(
            "Pairs need at least two classes and one class of at least two items, got "
            f"{len(labels)} items of {len(classes)} classes."
        )
    start = size.cumsum(0) - size  # of each class in `order`
    item = shared[torch.randint(len(shared), (count,), generator=generator)]
    others = size[place[item]]
    within = torch.empty_like(labels)
    within[order] = torch.arange(len(labels)) - start[place[order]]
    shift = 1 + (torch.rand(count, generator=generator, dtype=torch.double) * (others - 1)).long()
    partner = order[start[place[item]] + (within[item] + shift) % others]
    first = torch.randint(len(labels), (count,), generator=generator)
    # Items of other classes: all places in `order` but its class's.
    outside = len(labels) - size[place[first]]
    jump = (torch.rand(count, generator=generator, dtype=torch.double) * outside).long()
    at = jump + torch.where(jump >= start[place[first]], size[place[first]], 0)
    return torch.cat([item, first]), torch.cat([partner, order[at]])


def _log_odds(chance: float) -> float:
    return math.log(chance) - math.log1p(-chance)


@dataclass(frozen=True)
class PairAnswer:
    """Two images beside each other; without a calibration of pairs `same` and `probability` are None."""

    same: bool | None
    probability: float | None
    prior: float
    cosine: float
    expected_squared_distance: float
    uncertainty: tuple[float, float] | None


def answer_pair(
    one: Embedding, other: Embedding, pairs: PairCalibrator | None, *, prior: float = 0.5
) -> PairAnswer:
    """Whether two embeddings of one item each are of the same; `prior`: how likely that is beforehand.

    >>> point = Embedding.point(torch.tensor([[1.0, 0.0]]))
    >>> round(answer_pair(point, point, None).cosine, 3)
    1.0
    """
    if not 0 < prior < 1:
        raise InputError(f"The prior must be a probability between 0 and 1, got {prior}.")
    chance = None if pairs is None else float(pairs.probability(one, other, prior=prior))
    doubts = None
    if one.uncertainty is not None and other.uncertainty is not None:
        doubts = float(one.uncertainty), float(other.uncertainty)
    return PairAnswer(
        same=None if chance is None else chance > 0.5,
        probability=chance,
        prior=prior,
        cosine=float((one.direction * other.direction).sum()),
        expected_squared_distance=max(0.0, float(one.expected_squared_distance(other))),  # of rounding
        uncertainty=doubts,
    )

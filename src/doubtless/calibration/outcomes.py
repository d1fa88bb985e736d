"""`Outcomes`: what queries of known and of absent labels came to, counted per label at every threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.errors import InputError

Array = NDArray[np.float64]
THRESHOLDS = 200
"""Thresholds that are tried, at most."""
ORDER_SEED = 0  # labels bet in an order that has nothing to do with them, and is the same next time


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Scores (higher: surer) of calibration queries, with their labels as whole numbers.

    Known queries have a label that is in the gallery, each searched without itself: `score`, `correct`, `label`
    (known,). Absent ones were searched with their whole label left out: `absent_score`, `absent_label` (absent,). A
    score of −inf is never answered.

    >>> outcomes = Outcomes(torch.tensor([0.75, 0.5]), torch.tensor([True, False]), torch.tensor([7, 8]),
    ...                     torch.tensor([0.25]), torch.tensor([7]))
    >>> outcomes.thresholds().tolist(), outcomes.label_count
    ([0.75, 0.5], 2)
    """

    score: Tensor
    correct: Tensor
    label: Tensor
    absent_score: Tensor
    absent_label: Tensor

    def __post_init__(self) -> None:
        _check("known", self.score, self.label)
        _check("absent", self.absent_score, self.absent_label)
        if self.correct.shape != self.score.shape or self.correct.dtype != torch.bool:
            raise InputError(
                f"The outcomes need one truth value per known query, got {self.correct.dtype} of shape "
                f"{tuple(self.correct.shape)} for {len(self.score)} queries."
            )

    @property
    def label_count(self) -> int:
        """How many labels there are, known or absent."""
        return len(torch.cat([self.label, self.absent_label]).unique())

    def thresholds(self, most: int = THRESHOLDS) -> Array:
        """Falling (g,): scores of known queries at equal steps of how many are answered, whatever was right."""
        score = self.score.double().numpy()
        falling = np.sort(score[score > -np.inf])[::-1]
        if not len(falling):
            return falling
        steps = min(most, len(falling))
        places = -(-np.arange(1, steps + 1) * len(falling) // steps) - 1  # rounded up, the last one all
        return np.unique(falling[places])[::-1]

    def counted(self, thresholds: Array) -> Counts:
        """Per label, how many queries lie at or above each threshold (falling), and how many of these are wrong."""
        labels = torch.cat([self.label, self.absent_label]).unique()
        order = np.random.default_rng(ORDER_SEED).permutation(len(labels))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))

        def totals(score: Tensor, label: Tensor) -> tuple[Array, Array]:
            row = place[torch.searchsorted(labels, label).numpy()]
            first = np.searchsorted(-thresholds, -score.double().numpy(), side="left")
            cell = row * (len(thresholds) + 1) + first
            count = np.bincount(cell, minlength=len(labels) * (len(thresholds) + 1))
            table = count.reshape(len(labels), len(thresholds) + 1).astype(np.float64)
            return table[:, :-1].cumsum(1), table.sum(1)

        answered, queries = totals(self.score, self.label)
        wrong, _ = totals(self.score[~self.correct], self.label[~self.correct])
        absent, absent_queries = totals(self.absent_score, self.absent_label)
        return Counts(wrong, answered, queries, absent, absent_queries)

    def tensors(self) -> dict[str, Tensor]:
        """For `Index.attach`."""
        names = ("score", "correct", "label", "absent_score", "absent_label")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Outcomes:
        """The outcomes whose `tensors` these are."""
        return cls(
            tensors["score"],
            tensors["correct"],
            tensors["label"],
            tensors["absent_score"],
            tensors["absent_label"],
        )


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts (labels, thresholds) and queries (labels,), labels in random order."""

    wrong: Array
    answered: Array
    queries: Array
    absent: Array
    """Absent queries that are answered."""
    absent_queries: Array


def _check(kind: str, score: Tensor, label: Tensor) -> None:
    if score.dim() != 1 or score.shape != label.shape:
        raise InputError(
            f"The {kind} queries need one score and one label each, got shapes {tuple(score.shape)} and "
            f"{tuple(label.shape)}."
        )
    if label.is_floating_point() or label.is_complex() or label.dtype == torch.bool:
        raise InputError(f"Labels of {kind} queries must be whole numbers, got {label.dtype}.")
    if bool(score.isnan().any()) or bool((score == torch.inf).any()):
        raise InputError(f"Scores of {kind} queries must be finite or −inf, got NaN or inf.")

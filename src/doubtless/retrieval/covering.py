"""Covering sets: as few of the first hits as contain a true match with probability at least 1 − α.

Split conformal prediction over nested sets (Vovk et al. 2005; Gupta et al. 2022; the conformal risk control of
Angelopoulos et al. 2024 for the loss "no true match in the set"). Hits are taken in order until their evidence
−Σ log(1 − P) exceeds a level; a calibration query's score is the evidence *before* its first true match, and the
level for α is the ⌈(n + 1)(1 − α)⌉-th smallest score. α is chosen when answering: all levels are one sorted table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.errors import InputError

PART = "covering"
ALMOST_ONE = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class CoveringSets:
    """Sorted calibration scores (n,); infinite for a query without a true match among its hits.

    >>> chance = torch.tensor([[0.9, 0.5], [0.6, 0.3]]).repeat(20, 1)
    >>> right = torch.tensor([[True, False], [False, True]]).repeat(20, 1)
    >>> sets = CoveringSets.fit(chance, right)
    >>> sets.sizes(chance[:2], confidence=0.9).tolist(), sets.sizes(chance[:2], confidence=0.4).tolist()
    ([1, 2], [1, 1])
    """

    score: Tensor

    @classmethod
    def fit(cls, probability: Tensor, right: Tensor) -> CoveringSets:
        """From match probabilities (n, k) and whether hits are right (n, k), of queries not fitted on before."""
        if probability.shape != right.shape or probability.dim() != 2:
            raise InputError(
                "covering sets need probabilities and outcomes of shape (queries, k), got "
                f"{tuple(probability.shape)} and {tuple(right.shape)}."
            )
        down_to = evidence(probability)
        # Shifted, not subtracted: these must be the very numbers that `sizes` compares, ties included.
        before = torch.cat([torch.zeros_like(down_to[:, :1]), down_to[:, :-1]], dim=1)
        first = right.double().argmax(1, keepdim=True)
        score = before.gather(1, first).squeeze(1)
        return cls(torch.where(right.any(1), score, torch.inf).sort().values)

    @property
    def reach(self) -> float:
        """The largest confidence that the calibrated depth of hits can promise."""
        return float((self.score < torch.inf).sum()) / (len(self.score) + 1)

    def level(self, confidence: float) -> float:
        """The evidence a set must exceed; infinite where all hits together do not promise so much."""
        if not 0 < confidence < 1:
            raise InputError(f"the confidence of a covering set must lie between 0 and 1, got {confidence}.")
        # 1e-9: (n + 1) · 0.9 must be 9 for n = 9, whatever floating point makes of it
        place = math.ceil((len(self.score) + 1) * confidence - 1e-9)
        return float(self.score[place - 1]) if place <= len(self.score) else math.inf

    def sizes(self, probability: Tensor, *, confidence: float) -> Tensor:
        """Size (n,) of each set, from the hits' probabilities (n, k); 0: even all k promise less."""
        level = self.level(confidence)
        if level == math.inf:
            return torch.zeros(len(probability), dtype=torch.long)
        needed = 1 + (evidence(probability) <= level).sum(1)
        return needed.clamp_max(probability.shape[1])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.save_part`."""
        return {"score": self.score}, {}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> CoveringSets:
        return cls(tensors["score"])


def evidence(probability: Tensor) -> Tensor:
    """−Σ log(1 − P) of the hits down to each, (n, k): rises by every hit, and by a likely one most."""
    return _step(probability).cumsum(1)


def _step(probability: Tensor) -> Tensor:
    return -torch.log1p(-probability.double().clamp(0, ALMOST_ONE))

"""Two items beside each other: the same or not, with a probability where pairs are calibrated."""

from __future__ import annotations

from dataclasses import dataclass

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.retrieval.pair_calibrator import PairCalibrator


@dataclass(frozen=True)
class Comparison:
    """Two images beside each other; without a calibration of pairs `same` and `probability` are None."""

    same: bool | None
    probability: float | None
    prior: float
    cosine: float
    expected_squared_distance: float
    uncertainty: tuple[float, float] | None


def compare(
    one: Embedding, other: Embedding, pairs: PairCalibrator | None, *, prior: float = 0.5
) -> Comparison:
    """Of two embeddings of one item each; `prior`: how likely the same is beforehand."""
    if not 0 < prior < 1:
        raise InputError(f"prior must be a probability between 0 and 1, got {prior}.")
    chance = None if pairs is None else float(pairs.probability(one, other, prior=prior))
    doubts = None
    if one.uncertainty is not None and other.uncertainty is not None:
        doubts = float(one.uncertainty), float(other.uncertainty)
    return Comparison(
        same=None if chance is None else chance > 0.5,
        probability=chance,
        prior=prior,
        cosine=float((one.direction * other.direction).sum()),
        expected_squared_distance=max(0.0, float(one.expected_squared_distance(other))),  # of rounding
        uncertainty=doubts,
    )

"""One scale of the variances, chosen on validation images in the same way for every probabilistic method.

Variances that are learned are right up to a factor at best, and the consensus of draws depends on that factor. So
that calibration is compared and not luck, every family gets the scale with the best score by the criterion that
also tunes LAM's posterior: consensus ECE, and what voting costs (`doubtless.laplace.criteria`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.laplace.criteria import FURTHEST, doublings_to, negative_consensus_ece_of_scales
from doubtless.progress import phase
from doubtless.search.relevance import Positions, Truth

DECADES = 3  # below 1 and above it
PER_DECADE = 4
FURTHER = 2  # how often as many decades again are tried beyond an end that is best
REFINED = 7  # scales between the neighbours of the best
QUERIES = 5_000  # images that are scored; all are their neighbours
FEWEST = 20  # images below which nothing is chosen
ENOUGH = (
    2_000  # images below which nothing is extrapolated: halves of few differ by chance more than by density
)


@dataclass(frozen=True)
class ChosenScale:
    """The best scale, and all that were tried: scale → score, higher is better."""

    scale: float
    trials: dict[float, float]
    images: int
    """Validation images that were scored."""
    meant_for: int | None = None
    """The size of the gallery that votes were extrapolated to; None: they were not."""

    def describe(self) -> dict[str, Any]:
        """Plain values for an evaluation's protocol."""
        return {
            "kind": "tuned",
            "value": self.scale,
            "criterion": "consensus-ece",
            "score": self.trials[self.scale],
            "as_is": self.trials[1.0],
            "trials": len(self.trials),
            "images": self.images,
            "meant_for": self.meant_for,
        }


@phase("scale")
@torch.no_grad()
def choose_scale(
    embedding: Embedding, labels: Truth, *, meant_for: int | None = None, seed: int = 0
) -> ChosenScale | None:
    """The scale of n validation images' variances, neighbours among themselves; None for points, which have none.

    The grid is the same for all: `DECADES` around 1, further ones where an end of it is best, then finer between
    the best one's neighbours. Of equally good scales the one nearest to 1 is taken.

    Draws agree less where neighbours lie denser. `meant_for` is the size of the gallery that will be searched,
    where it has the same labels: what votes do there is extrapolated from `ENOUGH` images on, as far as they can
    tell (`doublings_to`).

    >>> labels = torch.arange(40) % 4
    >>> shaky = Embedding.gaussian(torch.eye(4)[labels], torch.full((40, 1), 1e-6))
    >>> choose_scale(shaky, labels).scale                  # every vote is right and sure: nothing to change
    1.0
    """
    if isinstance(labels, Positions):
        raise InputError("A scale is chosen by votes for labels, and places have positions instead.")
    if embedding.uncertainty is None:
        return None
    if len(embedding) < FEWEST:
        raise InputError(f"A scale needs {FEWEST} validation images or more, got {len(embedding)}.")
    labels = labels.to(embedding.device)
    queries = _scored(labels, seed)
    if meant_for is not None and len(labels) < ENOUGH:
        meant_for = None
    elif meant_for is not None:
        meant_for = min(max(meant_for, len(labels)), FURTHEST * len(labels))
    doublings = None if meant_for is None else doublings_to(meant_for, len(labels))
    trials: dict[float, float] = {}

    def best_with(exponents: Iterable[float]) -> float:
        """Tries 10^e of those that are new; the best scale of all so far."""
        scales = [10.0**exponent for exponent in exponents if 10.0**exponent not in trials]
        generator = torch.Generator(embedding.device).manual_seed(seed)  # the same draws at every scale
        scores = negative_consensus_ece_of_scales(
            embedding, labels, scales=scales, generator=generator, queries=queries, doublings=doublings
        )
        trials.update(zip(scales, scores.tolist(), strict=True))
        return max(trials, key=lambda scale: (trials[scale], -abs(math.log10(scale))))

    low, high = -DECADES, DECADES
    best = best_with(_quarters(low, high))
    for _ in range(FURTHER):
        if 10.0**low < best < 10.0**high:
            break
        low, high = (low - DECADES, high) if best <= 10.0**low else (low, high + DECADES)
        best = best_with(_quarters(low, high))
    step = 2 / PER_DECADE / (REFINED + 1)
    around = [step * (number - (REFINED + 1) / 2) for number in range(1, REFINED + 1)]
    best = best_with([math.log10(best) + away for away in around if away])
    return ChosenScale(best, trials, len(queries), meant_for)


def _quarters(low: int, high: int) -> list[float]:
    """Exponents from one whole number to another, a quarter apart."""
    return [low + place / PER_DECADE for place in range((high - low) * PER_DECADE + 1)]


def _scored(labels: Tensor, seed: int) -> Tensor:
    """Items whose label another has too, (q,), at most `QUERIES` of them: what an evaluation counts."""
    _, code, sizes = labels.unique(return_inverse=True, return_counts=True)
    rows = (sizes[code] > 1).nonzero().squeeze(1)
    if not len(rows):
        raise InputError("No validation image shares its label with another: there is no right vote.")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:QUERIES]
    return rows[order.sort().values.to(rows.device)]

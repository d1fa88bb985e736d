"""The combined doubt of a run: fitted on its validation part, asked about what the run is measured on.

No test label and no out-of-distribution image takes part in the fit. In a closed set novelty is against the
training part; else against what the gallery holds, whose items then also say what is usual there, each among the
others, unlabelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.data import ImageSet, Progress
from doubtless.doubt.doubt import Doubt
from doubtless.doubt.novelty import Novelty, projection
from doubtless.doubt.queries import hits_with_truth
from doubtless.doubt.signals import hit_signals
from doubtless.methods import Described, Method
from doubtless.progress import phase
from doubtless.runs.data import described_batches
from doubtless.search import Positions
from doubtless.search.scores import ScoreName

OF_HITS = ("disagreement", "contested")  # what else hits say, ratio and distance, are free baselines
OF_QUERY = ("novelty", "leverage")  # what else a query says of itself is learned, or its norm
FEWEST = 20  # known queries below which nothing is fitted


@dataclass(frozen=True)
class Labelled(Described):
    """Images as embedding and narrowed features (n, W), and what says which of them are right."""

    truth: Tensor | Positions


class Reader:
    """Embeds images and keeps their features, in one pass."""

    def __init__(self, method: Method, *, progress: Progress | None = None) -> None:
        self.method, self.progress = method, progress
        self._narrow: Tensor | None = None

    @phase("embedding")
    def __call__(self, images: ImageSet, truth: Tensor | Positions) -> Labelled:
        """The images of a set, and what says which of them are right."""
        whole = Described.cat(
            [
                Described(some.embedding, self.narrowed(some.features))
                for some in described_batches(self.method, images, progress=self.progress)
            ]
        )
        return Labelled(whole.embedding, whole.features, truth)

    def narrowed(self, features: Tensor) -> Tensor:
        """Features (n, W) in few dimensions, by one projection for all images: distances stay as they are seen."""
        if self._narrow is None:
            generator = torch.Generator().manual_seed(0)
            matrix = projection(features.shape[1], generator=generator)
            self._narrow = torch.empty(0) if matrix is None else matrix.to(features.device).float()
        return features @ self._narrow if len(self._narrow) else features


def fit_run_doubt(
    validation: Labelled,
    searched: Labelled,
    *,
    train: Labelled | None,
    score: ScoreName,
    mirrored: bool = False,
) -> Doubt | None:
    """The doubt for queries to `searched`; None where the validation part is too small.

    train     what is not new in a closed set; None: open set
    mirrored  the gallery is the training part: validation images search it as test images do
    """
    if len(validation.embedding) < FEWEST:
        return None
    generator = torch.Generator().manual_seed(0)
    known = None if train is None else Novelty.fit(train.features, generator=generator)
    doubt = Doubt.fit(
        validation.embedding,
        validation.truth,
        gallery=searched.embedding if mirrored else None,
        gallery_labels=searched.truth if mirrored else None,
        features=validation.features,
        known=known,
        score=score,
        generator=generator,
    )
    if mirrored:
        return doubt
    return doubt.for_gallery(
        searched.embedding,
        labels=searched.truth,
        features=searched.features,
        known=known,
        score=score,
        generator=generator,
    )


def doubts_of(
    doubt: Doubt | None,
    queries: Labelled,
    searched: Labelled,
    *,
    score: ScoreName,
    closed: bool,
    itself: Tensor | None = None,
) -> dict[str, Tensor]:
    """The rows of an evaluation: the combined doubt, and its parts that nobody else measures, each by itself.

    itself  (n,) the row of each query in `searched`, where it must not find that; given where both are the same

    Without a doubt there are those that need no fit. A part that cannot be measured is not there.
    """
    if queries is searched:
        itself = torch.arange(len(queries.embedding), device=queries.embedding.device)
    hits, positions = hits_with_truth(
        queries.embedding, searched.embedding, searched.truth, itself=itself, score=score
    )
    signals = hit_signals(hits, positions=positions)
    parts = {name: signals[name] for name in OF_HITS}
    if doubt is None:
        return parts
    own = None if closed else itself  # in a closed set what is known are the training images
    signals |= doubt.own_signals(len(hits), queries.features, queries=queries.embedding, itself=own)
    parts |= {name: signals[name] for name in OF_QUERY if name in signals}
    fitted = {name: signals[name].to(hits.score.device) for name in doubt.tails}
    return {"doubt": doubt.of_signals(fitted, hits, positions=positions).total} | parts


def describe_doubt(doubt: Doubt) -> Mapping[str, Any]:
    """What a reader of the numbers should know of the fit."""
    weights = {name: round(weight, 3) for name, weight in doubt.weights.items()}
    return {"level": doubt.level, "weights": weights, **doubt.record}

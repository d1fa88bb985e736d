"""By what a gallery is searched: the cosine of directions, or a score that looks at the distributions.

direction            cosine of the directions; every family
expected-distance    −E‖z − w‖², ranked exactly by an inner product: unit families over R·direction, Gaussians
                     with one coordinate more, [μ, 1] against [μ, −½(‖μ‖² + tr Σ)]
expected-likelihood  log ∫ p q of von Mises-Fisher embeddings (Kirchhof et al. 2022)
mutual-likelihood    log ∫ p q of Gaussians with diagonal covariance (PFE, Shi and Jain 2019)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from doubtless.embedding import Embedding, GaussianEmbedding
from doubtless.errors import InputError
from doubtless.errors import nearest as nearest_word
from doubtless.search.neighbors import Neighbors, nearest, nearest_by, ranked, ranked_by

ScoreName = Literal["direction", "expected-distance", "expected-likelihood", "mutual-likelihood"]

FAMILY_OF = {"expected-likelihood": "vmf", "mutual-likelihood": "gaussian"}
"""Scores of pairs of one family only; the others are inner products and serve every family."""


class Search:
    """A gallery, searched by one score.

    >>> points = Embedding.point(torch.eye(3))
    >>> Search("direction", points).nearest(points, k=1).index[:, 0]
    tensor([0, 1, 2])
    """

    def __init__(self, score: ScoreName, gallery: Embedding) -> None:
        if score not in get_args(ScoreName):
            raise InputError(f"There is no score {score!r}{nearest_word(score, get_args(ScoreName))}")
        self.score = score
        self.gallery = gallery
        self._vectors = None if score in FAMILY_OF else gallery_vectors(score, gallery)

    def nearest(self, queries: Embedding, *, k: int, exclude: Tensor | None = None) -> Neighbors:
        """The k best gallery items of every query, best first; `exclude` (n,) must not be found."""
        if self._vectors is not None:
            return nearest(query_vectors(self.score, queries), self._vectors, k=k, exclude=exclude)
        shape = self._shape(queries)
        return nearest_by(self._rows_of(queries), shape, k=k, device=queries.device, exclude=exclude)

    def ranked(
        self, queries: Embedding, *, depth: Tensor, exclude: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Neighbors]]:
        """The first depth[i] items of query i, a chunk of queries at a time."""
        if self._vectors is not None:
            return ranked(query_vectors(self.score, queries), self._vectors, depth=depth, exclude=exclude)
        depth = depth.to(queries.device)
        return ranked_by(self._rows_of(queries), self._shape(queries), depth=depth, exclude=exclude)

    def cosines(self, queries: Embedding, found: Neighbors) -> Tensor:
        """Cosines (n, k) of queries and what they found: what the free baselines look at, whatever the score."""
        if self.score == "direction":
            return found.score
        direction = queries.direction.unsqueeze(-1)  # (n, D, 1)
        columns = [
            (self.gallery.direction[item].unsqueeze(1) @ direction).flatten() for item in found.index.T
        ]
        return torch.stack(columns, dim=1).clamp(-1, 1)

    def _shape(self, queries: Embedding) -> tuple[int, int]:
        return len(queries), len(self.gallery)

    def _rows_of(self, queries: Embedding) -> Callable[[Tensor], Tensor]:
        """Scores (c, m) of some of the queries with all of the gallery."""
        pairs = _pair_score(self.score, queries, self.gallery)
        return lambda rows: pairs(queries[rows], self.gallery)


def query_vectors(score: ScoreName, queries: Embedding) -> Tensor:
    """(n, D) or (n, D + 1): what is multiplied with `gallery_vectors` to rank by `score`."""
    if score == "direction":
        return queries.direction
    if isinstance(queries, GaussianEmbedding):
        return torch.cat([queries.location, torch.ones_like(queries.location[:, :1])], dim=1)
    return queries.direction  # a query's own R scales all of its scores alike


def gallery_vectors(score: ScoreName, gallery: Embedding) -> Tensor:
    """(m, D) or (m, D + 1); an inner-product index over these searches by `score`."""
    if score == "direction":
        return gallery.direction
    if isinstance(gallery, GaussianEmbedding):
        squared = gallery.location.square().sum(-1, keepdim=True) + gallery.total_variance.unsqueeze(-1)
        return torch.cat([gallery.location, -0.5 * squared], dim=1)
    return gallery.mean_unit_vector


def _pair_score(
    score: ScoreName, queries: Embedding, gallery: Embedding
) -> Callable[[Embedding, Embedding], Tensor]:
    family = FAMILY_OF[score]
    if {queries.family, gallery.family} != {family}:
        raise InputError(
            f"The score {score} is for {family} embeddings, got {queries.family} queries and a "
            f"{gallery.family} gallery; direction and expected-distance serve every family."
        )
    if score == "expected-likelihood":
        from doubtless.embedding.vmf import pairwise_expected_likelihood

        return pairwise_expected_likelihood
    from doubtless.losses import pairwise_mutual_likelihood_score

    def mutual(some: Embedding, others: Embedding) -> Tensor:
        assert isinstance(some, GaussianEmbedding)
        assert isinstance(others, GaussianEmbedding)
        return pairwise_mutual_likelihood_score(
            some.location, some.variance, others.location, others.variance
        )

    return mutual

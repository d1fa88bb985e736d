"""Known queries: what a doubt is fitted on. They search a gallery, or each other; their signals are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.doubt.leverage import Leverage
from doubtless.doubt.novelty import Novelty
from doubtless.doubt.signals import DEPTH, Signals, hit_signals, query_signals
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.moments import Moments
from doubtless.search.hits import Hits, hits_among
from doubtless.search.relevance import Positions, Truth, is_right
from doubtless.search.scores import ScoreName

SAMPLE = 10_000  # of them: tails need no more


@dataclass(frozen=True, eq=False)
class KnownQueries:
    """Signals of known queries, and what novelty was measured against."""

    rows: Tensor  # (n,) which of the items were queries
    signals: Signals
    wrong: Tensor | None  # (n,) whether the first hit is; None where nobody knows
    novelty: Novelty
    leverage: Leverage | None


def known_queries(
    embedding: Embedding,
    truth: Truth | None,
    *,
    gallery: Embedding | None,
    gallery_truth: Truth | None,
    features: Tensor | None,
    known: Novelty | None,
    score: ScoreName,
    generator: torch.Generator,
    with_leverage: bool,
) -> KnownQueries:
    """Searches the gallery with at most 10,000 of the items, or all items with each of them, itself left out.

    Without `features` (n, F) the directions serve; without `known` the items' own features are what is known, each
    item left out for itself. with_leverage: in the space of the items' directions, each left out for itself.
    """
    if len(embedding) < 2:
        raise InputError(f"A doubt is fitted on at least 2 known queries, got {len(embedding)}.")
    if features is not None and len(features) != len(embedding):
        raise InputError(f"There are {len(embedding)} known queries but features of {len(features)}.")
    rows = torch.randperm(len(embedding), generator=generator)[:SAMPLE].sort().values.to(embedding.device)
    queries, alone = embedding[rows], gallery is None
    among, among_truth = (embedding, truth) if gallery is None else (gallery, gallery_truth)
    hits, positions = hits_with_truth(
        queries, among, among_truth, itself=rows if alone else None, score=score
    )
    described = embedding.direction if features is None else features
    novelty = Novelty.fit(described, generator=generator) if known is None else known
    signals = hit_signals(hits, positions=positions) | query_signals(queries)
    away = novelty.distance(described[rows.to(described.device)], exclude=rows if known is None else None)
    signals["novelty"] = away.double().to(hits.score.device)
    leverage = None
    if with_leverage:
        leverage = Leverage(Moments.of(embedding.direction))
        signals["leverage"] = leverage.of(queries.direction, own=True).to(hits.score.device)
    wrong = None
    if truth is not None and among_truth is not None:
        truth, among_truth = truth.to(rows.device), among_truth.to(rows.device)
        wrong = ~is_right(truth, among_truth, rows=rows, found=hits.row[:, 0])
    return KnownQueries(rows, signals, wrong, novelty, leverage)


def hits_with_truth(
    queries: Embedding,
    gallery: Embedding,
    truth: Truth | None,
    *,
    itself: Tensor | None = None,
    score: ScoreName = "direction",
) -> tuple[Hits, Tensor | None]:
    """The first ten hits with labels where the gallery has them, and positions (n, k, 2) where it has those."""
    labels = None if truth is None or isinstance(truth, Positions) else truth.to(queries.device)
    hits = hits_among(queries, gallery, k=DEPTH, gallery_labels=labels, itself=itself, score=score)
    return hits, truth.to(queries.device).metres[hits.row] if isinstance(truth, Positions) else None

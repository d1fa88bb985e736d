"""Two pictures in a gallery: calibrated on its own items, and compared with what lies around them in it."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.calibration.evidence.surroundings import Both, SearchAround, Surroundings
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Targets
from doubtless.calibration.pairs.answer import PairAnswer, answer_pair
from doubtless.calibration.pairs.labelled import Around, Recipe
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.calibration.pairs.promise import PairTerms
from doubtless.embedding import Embedding
from doubtless.index.base import Index


def fit_pairs(
    index: Index, embedding: Embedding, labels: Tensor, rows: Tensor | None, targets: Targets
) -> PairCalibrator | None:
    """From calibration queries with their label codes (n,) and rows (n,), if they are items of the index.

    None where labels are too few to make pairs of both kinds.
    """
    sizes = labels.unique(return_counts=True)[1]
    if len(sizes) < 2 or not bool((sizes > 1).any()):
        return None
    return PairCalibrator.fit(
        embedding,
        labels,
        recipe=Recipe(unknown=targets.unknown),
        rows=rows,
        gallery=Around(search_of(index), index.embedding),
        terms=PairTerms(target_error=targets.target_error, confidence=targets.confidence),
    )


def compare(
    index: Index,
    pairs: PairCalibrator | None,
    one: Embedding,
    other: Embedding,
    *,
    prior: float = 0.5,
    target_error: float | None = None,
) -> PairAnswer:
    """The answer on two embeddings of one item each, searched for where the calibration needs it."""
    around = None
    if pairs is not None and pairs.searches:
        around = surroundings(search_of(index), one, other)
    return answer_pair(one, other, pairs, prior=prior, target_error=target_error, around=around)


def surroundings(search: SearchAround, one: Embedding, other: Embedding) -> Both:
    """What is around each of two items, (1, k); neither of the two themselves, should they be in the gallery."""
    found = search(Embedding.cat([one, other]), DEPTH)
    themselves = found.itself.reshape(1, -1)
    first, second = (found[torch.tensor([place])].without(themselves) for place in (0, 1))
    return first, second


def search_of(index: Index) -> SearchAround:
    """Searches of an index."""
    return lambda pictures, k: Surroundings.of(index.search(pictures, min(k, max(1, len(index)))))

"""Exact neighbours of embeddings, what they are ranked by, which of them are right, and `Hits`."""

from doubtless.search.hits import Hits, hits_among, hits_without_class
from doubtless.search.neighbors import Neighbors, nearest, ranked
from doubtless.search.relevance import Positions, Truth, count_positives
from doubtless.search.scores import ScoreName, Search

__all__ = [
    "Hits",
    "hits_among",
    "hits_without_class",
    "Search",
    "ScoreName",
    "Neighbors",
    "nearest",
    "ranked",
    "Positions",
    "Truth",
    "count_positives",
]

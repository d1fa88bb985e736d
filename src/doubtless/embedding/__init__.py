"""The one noun: a batch of distributions over embedding space."""

from doubtless.embedding.base import FAMILIES, Embedding
from doubtless.embedding.empirical import EmpiricalEmbedding
from doubtless.embedding.gaussian import GaussianEmbedding
from doubtless.embedding.point import PointEmbedding
from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding
from doubtless.embedding.storage import StoredEmbedding, coded, holds_vectors, read_embedding, save_embedding
from doubtless.embedding.vmf import VonMisesFisherEmbedding

__all__ = [
    "Embedding",
    "PointEmbedding",
    "GaussianEmbedding",
    "ProjectedGaussianEmbedding",
    "VonMisesFisherEmbedding",
    "EmpiricalEmbedding",
    "FAMILIES",
    "StoredEmbedding",
    "read_embedding",
    "holds_vectors",
    "coded",
    "save_embedding",
]

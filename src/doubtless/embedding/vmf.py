"""Von Mises-Fisher distributions on the unit sphere: probabilistic proxies, Bayesian triplets on the sphere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from doubtless.embedding.base import Embedding, check_matrix
from doubtless.embedding.gaussian import scaled_up
from doubtless.errors import InputError
from doubtless.sphere import VonMisesFisher, expected_likelihood, mean_resultant_length

ROWS = 2**22  # pairs whose likelihood is worked out at a time


class VonMisesFisherEmbedding(Embedding):
    """Location (n, D), whose direction is the mean direction, and concentration κ (n,); D at least 2.

    Probabilistic proxies take κ to be the location's length; in general κ has its own place, and the location's
    length is what the network gave.

    >>> sure = Embedding.vmf(torch.eye(3)[:2], torch.tensor([0.0, 100.0]))
    >>> sure.uncertainty, sure.resultant
    (tensor([   inf, 0.0100]), tensor([0.0000, 0.9900]))
    """

    family: ClassVar[str] = "vmf"
    item_axes: ClassVar[Mapping[str, int]] = {"location": 0, "concentration": 0}

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        location, concentration = parameters["location"], parameters["concentration"]
        check_matrix("location", location)
        if location.shape[1] < 2:
            raise InputError("A von Mises-Fisher embedding needs at least 2 dimensions, got 1.")
        if concentration.shape != location.shape[:1]:
            raise InputError(
                f"The concentration must have shape ({len(location)},), got {tuple(concentration.shape)}."
            )
        if bool((concentration < 0).any()):
            raise InputError(f"The concentration must not be negative, got {float(concentration.min()):.3g}.")
        if bool(((concentration > 0) & ~location.any(1)).any()):
            raise InputError(
                "A location of length 0 has no direction to be concentrated around; its concentration must be 0."
            )

    @property
    def concentration(self) -> Tensor:
        """κ, (n,)."""
        return self._parameters["concentration"]

    @property
    def uncertainty(self) -> Tensor:
        """1/κ, (n,): inf where all directions are alike."""
        return self.concentration.reciprocal()

    @property
    def resultant(self) -> Tensor:
        """R = A_D(κ), (n,)."""
        return self._once("resultant", lambda: mean_resultant_length(self.dim, self.concentration))

    def _scaled(self, scale: float) -> Self:
        return self._with(self._parameters | {"concentration": scaled_up(self.concentration, 1 / scale)})

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """n unit vectors (n, items, D), independent between items."""
        if raw:
            raise InputError("A von Mises-Fisher embedding lives on the sphere: it has unit samples only.")
        somewhere = torch.zeros_like(self.location)
        somewhere[:, 0] = 1  # without a direction κ is 0, and any is right
        direction = torch.where(self.location.any(1, keepdim=True), self.direction, somewhere)
        return VonMisesFisher(direction, self.concentration, validate_args=False).rsample(
            (n,), generator=generator
        )


def pairwise_expected_likelihood(queries: Embedding, gallery: Embedding) -> Tensor:
    """``log ∫ p_query p_gallery`` of every pair of two `vmf` embeddings, (n, m): higher is more alike.

    From cosines and concentrations only, exact. It is the similarity that probabilistic proxies train with (ELK).

    >>> image = Embedding.vmf(torch.eye(4)[:3], torch.full((3,), 10.0))
    >>> pairwise_expected_likelihood(image, image).argmax(1)
    tensor([0, 1, 2])
    """
    for name, embedding in (("queries", queries), ("gallery", gallery)):
        if not isinstance(embedding, VonMisesFisherEmbedding):
            raise InputError(f"Expected likelihoods need vmf embeddings; {name} are {embedding.family}.")
    queries._must_be_comparable(gallery)

    def distribution(embedding: Embedding) -> VonMisesFisher:
        concentration = embedding.parameters["concentration"]
        return VonMisesFisher(embedding.direction, concentration, validate_args=False)

    proxies, rows = distribution(gallery), max(1, ROWS // max(1, len(gallery)))
    parts = [
        expected_likelihood(distribution(queries[start : start + rows]), proxies)
        for start in range(0, max(1, len(queries)), rows)
    ]
    return torch.cat(parts)

"""Samples: what MC dropout, ensembles and joint weight samples give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding.base import Embedding, check_matrix
from doubtless.errors import InputError
from doubtless.sphere import inverse_mean_resultant_length


class EmpiricalEmbedding(Embedding):
    """Unit samples (s, n, D): sample j of every item comes from the same draw (one mask, one member)."""

    family: ClassVar[str] = "empirical"
    item_axes: ClassVar[Mapping[str, int]] = {"samples": 1}

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        samples = parameters["samples"]
        check_matrix("samples", samples, "(s, n, D)")
        if samples.shape[0] < 2:
            raise InputError(f"An empirical embedding needs at least 2 samples, got {samples.shape[0]}.")
        # Vectors that are unit already stay bit for bit what they are, through any number of files.
        is_unit = (samples.norm(dim=-1, keepdim=True) - 1).abs() < 1e-6
        self._parameters["samples"] = torch.where(is_unit, samples, normalize(samples, dim=-1))

    @property
    def samples(self) -> Tensor:
        """Unit samples, (s, n, D)."""
        return self._parameters["samples"]

    @property
    def location(self) -> Tensor:
        """The mean of the samples, (n, D)."""
        return self._once("location", lambda: self.samples.mean(0))

    @property
    def dim(self) -> int:
        """D, the dimension of the embedding space."""
        return self.samples.shape[-1]

    @property
    def resultant(self) -> Tensor:
        """Length of the samples' mean: R of this very distribution of s points."""
        return self.location.norm(dim=-1)

    @property
    def uncertainty(self) -> Tensor:
        """1/κ of the von Mises-Fisher distribution behind the samples, their number accounted for."""
        return self._once("uncertainty", self._inverse_concentration)

    def _inverse_concentration(self) -> Tensor:
        count = self.samples.shape[0]
        # ‖mean of s unit draws‖² overestimates R² by (1 − R²)/s: subtract it.
        squared = (count * self.resultant.double().square() - 1) / (count - 1)
        resultant = squared.clamp(0, 1).sqrt()
        return inverse_mean_resultant_length(self.dim, resultant).reciprocal().to(self.dtype)

    def _scaled(self, scale: float) -> Self:
        apart = self.samples - self.location
        return self._with({"samples": normalize(self.location + math.sqrt(scale) * apart, dim=-1)})

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """Each stored sample ⌊n/s⌋ or ⌈n/s⌉ times, in random order; n = s gives each once."""
        if raw:
            raise InputError("An empirical embedding keeps unit samples only; ask without raw.")
        count = self.samples.shape[0]
        rounds = [
            torch.randperm(count, generator=generator, device=generator.device if generator else "cpu")
            for _ in range(-(-n // count))
        ]
        order = torch.cat(rounds)[:n].to(self.device)
        return self.samples[order]

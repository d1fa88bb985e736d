"""A Gaussian over the weights of a linear head: what the Laplace approximation gives. With diagonal covariance,

    W ~ N(W*, diag(1/(τH + λ)))

H is the averaged curvature of the loss at W*, τ (`scale`) how many observations it stands for, λ
(`prior_precision`) the precision of the prior. The embedding of an image then is Gaussian in closed form,
z_k ~ N(w_k·h, Σ_f h_f² v_kf): one matrix product more than the head itself. `doubtless.laplace.kronecker_posterior`
has the one that knows which weights go together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from doubtless.embedding import Embedding
from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding
from doubtless.errors import InputError


class Posterior(ABC):
    """Any of them: a mean and, at every scale τ and prior precision λ, a Gaussian around it; immutable."""

    weight: Tensor
    """(D, F)"""
    bias: Tensor | None
    """(D,), or None for a head without."""
    scale: float
    prior_precision: float

    @abstractmethod
    def predictive(self, features: Tensor) -> dict[str, Tensor]:
        """The parameters of what `predict` gives, by name: location (n, D) and variance (n, D) or (n, 1)."""

    @abstractmethod
    def predict_grid(self, features: Tensor, points: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
        """What `predict` would be with other τ and λ: location (n, D), the same for all, and variance (G, n, D)
        for G pairs of them."""

    @abstractmethod
    def flat_curvature(self) -> Tensor:
        """The eigenvalues of H, one for each parameter, float64."""

    @abstractmethod
    def to_tensors(self) -> dict[str, Tensor]:
        """Everything it is, for safetensors or a checkpoint; numbers as float64 scalars."""

    @abstractmethod
    def variance_ratio(self) -> float:
        """At most so many times one dimension's variance is another's, for any image."""

    @abstractmethod
    def _draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
        """A weight (D, F) and a bias (D,)."""

    def head(self) -> tuple[Tensor, Tensor | None]:
        """The weight (D, F) and bias (D,) it is around, in the outputs that were given."""
        return self.weight, self.bias

    def predict(self, features: Tensor) -> Embedding:
        """The distribution of every image's embedding: features (n, F) → `projected-gaussian`, n items."""
        return ProjectedGaussianEmbedding(self.predictive(features))

    def predict_joint(
        self, features: Tensor, samples: int, *, generator: torch.Generator | None = None
    ) -> Embedding:
        """An `empirical` embedding: draw j of every image comes from the same weights, so that what two
        images have in common stays in common. `predict` gives each image alone, exactly and far cheaper."""
        features = self._checked(features)
        draws = [self._draw(generator) for _ in range(samples)]
        return Embedding.empirical(torch.stack([linear(features, *draw) for draw in draws]))

    def sample_weights(
        self, n: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """n draws of the head: weights (n, D, F) and biases (n, D), or None."""
        draws = [self._draw(generator) for _ in range(n)]
        weights = torch.stack([weight for weight, _ in draws])
        if self.bias is None:
            return weights, None
        return weights, torch.stack([bias for _, bias in draws if bias is not None])

    def log_marginal(self) -> float:
        """log evidence of λ at this τ, up to what does not depend on λ:
        −½λ‖W*‖² + ½Σ log λ − ½Σ log(τH+λ). It says nothing about τ: the loss is no normalised likelihood,
        and this always falls in τ."""
        curvature = self.flat_curvature()
        precision = self.scale * curvature + self.prior_precision
        evidence = curvature.numel() * math.log(self.prior_precision) - torch.log(precision).sum()
        return 0.5 * float(evidence - self.prior_precision * self.squared_norm())

    def squared_norm(self) -> Tensor:
        """‖W*‖², bias included, float64."""
        parts = (self.weight, self.bias)
        return sum(
            (part.double().square().sum() for part in parts if part is not None),
            start=torch.zeros((), dtype=torch.float64, device=self.weight.device),
        )

    def with_scale(self, scale: float, prior_precision: float | None = None) -> Self:
        """The same head and curvature with another τ and, where given, λ."""
        prior = self.prior_precision if prior_precision is None else prior_precision
        changed = replace(cast(Any, self), scale=scale, prior_precision=prior)  # each of them is a dataclass
        return cast(Self, changed)

    def _check_scale(self) -> None:
        if not self.scale > 0 or not self.prior_precision > 0:
            raise InputError(
                "The scale and prior_precision must be positive, "
                f"got {self.scale:.3g} and {self.prior_precision:.3g}."
            )

    def _checked(self, features: Tensor) -> Tensor:
        width = self.weight.shape[1]
        if features.dim() != 2 or features.shape[1] != width:
            raise InputError(f"Features must have shape (n, {width}), got {tuple(features.shape)}.")
        return features.to(self.weight.dtype)


@dataclass(frozen=True, eq=False)
class DiagonalPosterior(Posterior):
    """Mean, averaged curvature H (not negative), τ and λ of a linear head; immutable.

    >>> weight, curvature = torch.randn(3, 8), torch.rand(3, 8)
    >>> posterior = DiagonalPosterior(weight, None, curvature, None, scale=1000.0, prior_precision=1.0)
    >>> posterior.predict(torch.randn(5, 8)).uncertainty.shape        # (n, F) → (n,)
    torch.Size([5])
    >>> posterior.with_scale(500.0).scale                             # a new one; H stays
    500.0
    """

    weight: Tensor
    """W*, (D, F)."""
    bias: Tensor | None
    """(D,), or None for a head without."""
    weight_curvature: Tensor
    """H of the weights, (D, F)."""
    bias_curvature: Tensor | None
    scale: float
    prior_precision: float

    def __post_init__(self) -> None:
        self._check_scale()
        if (self.bias is None) != (self.bias_curvature is None):
            raise InputError("A bias and its bias_curvature go together: give both or neither.")
        _check_curvature("weight", self.weight, self.weight_curvature)
        if self.bias is not None and self.bias_curvature is not None:
            _check_curvature("bias", self.bias, self.bias_curvature)

    @cached_property
    def weight_variance(self) -> Tensor:
        """1/(τH + λ), (D, F)."""
        return self._precision(self.weight_curvature).reciprocal_()

    @cached_property
    def bias_variance(self) -> Tensor | None:
        """1/(τH + λ), (D,), or None for a head without a bias."""
        return None if self.bias_curvature is None else self._precision(self.bias_curvature).reciprocal_()

    def predictive(self, features: Tensor) -> dict[str, Tensor]:
        """The parameters of what `predict` gives, by name: location and variance, (n, D) each."""
        features = self._checked(features)
        location = linear(features, self.weight, self.bias)  # (n, D)
        variance = linear(features.square(), self.weight_variance, self.bias_variance)  # (n, D)
        return {"location": location, "variance": variance}

    def predict_grid(self, features: Tensor, points: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
        """What `predict` would be with other τ and λ: location (n, D), the same for all, and variance (G, n, D)
        for G pairs of them. 1/(τH + λ) = 1/(H + λ/τ)/τ: points of one λ/τ share a matrix product."""
        features = self._checked(features)
        location, squared = linear(features, self.weight, self.bias), features.square()
        unit: dict[float, Tensor] = {}
        for ratio in {prior / scale for scale, prior in points}:
            bias = None if self.bias_curvature is None else (self.bias_curvature + ratio).reciprocal_()
            unit[ratio] = linear(squared, (self.weight_curvature + ratio).reciprocal_(), bias)
        return location, torch.stack([unit[prior / scale] / scale for scale, prior in points])

    def flat_curvature(self) -> Tensor:
        """H of all parameters in one row, float64."""
        parts = (self.weight_curvature, self.bias_curvature)
        return torch.cat([part.double().reshape(-1) for part in parts if part is not None])

    def variance_ratio(self) -> float:
        """max over features f and dimensions k, l of v_kf/v_lf: a variance Σ_f h_f² v_kf has no larger ratios."""
        columns = self.weight_variance.double()  # (D, F)
        if self.bias_variance is not None:
            columns = torch.cat([columns, self.bias_variance.double().unsqueeze(1)], dim=1)
        return float((columns.amax(0) / columns.amin(0)).max())

    def to(self, target: torch.device | str | torch.dtype) -> DiagonalPosterior:
        """On another device or in another precision."""
        return replace(
            self,
            weight=self.weight.to(target),
            bias=None if self.bias is None else self.bias.to(target),
            weight_curvature=self.weight_curvature.to(target),
            bias_curvature=None if self.bias_curvature is None else self.bias_curvature.to(target),
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything it is, for safetensors or a checkpoint; numbers as float64 scalars."""
        tensors = {
            "weight": self.weight,
            "bias": self.bias,
            "weight_curvature": self.weight_curvature,
            "bias_curvature": self.bias_curvature,
            "scale": torch.tensor(self.scale, dtype=torch.float64),
            "prior_precision": torch.tensor(self.prior_precision, dtype=torch.float64),
        }
        return {name: tensor.detach().contiguous() for name, tensor in tensors.items() if tensor is not None}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> DiagonalPosterior:
        """What `to_tensors` gave."""
        needed = ("weight", "weight_curvature", "scale", "prior_precision")
        if missing := [name for name in needed if name not in tensors]:
            raise InputError(f"A posterior needs {', '.join(needed)}; {', '.join(missing)} is missing.")
        return DiagonalPosterior(
            tensors["weight"],
            tensors.get("bias"),
            tensors["weight_curvature"],
            tensors.get("bias_curvature"),
            scale=float(tensors["scale"]),
            prior_precision=float(tensors["prior_precision"]),
        )

    def _precision(self, curvature: Tensor) -> Tensor:
        return self.scale * curvature + self.prior_precision

    def _draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
        weight = draw_around(self.weight, self._precision(self.weight_curvature), generator)
        if self.bias is None or self.bias_curvature is None:
            return weight, None
        return weight, draw_around(self.bias, self._precision(self.bias_curvature), generator)


def draw_around(mean: Tensor, precision: Tensor, generator: torch.Generator | None) -> Tensor:
    """One draw from N(mean, 1/precision), entry by entry; on the generator's device, then brought over.

    Fused as far as PyTorch goes: in training a small network waits for the launch of every operation.
    """
    device = precision.device if generator is None else generator.device
    noise = torch.randn(precision.shape, generator=generator, dtype=precision.dtype, device=device)
    return torch.addcmul(mean, noise.to(precision.device), precision.rsqrt())


def _check_curvature(name: str, mean: Tensor, curvature: Tensor) -> None:
    if mean.shape != curvature.shape:
        raise InputError(
            f"The curvature of {name} must have its shape {tuple(mean.shape)}, got {tuple(curvature.shape)}."
        )
    if not bool(torch.isfinite(mean).all()) or not bool(torch.isfinite(curvature).all()):
        raise InputError(
            f"The {name} or its curvature has NaN or infinite entries; a posterior must be finite."
        )
    if bool((curvature < 0).any()):
        raise InputError(
            f"The curvature of {name} must be clamped at 0, got an entry of {float(curvature.min()):.3g}."
        )

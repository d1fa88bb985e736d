"""A Gaussian over all weights of a linear head together, of precision τ B ⊗ A + λ: a Kronecker product and a prior.

In the eigenvectors of both factors, B = V diag(b) Vᵀ and A = U diag(a) Uᵀ, weights are independent again,

    VᵀWU ~ N(VᵀW*U, 1/(τ b_d a_f + λ)),

so the predictive of x = (h, 1) is Gaussian with independent coordinates in an output space turned by V,

    Vᵀz ~ N(VᵀW*x, v),    v_d = Σ_f (u_fᵀx)²/(τ a_f b_d + λ).

Cosines do not notice a rotation: the head is stored turned, and what it puts out are embeddings as good as the
others. Where B is the identity the variance is one number per image, s²(x) = xᵀ(τA + λ)⁻¹x = ‖L⁻¹x‖², and is
computed the same way: eigenvectors serve every τ and λ, a Cholesky factor L one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from doubtless.errors import InputError
from doubtless.laplace.kronecker import KroneckerGGN
from doubtless.laplace.posterior import DiagonalPosterior, Posterior


class Eigen(NamedTuple):
    """Both factors of a curvature in their eigenvectors; eigenvalues not negative."""

    input_curvature: Tensor  # (F',), a
    input_basis: Tensor  # (F', F'), U, eigenvectors in columns
    output_curvature: Tensor  # (D,), b, 1 on average; (1,) for the identity
    output_basis: Tensor | None  # (D, D), V; None: the identity


@torch.no_grad()
def eigen(ggn: KroneckerGGN) -> Eigen:
    """The eigenvectors of both factors, in float64; negative eigenvalues are taken as 0.

    Nothing is decided by a value, but `torch.linalg.eigh` itself waits for a GPU.
    """
    values, basis = torch.linalg.eigh(ggn.of_inputs.double())
    values = values.clamp_min_(0)
    if ggn.of_outputs is None:
        return Eigen(values, basis, values.new_ones(1), None)
    of_outputs, output_basis = torch.linalg.eigh(ggn.of_outputs.double())
    of_outputs = of_outputs.clamp_min_(0)
    mean = of_outputs.mean()
    return Eigen(values, basis, torch.where(mean > 0, of_outputs / mean, 1.0), output_basis)


@dataclass(frozen=True, eq=False)
class KroneckerPosterior(Posterior):
    """Mean, both factors' eigenvalues, the inputs' eigenvectors, τ and λ of a linear head; immutable.

    >>> from doubtless.laplace import kronecker_ggn
    >>> head, features, labels = torch.nn.Linear(8, 3), torch.randn(20, 8), torch.arange(20) % 4
    >>> ggn = kronecker_ggn(features, head.weight, head.bias, labels, margin=0.7)
    >>> posterior = KroneckerPosterior.of(head.weight, head.bias, ggn, scale=1000.0, prior_precision=1.0)
    >>> posterior.predict(torch.randn(5, 8)).uncertainty.shape        # (n, F) → (n,)
    torch.Size([5])
    """

    weight: Tensor
    """VᵀW*, (D, F): the head in the outputs' eigenvectors."""
    bias: Tensor | None
    """(D,), turned likewise, or None for a head without."""
    input_basis: Tensor
    """U, (F', F'): F' counts the 1 of a bias, which comes last."""
    input_curvature: Tensor
    """a, (F',)."""
    output_curvature: Tensor
    """b, (D,), or (1,) where B is the identity: the variance is then one number per image."""
    scale: float
    prior_precision: float
    output_basis: Tensor | None = None
    """V, (D, D), by which the head was turned; None: it was not."""

    def __post_init__(self) -> None:
        self._check_scale()
        dim, width = self.weight.shape
        inputs = width + (self.bias is not None)
        shapes: dict[str, tuple[Tensor, list[tuple[int, ...]]]] = {
            "input_basis": (self.input_basis, [(inputs, inputs)]),
            "input_curvature": (self.input_curvature, [(inputs,)]),
            "output_curvature": (self.output_curvature, [(dim,), (1,)]),
        }
        if self.output_basis is not None:
            shapes["output_basis"] = (self.output_basis, [(dim, dim)])
        for name, (tensor, accepted) in shapes.items():
            if tuple(tensor.shape) not in accepted:
                raise InputError(
                    f"The {name} of a head {(dim, width)} must have shape {accepted[0]}, "
                    f"got {tuple(tensor.shape)}."
                )
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(f"The {name} has NaN or infinite entries; a posterior must be finite.")
        for name, tensor in (("input", self.input_curvature), ("output", self.output_curvature)):
            if bool((tensor < 0).any()):
                raise InputError(
                    f"The {name}_curvature must be clamped at 0, got an entry of {float(tensor.min()):.3g}."
                )

    @staticmethod
    def of(
        weight: Tensor,
        bias: Tensor | None,
        curvature: KroneckerGGN | Eigen,
        *,
        scale: float,
        prior_precision: float,
    ) -> KroneckerPosterior:
        """Around a head (D, F) as it is, not turned, from a curvature's factors or their eigenvectors."""
        found = eigen(curvature) if isinstance(curvature, KroneckerGGN) else curvature
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if found.output_basis is not None:
            turn = found.output_basis.to(weight.device, torch.float64).T
            exact = weight.double(), None if bias is None else bias.double()
            weight, bias = (
                (turn @ exact[0]).to(weight.dtype),
                None if exact[1] is None else (turn @ exact[1]).to(weight.dtype),
            )
        return KroneckerPosterior(
            weight.clone(),
            None if bias is None else bias.clone(),
            found.input_basis.to(weight).contiguous(),
            found.input_curvature.to(weight),
            found.output_curvature.to(weight),
            scale=scale,
            prior_precision=prior_precision,
            output_basis=None if found.output_basis is None else found.output_basis.to(weight).contiguous(),
        )

    @property
    def factors(self) -> Eigen:
        """Both factors of the curvature in their eigenvectors."""
        return Eigen(self.input_curvature, self.input_basis, self.output_curvature, self.output_basis)

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as they were before they were turned."""
        if self.output_basis is None:
            return self.weight, self.bias
        return self.output_basis @ self.weight, None if self.bias is None else self.output_basis @ self.bias

    def predictive(self, features: Tensor) -> dict[str, Tensor]:
        """Location (n, D) in the turned space, and variance (n, D), or (n, 1) where B is the identity."""
        features = self._checked(features)
        variance = self._shares(features) @ self._precision().reciprocal_().T
        return {"location": linear(features, self.weight, self.bias), "variance": variance}

    def predict_grid(self, features: Tensor, points: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
        """What `predict` would be with other τ and λ: location (n, D) and variance (G, n, D).
        1/(τab + λ) = 1/(ab + λ/τ)/τ: points of one λ/τ share a matrix product."""
        features = self._checked(features)
        location, shares = linear(features, self.weight, self.bias), self._shares(features)
        products = torch.outer(self.output_curvature, self.input_curvature)
        unit = {
            ratio: shares @ (products + ratio).reciprocal_().T
            for ratio in {prior / scale for scale, prior in points}
        }
        variance = torch.stack([unit[prior / scale] / scale for scale, prior in points])
        return location, variance.expand(-1, -1, location.shape[1])

    def flat_curvature(self) -> Tensor:
        """a_f b_d of all parameters in one row, float64."""
        outputs = self.output_curvature.double().expand(self.weight.shape[0])
        return torch.outer(outputs, self.input_curvature.double()).reshape(-1)

    def variance_ratio(self) -> float:
        """That of the input direction with the largest curvature: in all others variances differ less."""
        outputs, largest = self.output_curvature.double(), self.input_curvature.double().max()
        ends = self.scale * largest * torch.stack([outputs.max(), outputs.min()]) + self.prior_precision
        return float(ends[0] / ends[1])

    def to(self, target: torch.device | str | torch.dtype) -> KroneckerPosterior:
        """On another device or in another precision."""
        return replace(
            self,
            weight=self.weight.to(target),
            bias=None if self.bias is None else self.bias.to(target),
            input_basis=self.input_basis.to(target),
            input_curvature=self.input_curvature.to(target),
            output_curvature=self.output_curvature.to(target),
            output_basis=None if self.output_basis is None else self.output_basis.to(target),
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything it is, for safetensors or a checkpoint; numbers as float64 scalars."""
        tensors = {
            "weight": self.weight,
            "bias": self.bias,
            "input_basis": self.input_basis,
            "input_curvature": self.input_curvature,
            "output_curvature": self.output_curvature,
            "output_basis": self.output_basis,
            "scale": torch.tensor(self.scale, dtype=torch.float64),
            "prior_precision": torch.tensor(self.prior_precision, dtype=torch.float64),
        }
        return {name: tensor.detach().contiguous() for name, tensor in tensors.items() if tensor is not None}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> KroneckerPosterior:
        """What `to_tensors` gave."""
        needed = ("weight", "input_basis", "input_curvature", "output_curvature", "scale", "prior_precision")
        if missing := [name for name in needed if name not in tensors]:
            raise InputError(f"A posterior needs {', '.join(needed)}; {', '.join(missing)} is missing.")
        return KroneckerPosterior(
            tensors["weight"],
            tensors.get("bias"),
            tensors["input_basis"],
            tensors["input_curvature"],
            tensors["output_curvature"],
            scale=float(tensors["scale"]),
            prior_precision=float(tensors["prior_precision"]),
            output_basis=tensors.get("output_basis"),
        )

    def _shares(self, features: Tensor) -> Tensor:
        """(u_fᵀx)², (n, F')."""
        return input_shares(features, self.input_basis, has_bias=self.bias is not None)

    def _precision(self) -> Tensor:
        """τ b_d a_f + λ, (D, F'), or (1, F')."""
        return torch.outer(self.output_curvature, self.input_curvature) * self.scale + self.prior_precision

    def _draw(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
        dim, width = self.weight.shape
        shape = dim, len(self.input_basis)
        device = self.weight.device if generator is None else generator.device
        noise = torch.randn(shape, generator=generator, dtype=self.weight.dtype, device=device)
        drawn = (noise.to(self.weight.device) * self._precision().rsqrt_()) @ self.input_basis.T
        weight = self.weight + drawn[:, :width]
        return weight, None if self.bias is None else self.bias + drawn[:, width]


def input_shares(features: Tensor, basis: Tensor, *, has_bias: bool) -> Tensor:
    """(u_fᵀx)², (n, F'), of features (n, F) without the 1 of a bias, which meets the last row of the basis."""
    width = features.shape[1]
    return linear(features, basis[:width].T, basis[width] if has_bias else None).square()


def posterior_from_tensors(tensors: Mapping[str, Tensor]) -> Posterior:
    """The posterior that `to_tensors` of either kind gave."""
    if "input_basis" in tensors:
        return KroneckerPosterior.from_tensors(tensors)
    return DiagonalPosterior.from_tensors(tensors)

"""The running Kronecker curvature of online training, and draws of the head from it.

Both factors are averaged along the way as `OnlineCurvature` averages its diagonal, but not clamped: their negative
eigenvalues are known only once they are factorised, which happens every `refactor` steps. In between draws

    W = W_t + V (E ∘ (τ b aᵀ + λ)^−½) Uᵀ,    E standard normal, (D, F'),

come from the last eigenvectors, with τ and λ as they are now. A step asks the device nothing; `torch.linalg.eigh`
waits for a GPU, so every `refactor`-th step does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.laplace.kronecker import KroneckerGGN
from doubtless.laplace.kronecker_posterior import Eigen, KroneckerPosterior, eigen, input_shares
from doubtless.laplace.online import share_of_newest
from doubtless.laplace.posterior import Posterior


class KroneckerCurvature(nn.Module):
    """Averaged factors of a (dim, features) head's curvature; its buffers travel with checkpoints.

    >>> from doubtless.laplace import kronecker_ggn
    >>> head, features, labels = nn.Linear(128, 16), torch.randn(8, 128), torch.arange(8) % 2
    >>> curvature = KroneckerCurvature(16, 128)
    >>> weight, bias = curvature.sample(head.weight, head.bias, scale=1e4, prior_precision=1.0)
    >>> curvature.update(*kronecker_ggn(features, weight, bias, labels, margin=0.7))
    >>> int(curvature.steps)
    1

    `memory` is α, the share of the newest batch. Without `turns`, B is the identity (geometry `linear`). Where
    nothing is `running` only what a posterior needs is kept, not the averages themselves.
    """

    of_inputs: Tensor | None
    of_outputs: Tensor | None
    input_curvature: Tensor
    input_basis: Tensor
    output_curvature: Tensor | None
    output_basis: Tensor | None
    steps: Tensor
    updates: Tensor

    def __init__(
        self,
        dim: int,
        features: int,
        *,
        memory: float = 1e-3,
        has_bias: bool = True,
        turns: bool = True,
        running: bool = True,
        refactor: int = 100,
    ) -> None:
        super().__init__()
        if not 0 < memory <= 1:
            raise InputError(f"The memory must lie in (0, 1], got {memory}.")
        if refactor < 1:
            raise InputError(
                f"It is factorised anew every so many steps, 1 or more, got refactor {refactor}."
            )
        self.memory, self.refactor, self.has_bias = memory, refactor, has_bias
        inputs = features + has_bias
        averages = {
            "of_inputs": torch.zeros(inputs, inputs, dtype=torch.float64) if running else None,
            "of_outputs": torch.zeros(dim, dim, dtype=torch.float64) if running and turns else None,
        }
        for name, average in averages.items():
            self.register_buffer(name, average)
        self.register_buffer("input_curvature", torch.zeros(inputs))
        self.register_buffer("input_basis", torch.eye(inputs))
        self.register_buffer("output_curvature", torch.ones(dim) if turns else None)
        self.register_buffer("output_basis", torch.eye(dim) if turns else None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._updates = 0  # the same number, known without asking the device

    @torch.no_grad()
    def update(
        self, of_inputs: Tensor, of_outputs: Tensor | None, valid: Tensor | bool | None = None
    ) -> None:
        """Takes in one batch's factors. Where `valid` is false nothing changes; by default a batch is valid if
        any entry is not 0."""
        if self.of_inputs is None:
            raise InputError("This curvature is not running: make it with running=True to take in batches.")
        if valid is None:
            valid = (of_inputs != 0).any()
        taken = torch.as_tensor(valid, device=self.steps.device)
        self.steps.add_(taken)
        share = share_of_newest(self.steps, self.memory, torch.float64)
        for average, batch in ((self.of_inputs, of_inputs), (self.of_outputs, of_outputs)):
            if average is not None and batch is not None:
                average.lerp_(torch.where(taken, batch.detach().to(average.dtype), average), share)
        if self._updates % self.refactor == 0:
            self.settle()
        self._updates += 1
        self.updates.add_(1)

    @torch.no_grad()
    def settle(self) -> None:
        """Factorises the averages as they are now."""
        if self.of_inputs is not None:
            self._take(eigen(KroneckerGGN(self.of_inputs, self.of_outputs)))

    @torch.no_grad()
    def assign(self, factors: Eigen) -> None:
        """Takes a curvature computed elsewhere, as if it were the only batch so far."""
        self._take(factors)
        if self.of_inputs is not None:
            self.of_inputs.copy_(_product(factors.input_basis, factors.input_curvature))
        if self.of_outputs is not None and factors.output_basis is not None:
            self.of_outputs.copy_(_product(factors.output_basis, factors.output_curvature))
        self.steps.fill_(1)

    def keep(self, found: Posterior) -> None:
        """Takes over the curvature of a posterior that `fit` has made."""
        if not isinstance(found, KroneckerPosterior):
            raise InputError(
                f"A Kronecker curvature keeps a KroneckerPosterior, got a {type(found).__name__}."
            )
        self.assign(found.factors)

    def sample(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        scale: float | Tensor,
        prior_precision: float | Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One draw of the head around (weight, bias); their gradient is that of the draw."""
        deviation = self._precision(scale, prior_precision).rsqrt_()
        device = deviation.device if generator is None else generator.device
        shape = len(weight), len(self.input_basis)
        noise = torch.randn(shape, generator=generator, dtype=deviation.dtype, device=device)
        drawn = (noise.to(deviation.device) * deviation) @ self.input_basis.T
        if self.output_basis is not None:
            drawn = self.output_basis @ drawn
        width = weight.shape[1]
        return weight + drawn[:, :width], None if bias is None else bias + drawn[:, width]

    def posterior(
        self, weight: Tensor, bias: Tensor | None, *, scale: float, prior_precision: float
    ) -> KroneckerPosterior:
        """The posterior around a head as it is now."""
        return KroneckerPosterior.of(weight, bias, self.factors, scale=scale, prior_precision=prior_precision)

    def predictive(
        self, head: nn.Linear, features: Tensor, scale: Tensor, prior_precision: Tensor
    ) -> dict[str, Tensor]:
        """Location and variance for features (n, F) by tensors alone: for graphs, which decide nothing."""
        location = head(features)
        if self.output_basis is not None:
            location = location @ self.output_basis
        shares = input_shares(features, self.input_basis, has_bias=self.has_bias)
        return {
            "location": location,
            "variance": shares @ self._precision(scale, prior_precision).reciprocal().T,
        }

    @property
    def factors(self) -> Eigen:
        """What was factorised last."""
        return Eigen(self.input_curvature, self.input_basis, self._of_outputs(), self.output_basis)

    def mean(self) -> Tensor:
        """The mean eigenvalue of H, as it was factorised last."""
        return self.input_curvature.mean()

    def _precision(self, scale: float | Tensor, prior_precision: float | Tensor) -> Tensor:
        """τ b_d a_f + λ, (D, F'), or (1, F')."""
        product = torch.outer(self._of_outputs(), self.input_curvature)
        return product * scale + prior_precision

    def _of_outputs(self) -> Tensor:
        """b, (D,), or (1,)."""
        return self.input_curvature.new_ones(1) if self.output_curvature is None else self.output_curvature

    def _take(self, factors: Eigen) -> None:
        self.input_curvature.copy_(factors.input_curvature)
        self.input_basis.copy_(factors.input_basis)
        if self.output_curvature is not None:
            self.output_curvature.copy_(factors.output_curvature)
        if self.output_basis is not None and factors.output_basis is not None:
            self.output_basis.copy_(factors.output_basis)

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        self._updates = int(self.updates)


def _product(basis: Tensor, values: Tensor) -> Tensor:
    exact = basis.double()
    return (exact * values.double()) @ exact.T

"""`Embedding`: an immutable batch of n distributions over embedding space, the one noun of this library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError

FAMILIES: dict[str, type[Embedding]] = {}
"""Family name → class. A family registers itself by being defined."""


class Embedding:
    """n distributions over a D-dimensional embedding space.

    Build one with the constructor of its family; every family answers the same questions:

    >>> cats = Embedding.gaussian(torch.randn(5, 8), variance=torch.rand(5, 8))
    >>> len(cats), cats.dim, cats.family
    (5, 8, 'gaussian')
    >>> cats.direction.shape, cats.uncertainty.shape       # unit vectors, higher = less sure
    (torch.Size([5, 8]), torch.Size([5]))
    >>> cats.sample(100).shape                             # unit vectors
    torch.Size([100, 5, 8])
    >>> cats[:2].pairwise_expected_squared_distance(cats).shape
    torch.Size([2, 5])

    A family sets `family`, `item_axes` (its parameters, and which axis of each runs over the items) and
    whether it lives on the unit sphere (`is_unit`); the rest of this class follows from those.
    """

    family: ClassVar[str]
    item_axes: ClassVar[Mapping[str, int]]
    is_unit: ClassVar[bool] = True

    _parameters: dict[str, Tensor]
    _answers: dict[str, Any]  # what was computed once: parameters never change, so neither do answers

    def __init_subclass__(cls) -> None:
        FAMILIES[cls.family] = cls

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        for name, value in parameters.items():
            if not torch.is_tensor(value) or not value.is_floating_point():
                got = value.dtype if torch.is_tensor(value) else type(value).__name__
                raise InputError(f"The {name} must be a floating-point tensor, got {got}.")
            if not bool(torch.isfinite(value).all()):
                raise InputError(f"The {name} has NaN or infinite entries; an embedding must be finite.")
        object.__setattr__(self, "_parameters", dict(parameters))
        object.__setattr__(self, "_answers", {})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An Embedding is immutable; {name} cannot be set.")

    # -- constructors, one per family ----------------------------------------------------------------

    @staticmethod
    def point(location: Tensor) -> Embedding:
        """Points (n, D) without uncertainty: what a deterministic network gives."""
        return FAMILIES["point"]({"location": location})

    @staticmethod
    def gaussian(location: Tensor, variance: Tensor) -> Embedding:
        """Gaussians with mean (n, D) and variance (n, 1) or (n, D)."""
        return FAMILIES["gaussian"]({"location": location, "variance": variance})

    @staticmethod
    def projected_gaussian(location: Tensor, variance: Tensor) -> Embedding:
        """z/‖z‖ of a Gaussian z with mean (n, D) and variance (n, 1) or (n, D): LAM's predictive."""
        return FAMILIES["projected-gaussian"]({"location": location, "variance": variance})

    @staticmethod
    def vmf(direction: Tensor, concentration: Tensor) -> Embedding:
        """Von Mises-Fisher distributions around directions (n, D) of any length, concentration (n,) from 0 on.

        The length of a direction says nothing of the distribution; it is kept as the length of `location`.
        """
        return FAMILIES["vmf"]({"location": direction, "concentration": concentration})

    @staticmethod
    def empirical(samples: Tensor) -> Embedding:
        """Samples (s, n, D), s ≥ 2: MC dropout, ensembles, joint weight samples. Normalised on the way in."""
        return FAMILIES["empirical"]({"samples": samples})

    # -- the questions -------------------------------------------------------------------------------

    @property
    def location(self) -> Tensor:
        """The raw location parameter, (n, D)."""
        return self._parameters["location"]

    @property
    def direction(self) -> Tensor:
        """Unit vectors (n, D): what cosine search uses. A zero location stays zero."""
        return self._once("direction", lambda: normalize(self.location, dim=-1))

    @property
    def uncertainty(self) -> Tensor | None:
        """One number per item, (n,), higher is less sure; None for points."""
        raise NotImplementedError

    @property
    def resultant(self) -> Tensor:
        """R = ‖E u‖ ∈ (0, 1], u the unit embedding, (n,). 1 for points."""
        raise NotImplementedError

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """n draws (n, items, D): unit vectors, or, with `raw`, what they were before normalisation."""
        raise NotImplementedError

    def scaled(self, scale: float) -> Self:
        """The same around the same locations with `scale` times the variance; points have none, and stay.

        Gaussians: variance × scale; von Mises-Fisher: concentration / scale; samples: deviations from their mean
        × √scale, on the sphere again.

        >>> cats = Embedding.gaussian(torch.zeros(1, 2), variance=torch.ones(1, 1))
        >>> cats.scaled(4.0).uncertainty / cats.uncertainty
        tensor([4.])
        """
        if not 0 < scale < math.inf:
            raise InputError(f"A variance is scaled by a number above 0, got {scale}.")
        return self if scale == 1 else self._scaled(scale)

    def sample_scaled(
        self, n: int, scales: Sequence[float], *, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Unit draws (n, items, D) of `scaled` at each scale in turn, by the same luck at all of them."""
        state = generator.get_state()
        for scale in scales:
            generator.set_state(state)
            yield self.scaled(scale).sample(n, generator=generator)

    @property
    def mean_unit_vector(self) -> Tensor:
        """E u = R · direction, (n, D): expected squared distances are inner products of these."""
        return self.resultant.unsqueeze(-1) * self.direction

    def expected_squared_distance(self, other: Embedding) -> Tensor:
        """E‖u − v‖² row by row, (n,): item i of this one against item i of the other."""
        self._must_be_comparable(other)
        if len(self) != len(other):
            raise InputError(f"Row by row needs equal lengths, got {len(self)} and {len(other)} items.")
        return 2 - 2 * (self.mean_unit_vector * other.mean_unit_vector).sum(-1)

    def pairwise_expected_squared_distance(self, other: Embedding) -> Tensor:
        """E‖u − v‖² of every pair, (n, m)."""
        self._must_be_comparable(other)
        return 2 - 2 * self.mean_unit_vector @ other.mean_unit_vector.T

    # -- a batch -------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The tensors that define it, by name."""
        return dict(self._parameters)

    @property
    def dim(self) -> int:
        """D, the dimension of the embedding space."""
        return self.location.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return next(iter(self._parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(iter(self._parameters.values())).dtype

    def __len__(self) -> int:
        name, axis = next(iter(self.item_axes.items()))
        return self._parameters[name].shape[axis]

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Self:
        """A batch again, also for one integer: `embedding[3]` has one item."""
        everything = torch.arange(len(self), device=self.device)
        if isinstance(index, slice):
            rows = everything[index]
        else:
            rows = everything[torch.as_tensor(index, device=self.device)].reshape(-1)
        axes = self.item_axes.items()
        return self._with({name: self._parameters[name].index_select(axis, rows) for name, axis in axes})

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """On another device or in another precision."""
        return self._with({name: value.to(target) for name, value in self._parameters.items()})

    def detach(self) -> Self:
        """The same distributions without gradient."""
        return self._with({name: value.detach() for name, value in self._parameters.items()})

    @staticmethod
    def cat(parts: Sequence[Embedding]) -> Embedding:
        """One batch from several of the same family and dimension."""
        if not parts:
            raise InputError("Embedding.cat needs at least one part, got none.")
        families = sorted({part.family for part in parts})
        if len(families) > 1:
            raise InputError(f"Embedding.cat joins one family, got {', '.join(families)}.")
        if len({part.dim for part in parts}) > 1:
            raise InputError(
                f"Embedding.cat joins one dimension, got {sorted({part.dim for part in parts})}."
            )
        first = parts[0]
        return first._with(
            {
                name: torch.cat([part._parameters[name] for part in parts], dim=axis)
                for name, axis in first.item_axes.items()
            }
        )

    def save(
        self, path: str | Path, *, ids: Sequence[str] | None = None, labels: Tensor | None = None
    ) -> None:
        """Writes safetensors: the parameters, and ids and labels where given."""
        from doubtless.embedding.storage import save_embedding

        save_embedding(path, self, ids=ids, labels=labels)

    @staticmethod
    def load(path: str | Path) -> Embedding:
        """Reads what `save` wrote (`doubtless.embedding.read_embedding` gives ids and labels too)."""
        from doubtless.embedding.storage import read_embedding

        return read_embedding(path).embedding

    def __repr__(self) -> str:
        return f"Embedding({self.family}, items={len(self)}, dim={self.dim}, device={str(self.device)!r})"

    # -- for the families ----------------------------------------------------------------------------

    def _scaled(self, scale: float) -> Self:
        """`scaled` by another number than 1."""
        raise NotImplementedError

    def _with(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same family around tensors that are known to be valid."""
        new = object.__new__(type(self))
        object.__setattr__(new, "_parameters", dict(parameters))
        object.__setattr__(new, "_answers", {})
        return new

    def _once(self, name: str, compute: Any) -> Any:
        if name not in self._answers:
            self._answers[name] = compute()
        return self._answers[name]

    def _must_be_comparable(self, other: Embedding) -> None:
        if self.dim != other.dim:
            raise InputError(f"Distances need equal dimensions, got {self.dim} and {other.dim}.")
        if self.is_unit != other.is_unit:
            raise InputError(
                f"Embeddings of family {self.family} and {other.family} live in different spaces (unit sphere "
                "and raw); compare two unit families, or two Gaussians."
            )


def check_gaussian(location: Tensor, variance: Tensor) -> None:
    """Refuses shapes that do not fit together and negative variances."""
    check_matrix("location", location)
    n, dim = location.shape
    if tuple(variance.shape) not in {(n, 1), (n, dim)}:
        raise InputError(
            f"The variance must have shape ({n}, 1) or ({n}, {dim}), got {tuple(variance.shape)}."
        )
    if bool((variance < 0).any()):
        raise InputError(f"The variance must not be negative, got {float(variance.min()):.3g}.")


def check_matrix(name: str, value: Tensor, axes: str = "(n, D)") -> None:
    """Refuses a parameter that has not as many axes as its shape says."""
    expected = axes.count(",") + 1
    if value.dim() != expected:
        raise InputError(f"The {name} must have shape {axes}, got {tuple(value.shape)}.")
    if value.shape[-1] == 0:
        raise InputError(f"The {name} must have at least one dimension, got shape {tuple(value.shape)}.")

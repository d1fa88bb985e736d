"""Direction and uncertainty from the parameters of a family, as graphs of plain operations of fixed shape.

They are the closed forms of `doubtless.embedding`, in float64 where those are. Two things differ, because a
graph cannot ask for more nodes or block by block: the quadrature behind a projected Gaussian has as many
nodes as the worst case of the model needs, and the Chebyshev series behind 1/κ is summed by Clenshaw's
recurrence instead of by cosines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.sphere.bessel import LARGEST_CONCENTRATION, _bessel_ratio, _inverse_table
from doubtless.sphere.projected_gaussian import LAST_NODE, LEAST, LEAST_LENGTH, SMALL, STEP

TAIL = 1e-13
"""What the nodes left out may add to E u, relative to it: 1e-6 of a 1 − R of `SMALL`, below which it is not
used."""
SHARES = 400
"""So many ratios of variance to squared length are looked at for the worst case."""

Answers = dict[str, Tensor]


class FamilyAnswers(nn.Module):
    """Parameters by name to `direction` (n, D), `uncertainty` (n,) unless there is none, and what is cheap
    beside."""

    def forward(self, parameters: Answers) -> Answers:
        """The answers to n items."""
        raise NotImplementedError


def family_answers(family: str, dim: int, *, spread: float = 1.0) -> FamilyAnswers:
    """The answers of one family in a space of `dim` dimensions; `spread` as in `nodes_needed`."""
    if family in ("point", "gaussian"):
        return LocationAnswers()
    if dim < 2:
        raise InputError(
            f"A {family} embedding of one dimension cannot be exported; train with model.dim from 2 on."
        )
    if family == "vmf":
        return VmfAnswers(dim)
    if family == "empirical":
        return EmpiricalAnswers(dim)
    return ProjectedGaussianAnswers(dim, nodes_needed(dim, spread))


class LocationAnswers(FamilyAnswers):
    """Points and Gaussians: the unit vector of the location; tr Σ."""

    def forward(self, parameters: Answers) -> Answers:
        """Direction and, with a variance, uncertainty."""
        location, variance = parameters["location"], parameters.get("variance")
        found = {"direction": normalize(location, dim=-1)}
        if variance is not None:
            found["uncertainty"] = variance.expand_as(location).sum(-1)
        return found | parameters


class VmfAnswers(FamilyAnswers):
    """1/κ, and R = A_D(κ)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, parameters: Answers) -> Answers:
        """Direction, uncertainty and resultant."""
        location, concentration = parameters["location"], parameters["concentration"]
        kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
        resultant = kappa * _bessel_ratio(self.dim / 2 - 1, kappa * kappa)
        return {
            "direction": normalize(location, dim=-1),
            "uncertainty": concentration.reciprocal(),
            "resultant": resultant.to(location.dtype),
        } | parameters


class EmpiricalAnswers(FamilyAnswers):
    """1/κ of the samples' mean, their number accounted for. The samples themselves stay inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inverse = InverseConcentration(dim)

    def forward(self, parameters: Answers) -> Answers:
        """Direction, uncertainty, mean and its length, from samples (s, n, D)."""
        samples = normalize(parameters["samples"], dim=-1)  # (s, n, D)
        location, count = samples.mean(0), samples.shape[0]
        length = torch.linalg.vector_norm(location, dim=-1)
        squared = ((count * length.double().square() - 1) / (count - 1)).clamp(0, 1)
        resultant = squared.sqrt()
        return {
            "direction": normalize(location, dim=-1),
            "uncertainty": self.inverse(resultant, 1 - resultant).to(location.dtype),
            "location": location,
            "resultant": length,
        }


class ProjectedGaussianAnswers(FamilyAnswers):
    """E[z/‖z‖] by the midpoint rule of `doubtless.sphere.projected_gaussian`, with a fixed number of nodes."""

    scaled_t_squared: Tensor
    log_weight: Tensor

    def __init__(self, dim: int, nodes: int) -> None:
        super().__init__()
        x = (torch.arange(nodes, dtype=torch.float64) + 0.5) * STEP
        self.nodes = nodes
        self.register_buffer("scaled_t_squared", x.sinh().square())
        self.register_buffer("log_weight", (x.cosh() * (2 * STEP / math.sqrt(math.pi))).log())
        self.inverse = InverseConcentration(dim)

    def forward(self, parameters: Answers) -> Answers:
        """Direction, uncertainty and resultant."""
        location = parameters["location"]
        m, v = location.double(), parameters["variance"].expand_as(location).double()  # (n, D)
        mean = self._mean(m, v)
        length = torch.linalg.vector_norm(mean, dim=1, keepdim=True)  # (n, 1)
        resultant = length.squeeze(1).clamp(max=1)
        uncertainty = self.inverse(resultant, _complement(m, v, resultant))
        return {
            "direction": (mean / length.clamp(min=LEAST_LENGTH)).to(location.dtype),
            "uncertainty": uncertainty.to(location.dtype),
            "resultant": resultant.to(location.dtype),
        } | parameters

    def _mean(self, m: Tensor, v: Tensor) -> Tensor:
        q = (m.square() + v).sum(1, keepdim=True).clamp(min=LEAST)  # (n, 1)
        t_squared = self.scaled_t_squared / q  # (n, nodes)
        factors = 1 + 2 * t_squared.unsqueeze(2) * v.unsqueeze(1)  # (n, nodes, D)
        shrunk = factors.reciprocal()
        exponent = torch.matmul(shrunk, m.square().unsqueeze(2)).squeeze(2)  # (n, nodes)
        height = (self.log_weight - t_squared * exponent - 0.5 * factors.log().sum(2)).exp()
        return torch.matmul(height.unsqueeze(1), shrunk).squeeze(1) * m / q.sqrt()


class InverseConcentration(nn.Module):
    """1/κ with A_D(κ) = R, from R and 1 − R: (1 − R)(1 + R)/(R G), G = Σ_k c_k T_k(2R² − 1) by Clenshaw's
    recurrence."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        _, coefficients = _inverse_table(dim, torch.device("cpu"))
        self.coefficients: list[float] = coefficients.tolist()

    def forward(self, resultant: Tensor, complement: Tensor) -> Tensor:
        """(n,) from R and 1 − R, (n,) each."""
        twice = 4 * resultant.square() - 2
        after = before = torch.zeros_like(twice)
        for coefficient in reversed(self.coefficients[1:]):
            after, before = coefficient + twice * after - before, after
        scale = self.coefficients[0] + 0.5 * twice * after - before
        return complement * (1 + resultant) / (resultant * scale)


def nodes_needed(dim: int, spread: float) -> int:
    """Nodes of the midpoint rule beyond which nothing counts, for any location and any variances.

    `spread` bounds the ratio of two variances. With f = Σv/q every node adds at most

        √3 (2h/√π) cosh x · (1 + 2s²f/(D·spread))^(−D/2−1) · exp(−(1−f) s²/(1+2s²f)),     s = sinh x,

    relative to E u: E u_l = m_l E[1/‖w‖] with E‖w‖² ≤ 3q, which is at least m_l/√(3q) by Jensen's inequality,
    no v_k is smaller than Σv/(D·spread), and none larger than Σv.
    """
    x = (torch.arange(LAST_NODE, dtype=torch.float64) + 0.5) * STEP
    f = torch.cat(
        [torch.logspace(-12, 0, SHARES, dtype=torch.float64), torch.linspace(0, 1, SHARES).double()]
    )
    squared, share = x.sinh().square(), f.unsqueeze(1)
    decay = (dim / 2 + 1) * torch.log1p(2 * squared * share / (dim * spread))
    decay = decay + (1 - share) * squared / (1 + 2 * squared * share)  # (f, nodes)
    terms = (math.sqrt(3) * 2 * STEP / math.sqrt(math.pi)) * x.cosh() * torch.exp(-decay)
    tails = terms.flip(1).cumsum(1).flip(1).amax(0)  # (nodes,), all from this node on
    enough = (tails <= TAIL).nonzero()
    return int(enough[0]) if len(enough) else LAST_NODE


def _complement(m: Tensor, v: Tensor, resultant: Tensor) -> Tensor:
    """1 − R, where that is small from its first order in v: ½ Σ_k v_k (1 − u_k²)/‖m‖²."""
    squared = m.square()
    norm = squared.sum(1, keepdim=True)  # (n, 1)
    across = (v * (norm - squared)).sum(1)
    first_order = 0.5 * across / norm.squeeze(1).square()
    return torch.where(first_order < SMALL, first_order, 1 - resultant)

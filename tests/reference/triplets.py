"""Triplets by draws: τ = ‖a − p‖² − ‖a − n‖² sampled in chunks, its moments with their standard errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    mean: float
    mean_error: float
    variance: float
    variance_error: float

    def misses_mean(self, value: float) -> float:
        """How many standard errors away a value is."""
        return abs(value - self.mean) / self.mean_error

    def misses_variance(self, value: float) -> float:
        return abs(value - self.variance) / self.variance_error


def estimate(draw: Callable[[int], Tensor], draws: int, chunk: int) -> Estimate:
    """Mean and variance of a random number with their standard errors; `draw(n)` gives n of them."""
    values = torch.cat([draw(min(chunk, draws - start)) for start in range(0, draws, chunk)]).double()
    centered = values - values.mean()
    variance = centered.square().mean()
    fourth = centered.pow(4).mean()
    return Estimate(
        float(values.mean()),
        float((variance / draws).sqrt()),
        float(variance),
        float(((fourth - variance.square()) / draws).sqrt()),
    )


def equation_12(mu: tuple[Tensor, Tensor, Tensor], var: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Var τ as the paper prints it, dimension by dimension, summed."""
    (a, p, n), (sa, sp, sn) = mu, var
    half = sp * (sp + 2 * p**2) + sn * (sn + 2 * n**2) - 4 * sa * p * n
    half = half - 2 * a * (a * (p**2 + n**2) - 2 * p * sp - 2 * n * sn)
    half = half + 2 * (sa + a**2) * ((sp + p**2) + (sn + n**2))
    return (2 * half).sum(-1)

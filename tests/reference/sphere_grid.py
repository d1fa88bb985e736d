"""Integrals over the unit sphere of R³, by a product rule exact for polynomials of degree 199."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def sphere_grid(heights: int = 200, angles: int = 200) -> tuple[Tensor, Tensor]:
    """Points (n, 3) and weights (n,), float64: Gauss-Legendre in the height, equal steps in the angle."""
    nodes, weights = np.polynomial.legendre.leggauss(heights)
    height = torch.from_numpy(nodes).repeat_interleave(angles)
    angle = (torch.arange(angles, dtype=torch.float64) * (2 * math.pi / angles)).repeat(heights)
    radius = (1 - height.square()).sqrt()
    points = torch.stack([radius * angle.cos(), radius * angle.sin(), height], dim=-1)
    return points, torch.from_numpy(weights).repeat_interleave(angles) * (2 * math.pi / angles)


def unit(*coordinates: float) -> Tensor:
    """A float64 unit vector along the given one."""
    vector = torch.tensor(coordinates, dtype=torch.float64)
    return vector / vector.norm()

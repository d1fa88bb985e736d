"""Generalised-mean pooling (Radenović et al. 2018): between the mean (p = 1) and the maximum (p → ∞)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GeM(nn.Module):
    """(batch, C, H, W) → (batch, C): `(mean x^p)^(1/p)` of the positive part, p learned.

    >>> GeM(p=1.0)(torch.ones(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, p: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))
        self.floor = floor  # a channel that is zero everywhere would have an infinite gradient

    def forward(self, maps: Tensor) -> Tensor:
        # Powers of small numbers vanish in half precision.
        with torch.autocast(maps.device.type, enabled=False):
            powers = maps.float().clamp_min(self.floor).pow(self.p)
            return powers.mean(dim=(-2, -1)).pow(1 / self.p)

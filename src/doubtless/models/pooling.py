"""Generalised-mean pooling (Radenović et al. 2018): between the mean (p = 1) and the maximum (p → ∞)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GeM(nn.Module):
    """(batch, C, H, W) → (batch, C): `(mean x^p)^(1/p)` of the positive part, p learned.

    `count` of them, each with its own p, give (batch, count · C), one after the other.

    >>> GeM(p=1.0)(torch.ones(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, p: float = 3.0, floor: float = 1e-6, *, count: int = 1) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p) if count == 1 else torch.full((count, 1), p))
        self.floor = floor  # a channel that is zero everywhere would have an infinite gradient

    def forward(self, maps: Tensor) -> Tensor:
        # Powers of small numbers vanish in half precision.
        with torch.autocast(maps.device.type, enabled=False):
            positive = maps.float().clamp_min(self.floor)
            if self.p.dim() == 0:
                return positive.pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
            powers = positive.unsqueeze(1).pow(self.p[..., None, None])  # (batch, count, C, H, W)
            return powers.mean(dim=(-2, -1)).pow(1 / self.p).flatten(1)

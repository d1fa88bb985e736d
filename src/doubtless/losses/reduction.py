"""Means over a part of a matrix without picking the part out: fixed shapes, and nothing read back to the host."""

from __future__ import annotations

from torch import Tensor


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values under the mask, 0 where it is empty.

    >>> import torch
    >>> mean_over(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    return (values * mask).sum() / mask.sum().clamp_min(1)


def mean_violation(violation: Tensor) -> Tensor:
    """Mean over the triplets that violate the margin, 0 where none does: violations are 0 or more."""
    return violation.sum() / (violation > 0).sum().clamp_min(1)

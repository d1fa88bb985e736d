"""Several processes as one: gathers that let gradients through, and who this process is. Alone: no-ops."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether several processes work together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this process among them; 0 alone."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if is_distributed() else 1


def is_main() -> bool:
    """Whether this process writes files; known before the processes have found each other, too."""
    if is_distributed():
        return dist.get_rank() == 0
    names = ("RANK", "NODE_RANK", "LOCAL_RANK")  # set by torchrun, SLURM recipes and Lightning's launcher
    return all(int(os.environ.get(name, 0)) == 0 for name in names)


class _Gather(torch.autograd.Function):
    """All ranks' rows, in the order of the ranks; the gradient of a row is summed over the ranks."""

    @staticmethod
    def forward(context: object, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        share = total.shape[0] // world_size()
        return total[rank() * share : (rank() + 1) * share]


def gather(rows: Tensor) -> Tensor:
    """The rows of all ranks (world · b, …) from this rank's (b, …), with gradient.

    Every rank then computes the same loss over the whole global batch. The backward pass sums the gradient
    of a row over the ranks, and data-parallel training averages the parameters' gradients over them:
    together that is exactly the gradient one process would have had.
    """
    return _Gather.apply(rows) if is_distributed() else rows


def gather_objects(value: object) -> list[object]:
    """One value from every rank, in the order of the ranks."""
    if not is_distributed():
        return [value]
    values: list[object] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values

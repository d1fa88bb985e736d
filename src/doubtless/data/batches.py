"""Which images make up each batch of an epoch: the same for every number of processes, and after a resume."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from doubtless.errors import InputError


class BalancedBatches:
    """Batches of m images a class, drawn anew for every epoch from (seed, epoch) alone.

    Wraps pytorch-metric-learning's `MPerClassSampler`. Under data-parallel training every rank draws the same
    global batch and takes its own contiguous slice, so that gathering by rank restores the order.

    >>> batches = BalancedBatches(torch.arange(40) % 4, batch_size=8, per_class=2, seed=0)
    >>> [len(batch) for batch in batches.epoch(0)]
    [8, 8, 8, 8, 8]
    """

    def __init__(
        self, labels: Tensor, *, batch_size: int, per_class: int | None = None, seed: int = 0
    ) -> None:
        from pytorch_metric_learning.samplers import MPerClassSampler

        self.seed = seed
        self.batch_size = batch_size
        self.per_class = _images_per_class(labels, batch_size, per_class)
        length = max(len(labels), batch_size)
        self._sampler = MPerClassSampler(
            labels, self.per_class, batch_size=batch_size, length_before_new_iter=length
        )
        self._labels = sorted(self._sampler.labels)
        self._ahead: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._sampler) // self.batch_size

    def epoch(self, number: int, *, rank: int = 0, world_size: int = 1) -> list[list[int]]:
        """This rank's part of every batch of an epoch."""
        order = self._ahead[1] if self._ahead and self._ahead[0] == number else self._draw(number)
        if self.batch_size % world_size:
            raise InputError(
                f"batch_size {self.batch_size} must be a multiple of the {world_size} processes."
            )
        share = self.batch_size // world_size
        starts = range(0, len(order), self.batch_size)
        return [order[start + rank * share : start + (rank + 1) * share] for start in starts]

    def draw_ahead(self, number: int) -> None:
        """Draws an epoch before it is asked for: a tenth of a second for 60,000 images, while a GPU is busy."""
        self._ahead = number, self._draw(number)

    def _draw(self, number: int) -> list[int]:
        """Every image of an epoch, batch after batch."""
        from pytorch_metric_learning.utils import common_functions

        # The sampler shuffles its labels in place and draws from a module-wide generator: reset both, so that
        # an epoch depends on its number only.
        self._sampler.labels = list(self._labels)
        common_functions.NUMPY_RANDOM = np.random.RandomState([self.seed, number])
        return [int(index) for index in self._sampler]


def _images_per_class(labels: Tensor, batch_size: int, per_class: int | None) -> int:
    """Checks m, or finds the smallest one from 4 on that divides the batch and fills it."""
    classes = len(torch.unique(labels))
    if classes < 2:
        raise InputError(f"Metric learning needs at least 2 classes to train on, got {classes}.")
    if per_class is not None:
        if batch_size % per_class or per_class * classes < batch_size:
            raise InputError(
                f"training.per_class {per_class} does not fit: it must divide batch_size {batch_size}, and with "
                f"{classes} classes be at least {-(-batch_size // classes)}."
            )
        return per_class
    fitting = [m for m in range(2, batch_size + 1) if batch_size % m == 0 and m * classes >= batch_size]
    if not fitting or batch_size // fitting[0] < 2:
        raise InputError(
            f"batch_size {batch_size} cannot be filled evenly from {classes} classes with at least two of "
            "them in each batch; take a batch_size with more divisors, such as 64 or 128."
        )
    at_least_four = [m for m in fitting if m >= 4 and batch_size // m >= 2]
    return at_least_four[0] if at_least_four else fitting[0]

"""Which images make up each batch of an epoch: the same for every number of processes, and after a resume."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.errors import InputError


class BalancedBatches:
    """Batches of m images per class, drawn anew for every epoch from (seed, epoch) alone.

    Every batch takes as many classes as fit, none twice, and of each m images, none twice unless the class has
    fewer. So does pytorch-metric-learning's `MPerClassSampler`, whose draw of 60,000 images takes a quarter of a
    second an epoch, as long as a GPU takes to train on them; this one takes a hundredth. Under data-parallel
    training every rank draws the same global batch and takes its own contiguous slice, so that gathering by rank
    restores the order.

    >>> batches = BalancedBatches(torch.arange(40) % 4, batch_size=8, per_class=2, seed=0)
    >>> batches.epoch(0).shape                                                    # (steps, images)
    torch.Size([5, 8])
    """

    def __init__(
        self, labels: Tensor, *, batch_size: int, per_class: int | None = None, seed: int = 0
    ) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self.per_class = _images_per_class(labels, batch_size, per_class)
        self._steps = max(len(labels), batch_size) // batch_size
        numbers = labels.numpy(force=True)
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order])) + 1
        self._members = np.split(order, starts)  # the images of each class

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._steps

    def epoch(self, number: int, *, rank: int = 0, world_size: int = 1) -> Tensor:
        """This rank's part of every batch of an epoch: rows of the labels, (steps, batch_size / world_size)."""
        if self.batch_size % world_size:
            raise InputError(
                f"batch_size {self.batch_size} must be a multiple of the {world_size} processes."
            )
        share = self.batch_size // world_size
        return self._draw(number)[:, rank * share : (rank + 1) * share].contiguous()

    def _draw(self, number: int) -> Tensor:
        """Whole batches (steps, batch_size)."""
        generator = np.random.default_rng([self.seed, number])
        shown = self.batch_size // self.per_class
        classes = _chosen(generator, self._steps, len(self._members), shown)
        batches = np.empty((self._steps, shown, self.per_class), dtype=np.int64)
        # Class by class, all its turns at once.
        turns = np.argsort(classes, axis=None, kind="stable")
        counts = np.bincount(classes.ravel(), minlength=len(self._members))
        flat = batches.reshape(-1, self.per_class)
        for members, own in zip(self._members, np.split(turns, counts.cumsum()[:-1]), strict=True):
            flat[own] = members[_chosen(generator, len(own), len(members), self.per_class)]
        return torch.from_numpy(batches.reshape(self._steps, -1))


def _chosen(generator: np.random.Generator, turns: int, size: int, count: int) -> NDArray[np.int64]:
    """`count` numbers below `size` for each turn, (turns, count): none twice in a turn, if there are enough."""
    if size < count:
        return generator.integers(size, size=(turns, count))
    if size < count**2:
        return generator.random((turns, size)).argsort(1)[:, :count]
    # Numbers that may repeat, drawn again where they do: six times in ten or more they do not.
    drawn = generator.integers(size, size=(turns, count))
    again = np.arange(turns)
    while len(again):
        ordered = np.sort(drawn[again], axis=1)
        again = again[(ordered[:, 1:] == ordered[:, :-1]).any(1)]
        drawn[again] = generator.integers(size, size=(len(again), count))
    return drawn


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
